"""Softmax of each row, one CTA a row: the largest value, the sum of exponentials, and one division."""

from __future__ import annotations

import math

import jax
import numpy as np
from row import Row
from runner import Example, run

from jax_ptx import Kernel, Tile, kernel, ptx, reg
from jax_ptx.types import f32

CASES = ((4, 64), (16, 500), (32, 1024), (64, 1001), (128, 4096))


def build_softmax(B: int, N: int, *, arch: str = "auto") -> Kernel:
    """The kernel for B rows of length N; call it as `k(x)` with x `[B, N]`, float32."""
    row = Row(N)

    @kernel(
        in_specs=(Tile(B, N, f32),),
        out_specs=(Tile(B, N, f32),),
        grid=(B, 1, 1),
        block=(row.threads, 1, 1),
        arch=arch,
    )
    def softmax(X, Y):
        px, py = row.begin(N, (X, Y))
        values = row.load(px, fill=-math.inf)  # exp(-inf) adds nothing
        largest = reg.scalar(f32, init=-math.inf)
        for value in (v for step in values for v in step):
            ptx.inst.max.f32(largest, largest, value)
        row.reduce(largest, "max")
        total = reg.scalar(f32, init=0.0)
        for value in (v for step in values for v in step):
            # exp(x) = 2**(x * log2 e), after the largest value is taken off: no overflow.
            ptx.inst.sub.rn.f32(value, value, largest)
            ptx.inst.mul.rn.f32(value, value, math.log2(math.e))
            ptx.inst.ex2.approx.f32(value, value)
            ptx.inst.add.rn.f32(total, total, value)
        row.reduce(total, "sum")
        inverse = reg.scalar(f32)
        ptx.inst.rcp.rn.f32(inverse, total)
        row.store(py, [[value * inverse for value in step] for step in values])
        ptx.ret()

    return softmax


def inputs(B: int, N: int) -> tuple[np.ndarray]:
    return (3 * np.random.default_rng(B * 8191 + N).standard_normal((B, N), dtype=np.float32),)


def torch_formula(x):
    return x.softmax(-1)


if __name__ == "__main__":
    run(Example(build_softmax, inputs, jax.nn.softmax, torch_formula, CASES))
