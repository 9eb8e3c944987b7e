#!/usr/bin/env bash
# Everything that is claimed about a GPU, on a machine that has one: build, GPU tests, the example, NVIDIA's
# checkers over every configuration of rms_norm, then times. Uses the active python and its jax.
#
#   benchmarks/on_gpu.sh [folder for logs]
set -uo pipefail
cd "$(dirname "$0")/.."
logs=${1:-build/gpu}
mkdir -p "$logs"
export PYTHONUNBUFFERED=1 XLA_PYTHON_CLIENT_PREALLOCATE=false
failed=0

step() {  # step <name> <command…>: runs it, keeps its output, shows the end
  local name=$1 start=$SECONDS
  shift
  "$@" >"$logs/$name.log" 2>&1
  local status=$?
  [ $status -eq 0 ] || failed=1
  echo "== $name: exit $status, $((SECONDS - start)) s"
  tail -n "${LINES_SHOWN:-12}" "$logs/$name.log"
}

step build python3 -m pip install --quiet --no-build-isolation --no-deps --editable .
step versions python3 -c 'import jax, jax_ptx, torch; print(jax.__version__, jax.devices(), torch.__version__, jax_ptx.__version__)'
step tests python3 -m pytest -q -m gpu tests -p no:cacheprovider -p no:benchmark -n 8 --dist loadgroup
LINES_SHOWN=150 step benchmark python3 benchmarks/rms_norm.py --json="$logs/rms_norm.json"
step block python3 benchmarks/block.py --json="$logs/block.json"
LINES_SHOWN=20 step example python3 examples/rms_norm.py
for other in softmax layer_norm swiglu; do step "example-$other" python3 "examples/$other.py"; done
LINES_SHOWN=6 step sanitizers python3 benchmarks/sanitize.py --logs="$logs/sanitize"
exit $failed
