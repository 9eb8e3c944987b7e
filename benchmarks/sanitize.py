"""rms_norm forward and backward in every kind of configuration, for NVIDIA's checkers to watch.

    compute-sanitizer --tool racecheck python3 benchmarks/sanitize.py

Few rows each, but where CTAs and clusters take rows by turns, more rows than there are of them. Results are
compared with the formula on the CPU, so that a checker that stops a kernel is noticed. Prints the number of
cases; `--part=0/3` takes the first, fourth, ... of them. CUDA graphs are off: initcheck knows nothing of what
a graph's kernels write, and reports XLA's copies.
"""

from __future__ import annotations

import os

os.environ.setdefault("XLA_FLAGS", "--xla_gpu_enable_command_buffer= --xla_gpu_autotune_level=0")

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

import jax_ptx

PART = flags.DEFINE_string("part", "0/1", "which of how many parts of the cases")

# Several rows a warp, a row a CTA, odd lengths, clusters of two, four and eight, the loop beyond.
LENGTHS = (1, 4, 64, 96, 1000, 1024, 2048, 3072, 4096, 4097, 5120, 8192, 10007, 12288)
LONG_LENGTHS = (16384, 18432, 32768, 65536, 131072, 262144)
DTYPES = (jnp.bfloat16, jnp.float32)
TOLERANCE = {jnp.bfloat16: 2e-2, jnp.float32: 1e-4}


def both_ways(implementation: str, added: bool) -> Any:
    """y, dx and dw of the sum of x and r, or of x."""

    def f(x: Any, r: Any, w: Any, dy: Any) -> Any:
        if not added:
            norm = lambda x, w: jax_ptx.rms_norm(x, w, implementation=implementation)
            y, pull = jax.vjp(norm, x, w)
            return norm(x, w), y, *pull(dy)
        norm = lambda x, r, w: jax_ptx.add_rms_norm(x, r, w, implementation=implementation)
        (y, total), pull = jax.vjp(norm, x, r, w)
        return y, total, *pull((dy, dy))

    return jax.jit(f)


def main(_: list[str]) -> None:
    cases = [(rows, n, False) for n in LENGTHS for rows in (3, 700 if n <= 4096 else 300)]
    cases += [(40, n, False) for n in LONG_LENGTHS]
    cases += [(300, n, True) for n in (96, 4096, 8192)] + [(40, 65536, True)]
    cases = [(dtype, *case) for dtype in DTYPES for case in cases]
    part, parts = map(int, PART.value.split("/"))
    cases = cases[part::parts]
    cpu, device = jax.devices("cpu")[0], jax.devices()[0]
    for dtype, rows, n, added in cases:
        rng = np.random.default_rng(n)
        shapes = ((rows, n), (rows, n), (n,), (rows, n))
        values = [rng.standard_normal(s, np.float32).astype(dtype) for s in shapes]
        got = both_ways("ptx", added)(*jax.device_put(values, device))
        expected = both_ways("xla", added)(*jax.device_put(values, cpu))
        for a, b in zip(got, expected, strict=True):
            wide, exact = (np.asarray(v).astype(np.float32) for v in (a, b))
            scale = max(1, np.abs(exact).max())
            np.testing.assert_allclose(wide, exact, atol=TOLERANCE[dtype] * scale, rtol=0)
    print(f"{len(cases)} cases agree with the formula")


if __name__ == "__main__":
    app.run(main)
