"""Time from Python to PTX text, how it grows with the number of instructions, and what follows it.

    python benchmarks/tracing.py

Prints, as the best of several runs on this machine's CPU:

- kernels of n instructions, in milliseconds and in microseconds an instruction, which should not depend
  on n. The first line is the first trace of the process, which also reads the instruction table;
- RMS norm of 256 rows of 4096 float32 (examples/rms_norm.py): from Python to text; of a jit that calls
  it, with the text already there, JAX's tracing, lowering and compilation; and one call in the emulator.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jax_ptx import Kernel, kernel, ptx, reg
from jax_ptx.types import f32, u32

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from rms_norm import build_rms_norm

SIZES = (100, 1000, 10000, 100000)
BLOCK = 5  # instructions that the loop below emits in one pass
ROWS, N = 256, 4096
RUNS = 10


def program(n: int) -> Kernel:
    """A kernel of about n instructions: addresses, loads, arithmetic and stores."""

    @kernel
    def traced(x):
        (px,) = ptx.global_ptrs(x)
        i = reg.from_(ptx.special.tid.x(), u32)
        value = reg.scalar(f32)
        for step in range(n // BLOCK):
            p = px + (i + step) * 4
            ptx.inst.ld.global_.f32(value, ptx.addr(p))
            ptx.inst.fma.rn.f32(value, value, value, 1.0)

    return traced


def trace_ms(k: Kernel) -> tuple[float, int]:
    """Milliseconds of one trace, and the lines of its text."""
    start = time.perf_counter()
    text = k.ptx()
    return (time.perf_counter() - start) * 1e3, text.count(";\n")


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    """Milliseconds of one run, and its result."""
    start = time.perf_counter()
    result = jax.block_until_ready(run())
    return (time.perf_counter() - start) * 1e3, result


def rms_norm() -> None:
    """The steps of one kernel, from Python to its values."""
    cpu = jax.local_devices(backend="cpu")[0]
    x, w = (jax.device_put(jnp.ones(shape), cpu) for shape in ((ROWS, N), N))
    k = build_rms_norm(ROWS, N)
    text, n = min(trace_ms(k) for _ in range(RUNS))
    k.launch()
    steps: dict[str, list[float]] = {}

    def step(name: str, run: Callable[[], Any]) -> Any:
        ms, result = timed(run)
        steps.setdefault(name, []).append(ms)
        return result

    for _ in range(RUNS):
        jitted = jax.jit(lambda x, w: k(x, w))  # a new function, of which JAX has nothing cached
        traced = step("tracing the jit", lambda jitted=jitted: jitted.trace(x, w))
        lowered = step("lowering to StableHLO", lambda traced=traced: traced.lower())
        compiled = step("compiling", lambda lowered=lowered: lowered.compile())
        step("one call in the emulator", lambda compiled=compiled: compiled(x, w))
    print(f"RMS norm {ROWS} x {N} f32, {n} instructions:")
    print(f"{text:9.3f} ms  Python to text")
    for name, times in steps.items():
        print(f"{min(times):9.3f} ms  {name}")


def main() -> None:
    first, n = trace_ms(program(SIZES[0]))
    print(f"{n:7} instructions: {first:9.3f} ms, the first trace of the process")
    for size in SIZES:
        k = program(size)
        best, n = min(trace_ms(k) for _ in range(max(3, 2000 // size)))
        print(f"{n:7} instructions: {best:9.3f} ms, {best * 1e3 / n:6.2f} us each")
    rms_norm()


if __name__ == "__main__":
    main()
