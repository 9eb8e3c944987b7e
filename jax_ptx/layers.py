"""What the layers of `jax_ptx.flax` and `jax_ptx.equinox` compute, whatever their constructors are called.

The kernel takes rows: it serves a layer that normalises over the last axes, as nearly all do. Everything
else that the original layers accept is computed here the plain way.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_ptx.ops.rms_norm.api import DTYPES, Implementation, rms_norm
from jax_ptx.ops.rms_norm.reference import accumulation_dtype


def normalize(
    x: jax.Array,
    weight: jax.Array | None,
    *,
    bias: jax.Array | None = None,
    reduced: tuple[int, ...],
    features: tuple[int, ...],
    eps: Any,
    statistic: jnp.dtype,
    result: jnp.dtype,
    mask: Any = None,
    axis_name: Any = None,
    axis_index_groups: Any = None,
    weight_offset: float = 0.0,
    implementation: Implementation | None = None,
) -> jax.Array:
    """`x / sqrt(mean(x**2) + eps) * (weight + weight_offset) + bias`.

    Args:
        x: the input.
        weight: has x's axes `features` and no other, in x's order.
        bias: the same.
        reduced: the axes of x, counted from 0, that the mean is over.
        features: those that the weight has.
        eps: added to the mean.
        statistic: the dtype that the mean is computed in.
        result: the result's dtype; the result is rounded to it once.
        mask: which elements the mean is over, an array that broadcasts to x's shape; None: all.
        axis_name: mapped axes that the mean is over as well.
        axis_index_groups: groups of their indices, as `jax.lax.pmean` takes them.
        weight_offset: added to the weight, in float32 at least.
        implementation: what `rms_norm` takes; for what the kernel does not serve it makes no difference.
    """
    # The originals' promotions, also where the caller made JAX strict.
    with jax.numpy_dtype_promotion("standard"):
        trailing = reduced == tuple(range(x.ndim - len(reduced), x.ndim)) and len(reduced) > 0
        if (
            trailing
            and bias is None
            and mask is None
            and axis_name is None
            and (weight is None or set(features) <= set(reduced))
            and _kernel_takes(x, weight, reduced, eps, statistic, result)
        ):
            options: dict[str, Any] = {"eps": float(eps), "implementation": implementation}
            if weight is not None:
                options["weight_offset"] = weight_offset
            return _by_rows(x, weight, len(reduced), features, options)
        if weight is not None and weight_offset != 0:
            wide = jnp.promote_types(weight.dtype, jnp.float32)
            weight = weight.astype(wide) + jnp.asarray(weight_offset, wide)
        wide = x.astype(statistic)
        squares = jax.lax.square(wide)
        if jnp.iscomplexobj(wide):
            squares = jax.lax.square(wide.real) + jax.lax.square(wide.imag)
        where = None if mask is None else jnp.asarray(mask, bool)
        mean = squares.mean(reduced, keepdims=True, where=where)
        if axis_name is not None:
            mean = jax.lax.pmean(mean, axis_name, axis_index_groups=axis_index_groups)
        scale = jax.lax.rsqrt(mean + eps)
        if weight is not None:
            scale = scale * _along(weight, x, features)
        y = x * scale
        return (y if bias is None else y + _along(bias, x, features)).astype(result)


def _kernel_takes(
    x: jax.Array,
    weight: jax.Array | None,
    reduced: tuple[int, ...],
    eps: Any,
    statistic: jnp.dtype,
    result: jnp.dtype,
) -> bool:
    """Whether sizes, dtypes and shardings are the kernel's, and its numbers what the formula gives."""
    if not all(isinstance(x.shape[axis], int) for axis in reduced):
        return False
    # A split row would have to be gathered; JAX sums over the devices what each has of it.
    specs: list[tuple[Any, Iterable[int]]] = [(jax.typeof(x).sharding.spec, reduced)]
    if weight is not None:
        specs.append((jax.typeof(weight).sharding.spec, range(weight.ndim)))
    if any(spec[axis] is not None for spec, axes in specs for axis in axes):
        return False
    if x.dtype.name not in DTYPES or x.dtype != result or accumulation_dtype(x.dtype) != statistic:
        return False
    if weight is not None and not (
        weight.dtype.name in DTYPES and jnp.promote_types(weight.dtype, statistic) == statistic
    ):
        return False
    # It is part of the kernel; the originals also take an array, or a number that makes no sense.
    limits = jnp.finfo(statistic)
    return isinstance(eps, int | float | np.floating) and (
        eps == 0 or bool(limits.tiny <= eps <= limits.max)
    )


def _by_rows(
    x: jax.Array,
    weight: jax.Array | None,
    n_reduced: int,
    features: tuple[int, ...],
    options: dict[str, Any],
) -> jax.Array:
    lead, row = x.shape[: x.ndim - n_reduced], x.shape[x.ndim - n_reduced :]
    if weight is not None:
        along = _along(weight, x, features).reshape(
            [x.shape[axis] if axis in features else 1 for axis in range(len(lead), x.ndim)]
        )
        weight = jnp.broadcast_to(along, row).reshape(-1)
    rows = x if n_reduced == 1 else x.reshape(*lead, math.prod(row))
    return rms_norm(rows, weight, **options).reshape(x.shape)


def _along(value: jax.Array, x: jax.Array, features: tuple[int, ...]) -> jax.Array:
    """A weight or a bias with x's rank."""
    return value.reshape([x.shape[axis] if axis in features else 1 for axis in range(x.ndim)])
