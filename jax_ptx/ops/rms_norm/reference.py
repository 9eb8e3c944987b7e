"""RMS norm as plain JAX formulas: the oracle of the tests, the "xla" implementation, second derivatives.

Shapes: x, dy `[*lead, n]`; weight `[n]`, or `[*lead[:k], n]` where it is mapped; rstd `[*lead]`.
`normal` is `x * rstd`: its products stay in range where those of `rstd**3` do not.
"""

from __future__ import annotations

import functools
from typing import Any, NoReturn

import jax
import jax.numpy as jnp

from jax_ptx.ops.rms_norm.options import Options
from jax_ptx.ops.rms_norm.parts import Parts


def accumulation_dtype(dtype: jnp.dtype) -> jnp.dtype:
    """The dtype that statistics and products are computed in: float64 for float64, else float32."""
    return jnp.dtype(jnp.float64 if dtype == jnp.float64 else jnp.float32)


def forward(
    x: jax.Array,
    weight: jax.Array | None = None,
    scale: jax.Array | None = None,
    *,
    options: Options,
    out_dtype: str | None = None,
) -> tuple[jax.Array, jax.Array]:
    """`y = x * rstd * weight`, rounded once to x's dtype, and `rstd = rsqrt(mean(x**2, -1) + eps)`.

    With `round_before_weight`, `x * rstd` is rounded too. With an `out_dtype` of 8 bits y is divided by the
    scale and rounded to that instead, and what is past its largest value becomes that.
    """
    wide = _wide(x)
    # Spelled as users spell it, with the axis kept: XLA knows the pattern, and makes one kernel of it.
    mean = jnp.mean(wide * wide, axis=-1, keepdims=True)
    rstd = jax.lax.rsqrt(mean + jnp.asarray(options.eps, wide.dtype))
    y = wide * rstd
    if weight is not None:
        factor = _along(weight, x, options.weight_offset)
        y = _rounded_times(y, factor, x.dtype) if options.round_before_weight else y * factor
    if scale is not None:
        y = y * (1 / scale.astype(wide.dtype))
    return _saturated(y, out_dtype) if out_dtype else y.astype(x.dtype), rstd[..., 0]


