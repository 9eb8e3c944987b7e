"""SwiGLU's elementwise half: `Y = silu(G) * U` with silu(g) = g / (1 + exp(-g)), rows shared by CTAs."""

from __future__ import annotations

import math

import jax
import numpy as np
from row import Row
from runner import Example, run

from jax_ptx import Kernel, Tile, kernel, ptx, reg
from jax_ptx.types import f32

CASES = ((4, 64), (16, 500), (32, 1024), (64, 1001), (128, 4096))


def build_swiglu(B: int, N: int, *, arch: str = "auto") -> Kernel:
    """The kernel for B rows of length N; call it as `k(gate, up)`, each `[B, N]`, float32."""
    row = Row(N)

    @kernel(
        in_specs=(Tile(B, N, f32), Tile(B, N, f32)),
        out_specs=(Tile(B, N, f32),),
        grid=(B, 1, 1),
        block=(row.threads, 1, 1),
        arch=arch,
    )
    def swiglu(gate, up, y):
        p_gate, p_up, p_y = row.begin(N, (gate, up, y))
        gates, ups = row.load(p_gate), row.load(p_up)
        for step_gates, step_ups in zip(gates, ups, strict=True):
            for i in range(row.vector):
                # For g far below 0 the exponential is inf and the quotient 0, as it should be.
                power = reg.scalar(f32)
                ptx.inst.ex2.approx.f32(power, step_gates[i] * -math.log2(math.e))
                ptx.inst.div.rn.f32(step_gates[i], step_gates[i], power + 1.0)
                ptx.inst.mul.rn.f32(step_gates[i], step_gates[i], step_ups[i])
        row.store(p_y, gates)
        ptx.ret()

    return swiglu


def inputs(B: int, N: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(B * 8191 + N)
    return tuple(2 * rng.standard_normal((B, N), dtype=np.float32) for _ in range(2))


def jax_formula(gate, up):
    return jax.nn.silu(gate) * up


def torch_formula(gate, up):
    from torch.nn.functional import silu

    return silu(gate) * up


if __name__ == "__main__":
    run(Example(build_swiglu, inputs, jax_formula, torch_formula, CASES))
