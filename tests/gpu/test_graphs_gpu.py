"""rms_norm inside CUDA graphs: XLA records the calls once and replays them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

CALLS, RUNS = 10, 30

# The handlers are C functions in capsules; each is registered behind one that counts.
COUNTED = """
import collections, ctypes, json, sys
import jax, jax.numpy as jnp, numpy as np

address = ctypes.pythonapi.PyCapsule_GetPointer
address.restype, address.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
capsule = ctypes.pythonapi.PyCapsule_New
capsule.restype = ctypes.py_object
capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
Handler = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
counts, kept, register = collections.Counter(), [], jax.ffi.register_ffi_target

def counted(stage, handler):
    original = Handler(address(handler, None))
    def call(frame):
        counts[stage] += 1
        return original(frame)
    kept.append(Handler(call))
    return capsule(ctypes.cast(kept[-1], ctypes.c_void_p), None, None)

def register_counted(name, handlers, platform="cpu", **options):
    if platform != "cpu":
        handlers = {stage: counted(stage, handler) for stage, handler in handlers.items()}
    register(name, handlers, platform=platform, **options)

jax.ffi.register_ffi_target = register_counted
import jax_ptx

calls, runs = map(int, sys.argv[1:])
w = jnp.linspace(0.5, 1.5, 1024)

@jax.jit
def many(x):
    for _ in range(calls):
        x = jax_ptx.rms_norm(x, w)
    return x

x = jax.random.normal(jax.random.key(0), (64, 1024))
first = np.asarray(many(x))
counts.clear()
for _ in range(runs):
    np.testing.assert_array_equal(many(x), first)
print(json.dumps(counts))
"""


def test_calls_are_recorded_once_and_replayed(tmp_path: Path) -> None:
    environment = {**os.environ, "XLA_FLAGS": f"--xla_dump_to={tmp_path} --xla_dump_hlo_as_text"}
    run = subprocess.run(
        [sys.executable, "-c", COUNTED, str(CALLS), str(RUNS)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    counts = json.loads(run.stdout)
    # Recorded anew when buffers have moved: seldom. A call in no graph would execute 300 times.
    assert counts.get("execute", 0) <= 3 * CALLS, counts
    (dump,) = tmp_path.glob("*jit_many*.thunk_sequence_after_thunk_passes.txt")
    text = dump.read_text()
    inside = re.search(r"^000: kCommandBuffer.*\n((?:    .*\n?)*)\Z", text)
    assert inside, text  # the whole program is one graph
    assert inside[1].count(": kCustomCall") == CALLS
