"""RMS norm as plain JAX formulas: the oracle of the tests, the "xla" implementation, second derivatives.

Shapes: x, dy `[*lead, n]`; weight `[n]`, or `[*lead[:k], n]` where it is mapped; rstd `[*lead]`.
`normal` is `x * rstd`: its products stay in range where those of `rstd**3` do not.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jax_ptx.ops.rms_norm.config import Parts


def accumulation_dtype(dtype: jnp.dtype) -> jnp.dtype:
    """The dtype that statistics and products are computed in: float64 for float64, else float32."""
    return jnp.dtype(jnp.float64 if dtype == jnp.float64 else jnp.float32)


def forward(
    x: jax.Array, weight: jax.Array | None = None, *, eps: float
) -> tuple[jax.Array, jax.Array]:
    """`y = x * (rstd * weight)`, rounded once to x's dtype, and `rstd = rsqrt(mean(x**2, -1) + eps)`."""
    wide = _wide(x)
    rstd = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1) + jnp.asarray(eps, wide.dtype))
    scale = rstd[..., None]
    if weight is not None:
        scale = scale * _along(weight, x)
    return (wide * scale).astype(x.dtype), rstd


def tangent(
    x: jax.Array,
    weight: jax.Array | None,
    rstd: jax.Array,
    x_dot: jax.Array,
    weight_dot: jax.Array | None,
) -> jax.Array:
    """y's tangent, linear in x_dot and weight_dot."""
    scale, normal = rstd[..., None], _wide(x) * rstd[..., None]
    wide = _wide(x_dot)
    y_dot = scale * (wide - normal * jnp.mean(normal * wide, axis=-1, keepdims=True))
    if weight is not None:
        y_dot = y_dot * _along(weight, x)
    if weight_dot is not None:
        y_dot = y_dot + normal * _along(weight_dot, x)
    return y_dot.astype(x.dtype)


def rstd_tangent(x: jax.Array, rstd: jax.Array, x_dot: jax.Array) -> jax.Array:
    """rstd's tangent, linear in x_dot."""
    normal = _wide(x) * rstd[..., None]
    return -rstd * rstd * jnp.mean(normal * _wide(x_dot), axis=-1)


def backward(
    x: jax.Array,
    weight: jax.Array | None,
    rstd: jax.Array,
    dy: jax.Array,
    *,
    need_dx: bool,
    parts: Parts | None,
) -> list[jax.Array]:
    """dx, and dw's partial sums `[*parts.shape, n]`, as far as they are asked for.

    The formula puts the sum of a block of rows into the block's first run, and 0 into the others.
    """
    scale, normal, wide = rstd[..., None], _wide(x) * rstd[..., None], _wide(dy)
    results = []
    if need_dx:
        dn = wide if weight is None else wide * _along(weight, x)
        dx = scale * (dn - normal * jnp.mean(dn * normal, axis=-1, keepdims=True))
        results.append(dx.astype(x.dtype))
    if parts is not None:
        sums = wide * normal
        for axis, count in reversed(list(enumerate(parts.blocks))):
            # One axis at a time: JAX knows how such a reshape keeps the axis sharded.
            shape = sums.shape
            sums = sums.reshape(*shape[:axis], count, -1, *shape[axis + 1 :]).sum(axis + 1)
        if parts.runs > 1:
            padding = [(0, 0)] * x.ndim + [(0, 0)]
            padding[-2] = (0, parts.runs - 1)
            sums = jnp.pad(sums[..., None, :], padding).reshape(*parts.shape, x.shape[-1])
        results.append(sums)
    return results


def rms_norm(x: jax.Array, weight: jax.Array | None = None, *, eps: float) -> jax.Array:
    """The formula that users would write, differentiated by JAX."""
    return forward(x, weight, eps=eps)[0]


def _wide(x: jax.Array) -> jax.Array:
    return x.astype(accumulation_dtype(x.dtype))


def _along(weight: jax.Array, x: jax.Array) -> jax.Array:
    """The weight as a factor of x."""
    ones = (1,) * (x.ndim - weight.ndim)
    shape = (*weight.shape[:-1], *ones, weight.shape[-1])
    return weight.reshape(shape).astype(accumulation_dtype(x.dtype))
