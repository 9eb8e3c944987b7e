"""Layer norm, one CTA a row: `Y = (X - mean) / sqrt(var + eps) * W + B` over each row.

The variance is summed from the deviations, which are in registers: the mean of squares minus the square
of the mean would lose every digit on rows whose mean is much larger than their spread.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from row import Row
from runner import Example, run

from jax_ptx import Kernel, Tile, kernel, ptx, reg
from jax_ptx.types import f32

CASES = ((4, 64), (16, 500), (32, 1024), (64, 1001), (128, 4096))


def build_layer_norm(B: int, N: int, *, eps: float = 1e-5, arch: str = "auto") -> Kernel:
    """The kernel for B rows of length N; call it as `k(x, w, b)`: x `[B, N]`, w and b `[N]`, float32."""
    row = Row(N)

    @kernel(
        in_specs=(Tile(B, N, f32), Tile(N, f32), Tile(N, f32)),
        out_specs=(Tile(B, N, f32),),
        grid=(B, 1, 1),
        block=(row.threads, 1, 1),
        arch=arch,
    )
    def layer_norm(X, W, bias, Y):
        px, py, pw, pb = row.begin(N, (X, Y), (W, bias))
        values = row.load(px)
        mean = reg.scalar(f32, init=0.0)
        for value in (v for step in values for v in step):
            ptx.inst.add.rn.f32(mean, mean, value)
        row.reduce(mean, "sum")
        ptx.inst.mul.rn.f32(mean, mean, 1.0 / N)
        # The mean is rounded, so the deviations have a small mean of their own, which is taken off:
        # the corrected two-pass algorithm of Chan, Golub and LeVeque (1983).
        rest, square = reg.scalar(f32, init=0.0), reg.scalar(f32, init=0.0)
        for step, step_values in enumerate(values):
            inside = row.inside(step)
            for value in step_values:
                ptx.inst.sub.rn.f32(value, value, mean)
                ptx.inst.add.rn.f32(rest, rest, value, pred=inside)
                ptx.inst.fma.rn.f32(square, value, value, square, pred=inside)
        row.reduce(rest, "sum")
        row.reduce(square, "sum")
        ptx.inst.mul.rn.f32(rest, rest, 1.0 / N)
        rstd = reg.scalar(f32)
        ptx.inst.rsqrt.approx.f32(rstd, square * (1.0 / N) - rest * rest + eps)
        scale, shift = row.load(pw), row.load(pb)
        for step_values, w, b in zip(values, scale, shift, strict=True):
            for i in range(row.vector):
                ptx.inst.sub.rn.f32(step_values[i], step_values[i], rest)
                ptx.inst.mul.rn.f32(w[i], w[i], rstd)
                ptx.inst.fma.rn.f32(step_values[i], step_values[i], w[i], b[i])
        row.store(py, values)
        ptx.ret()

    return layer_norm


def inputs(B: int, N: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(B * 8191 + N)
    x = 1 + rng.standard_normal((B, N), dtype=np.float32)
    w = 1 + 0.1 * rng.standard_normal(N, dtype=np.float32)
    return x, w, rng.standard_normal(N, dtype=np.float32)


def jax_formula(x, w, b, eps: float = 1e-5):
    mean = jnp.mean(x, -1, keepdims=True)
    variance = jnp.mean((x - mean) ** 2, -1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + eps) * w + b


def torch_formula(x, w, b, eps: float = 1e-5):
    from torch.nn.functional import layer_norm

    return layer_norm(x, w.shape, w, b, eps)


if __name__ == "__main__":
    run(Example(build_layer_norm, inputs, jax_formula, torch_formula, CASES))