def add(x: jax.Array, residual: jax.Array) -> jax.Array:
    """`x + residual`, rounded to their dtype even where XLA keeps more digits of what it fuses."""
    return rounded(_wide(x) + _wide(residual), x.dtype).astype(x.dtype)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def rounded(wide: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """A wide value rounded to `dtype`, still wide; its derivative is the unrounded value's.

    XLA may drop a conversion there and back (its `xla_allow_excess_precision`).
    """
    if dtype == jnp.bfloat16:
        return jax.lax.reduce_precision(wide, exponent_bits=8, mantissa_bits=7)
    if dtype == jnp.float16:  # whose subnormal numbers `reduce_precision` makes 0
        return jax.lax.optimization_barrier(wide.astype(dtype)).astype(wide.dtype)
    return wide


@rounded.defjvp
def _rounded_jvp(dtype: jnp.dtype, primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    return rounded(primals[0], dtype), tangents[0]


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _rounded_times(normal: jax.Array, factor: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """`rounded(normal) * factor`; its derivative is the unrounded product's, in the factor too."""
    return rounded(normal, dtype) * factor


@_rounded_times.defjvp
def _rounded_times_jvp(dtype: jnp.dtype, primals: Any, tangents: Any) -> tuple[Any, Any]:
    (normal, factor), (normal_dot, factor_dot) = primals, tangents
    return _rounded_times(normal, factor, dtype), normal_dot * factor + normal * factor_dot


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _saturated(y: jax.Array, dtype: str) -> jax.Array:
    largest = float(jnp.finfo(dtype).max)
    return jnp.clip(y.astype(jnp.float32), -largest, largest).astype(dtype)


@_saturated.defjvp
def refuse_derivative(dtype: str, *_: Any) -> NoReturn:
    """Cotangents of an 8-bit result would be of that dtype too, and most of them 0 or NaN.

    Raises:
        NotImplementedError: always.
    """
    raise NotImplementedError(
        f"rms_norm: out_dtype={dtype} is for inference and has no derivative, since a cotangent would be "
        "rounded to it; leave out_dtype and scale out where it is differentiated, or put "
        "jax.lax.stop_gradient around the operands"
    )


def tangent(
    x: jax.Array,
    rstd: jax.Array,
    weight: jax.Array | None = None,
    x_dot: jax.Array | None = None,
    weight_dot: jax.Array | None = None,
    *,
    weight_offset: float,
) -> jax.Array:
    """y's tangent, linear in x_dot and weight_dot, of which one may be absent: zero."""
    scale, normal = rstd[..., None], _wide(x) * rstd[..., None]
    y_dot = None
    if x_dot is not None:
        wide = _wide(x_dot)
        y_dot = scale * (wide - normal * jnp.mean(normal * wide, axis=-1, keepdims=True))
        if weight is not None:
            y_dot = y_dot * _along(weight, x, weight_offset)
    if weight_dot is not None:
        of_weight = normal * _along(weight_dot, x)
        y_dot = of_weight if y_dot is None else y_dot + of_weight
    return jnp.zeros_like(x) if y_dot is None else y_dot.astype(x.dtype)


def rstd_tangent(x: jax.Array, rstd: jax.Array, x_dot: jax.Array) -> jax.Array:
    """rstd's tangent, linear in x_dot."""
    normal = _wide(x) * rstd[..., None]
    return -rstd * rstd * jnp.mean(normal * _wide(x_dot), axis=-1)


def backward(
    x: jax.Array,
    dy: jax.Array,
    rstd: jax.Array,
    weight: jax.Array | None = None,
    addend: jax.Array | None = None,
    *,
    weight_offset: float,
    need_dx: bool,
    parts: Parts | None,
) -> list[jax.Array]:
    """dx, and dw's partial sums `[*parts.shape, n]`, as far as they are asked for.

    The addend is added to dx before its one rounding.
    The formula puts the sum of a block of rows into the block's first run, and 0 into the others.
    """
    scale, normal, wide = rstd[..., None], _wide(x) * rstd[..., None], _wide(dy)
    results = []
    if need_dx:
        dn = wide if weight is None else wide * _along(weight, x, weight_offset)
        dx = scale * (dn - normal * jnp.mean(dn * normal, axis=-1, keepdims=True))
        if addend is not None:
            dx = dx + _wide(addend)
        results.append(dx.astype(x.dtype))
    if parts is not None:
        sums = wide * normal
        for axis, count in reversed(list(enumerate(parts.blocks))):
            shape = sums.shape
            if count == shape[axis]:  # it may be 0
                continue
            # One axis at a time: JAX knows how such a reshape keeps the axis sharded.
            within = shape[axis] // count
            sums = sums.reshape(*shape[:axis], count, within, *shape[axis + 1 :]).sum(axis + 1)
        if parts.runs > 1:
            padding = [(0, 0)] * x.ndim + [(0, 0)]
            padding[-2] = (0, parts.runs - 1)
            sums = jnp.pad(sums[..., None, :], padding).reshape(*parts.shape, x.shape[-1])
        results.append(sums.astype(weight.dtype) if parts.final and weight is not None else sums)
    return results


def _wide(x: jax.Array) -> jax.Array:
    return x.astype(accumulation_dtype(x.dtype))


def wide_weight(weight: jax.Array, wide: jnp.dtype, offset: float) -> jax.Array:
    """The weight as it is multiplied with: wide, and with its offset."""
    weight = weight.astype(wide)
    return weight + jnp.asarray(offset, wide) if offset else weight


def _along(weight: jax.Array, x: jax.Array, offset: float = 0.0) -> jax.Array:
    """The wide weight as a factor of x."""
    ones = (1,) * (x.ndim - weight.ndim)
    shape = (*weight.shape[:-1], *ones, weight.shape[-1])
    return wide_weight(weight.reshape(shape), accumulation_dtype(x.dtype), offset)
