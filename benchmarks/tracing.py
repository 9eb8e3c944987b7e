"""Time from Python to PTX text, and how it grows with the number of instructions.

    python benchmarks/tracing.py

Traces kernels of n instructions and prints the best of several runs, in milliseconds and in
microseconds an instruction; the latter should not depend on n. The first line is the first trace of
the process, which also reads the instruction table.
"""

from __future__ import annotations

import time

from jax_ptx import Kernel, kernel, ptx, reg
from jax_ptx.types import f32, u32

SIZES = (100, 1000, 10000, 100000)
BLOCK = 5  # instructions that the loop below emits in one pass


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


def main() -> None:
    first, n = trace_ms(program(SIZES[0]))
    print(f"{n:7} instructions: {first:9.3f} ms, the first trace of the process")
    for size in SIZES:
        k = program(size)
        best, n = min(trace_ms(k) for _ in range(max(3, 2000 // size)))
        print(f"{n:7} instructions: {best:9.3f} ms, {best * 1e3 / n:6.2f} us each")


if __name__ == "__main__":
    main()
