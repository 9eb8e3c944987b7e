"""What the layers of `jax_ptx.flax` and `jax_ptx.equinox` compute, whatever their constructors are called.

The kernel takes rows of one dtype and rounds once. A layer that normalises over its last axes, as nearly
all do, calls it where its result has its input's dtype and there is no bias. Else conversions around a
float32 (or float64) kernel would move more bytes than the plain formula, of which XLA makes one kernel: that
runs, unless the kernel is asked for. What no kernel gives is computed the plain way too.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jax_ptx.ops.rms_norm.api import Implementation, rms_norm
from jax_ptx.ops.rms_norm.arguments import DTYPES
from jax_ptx.ops.rms_norm.reference import accumulation_dtype


def absolute_square(x: jax.Array) -> jax.Array:
    """`x**2`, and of complex numbers that of their absolute values."""
    if jnp.iscomplexobj(x):
        return jax.lax.square(x.real) + jax.lax.square(x.imag)
    return jax.lax.square(x)


def settings(weight_offset: Any, implementation: Any, has_weight: bool) -> float:
    """The offset as a number, once both settings have been found to be what a layer takes.

    Raises:
        TypeError: for an offset that is not a real number known while tracing.
        ValueError: for an offset without a weight or that is not finite, or an unknown implementation.
    """
    if implementation not in (None, "ptx", "xla"):
        raise ValueError(
            f"RMSNorm: implementation must be 'ptx', 'xla' or None, got {implementation!r}"
        )
    offset = _constant(weight_offset)
    if offset is None:
        raise TypeError(
            "RMSNorm: weight_offset must be a real number known while tracing, got "
            f"{type(weight_offset).__name__}; it is part of the kernel: close over it, or mark it static"
        )
    if not math.isfinite(offset):
        raise ValueError(f"RMSNorm: weight_offset must be finite, got {weight_offset}")
    if offset and not has_weight:
        raise ValueError(
            f"RMSNorm: weight_offset={offset} is added to the weight, and the layer has none; leave "
            "weight_offset out"
        )
    return offset


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
    square: Any = absolute_square,
    mask: Any = None,
    converted: bool = False,
    axis_name: Any = None,
    axis_index_groups: Any = None,
    weight_offset: Any = 0.0,
    implementation: Implementation | None = None,
) -> jax.Array:
    """`x / sqrt(mean(square(x)) + eps) * (weight + weight_offset) + bias`.

    Args:
        x: the input.
        weight: has x's axes `features` and no other, in x's order.
        bias: the same.
        reduced: the axes of x, counted from 0, that the mean is over.
        features: those that the weight has.
        eps: added to the mean.
        statistic: the dtype that the mean is computed in.
        result: the result's dtype; the result is rounded to it once.
        square: what the original takes the mean of, for complex numbers.
        mask: which elements the mean is over, an array that broadcasts to x's shape; None: all.
        converted: whether x had another dtype when the layer was given it.
        axis_name: mapped axes that the mean is over as well.
        axis_index_groups: groups of their indices, as `jax.lax.pmean` takes them.
        weight_offset: a number added to the weight, in float32 at least.
        implementation: "ptx": the kernel, also where x has to be converted or transposed for it; "xla":
            the plain formula; None: the kernel on a GPU where it takes x as it is and gives the result,
            and the formula elsewhere.

    Raises:
        NotImplementedError: for "ptx" where no kernel gives what the layer computes.
        TypeError: for what `settings` refuses, an epsilon that is None, or a weight of another size than its
            axes of x.
        ValueError: for what `settings` refuses.
    """
    offset = settings(weight_offset, implementation, weight is not None)
    if eps is None:
        raise TypeError("RMSNorm: the epsilon must be a number, got None")
    sizes = tuple(x.shape[axis] for axis in features)
    if weight is not None and weight.size != math.prod(sizes):
        raise TypeError(
            f"RMSNorm: a weight of shape {weight.shape} does not fit an x of shape {x.shape}, whose axes "
            f"{features} it is for: it must have shape {sizes}"
        )
    # The originals' promotions, also where the caller made JAX strict.
    with jax.numpy_dtype_promotion("standard"):
        dtype = _kernel_dtype(x, weight, bias, statistic, result)
        obstacle = "a mask" if mask is not None else "axis_name" if axis_name is not None else None
        obstacle = obstacle or _obstacle(x, weight, bias, reduced, features, eps, statistic, dtype)
        trailing = reduced == tuple(range(x.ndim - len(reduced), x.ndim))
        as_it_is = trailing and x.dtype == dtype == result and not converted and bias is None
        if obstacle is None and (as_it_is or implementation == "ptx"):
            options: dict[str, Any] = {"eps": _constant(eps), "implementation": implementation}
            if weight is not None:
                options["weight_offset"] = offset
            y = _by_rows(x.astype(dtype), weight, reduced, features, options)
            if bias is not None:
                y = y + _along(bias, x, features).astype(dtype)
            return y.astype(result)
        if implementation == "ptx":
            raise NotImplementedError(
                f"RMSNorm: implementation='ptx' asks for the kernel, and it has none for {obstacle}; "
                "implementation=None computes that the plain way"
            )
        if weight is not None and offset != 0:
            wide = jnp.promote_types(weight.dtype, jnp.float32)
            weight = weight.astype(wide) + jnp.asarray(offset, wide)
        if jnp.promote_types(x.dtype, statistic) == statistic:
            x = x.astype(statistic)  # once, so that its gradient is rounded once
        mean = square(x.astype(statistic)).mean(reduced, keepdims=True, where=mask)
        if axis_name is not None:
            mean = jax.lax.pmean(mean, axis_name, axis_index_groups=axis_index_groups)
        scale = jax.lax.rsqrt(mean + eps)
        if weight is not None:
            scale = scale * _along(weight, x, features)
        y = x * scale
        return (y if bias is None else y + _along(bias, x, features)).astype(result)


def _kernel_dtype(
    x: jax.Array,
    weight: jax.Array | None,
    bias: jax.Array | None,
    statistic: jnp.dtype,
    result: jnp.dtype,
) -> jnp.dtype:
    """What x is converted to for the kernel: its last rounding has to be the layer's."""
    dtypes = [x.dtype, statistic, result, *(v.dtype for v in (weight, bias) if v is not None)]
    if jnp.dtype(jnp.float64) in dtypes:
        return jnp.dtype(jnp.float64)
    once = x.dtype == result and x.dtype.name in DTYPES and bias is None
    return x.dtype if once else jnp.dtype(jnp.float32)


def _obstacle(
    x: jax.Array,
    weight: jax.Array | None,
    bias: jax.Array | None,
    reduced: tuple[int, ...],
    features: tuple[int, ...],
    eps: Any,
    statistic: jnp.dtype,
    dtype: jnp.dtype,
) -> str | None:
    """What the kernel does not serve, in words: it must give what the formula gives, to rounding."""
    if not reduced:
        return "a mean over no axis"
    if not all(isinstance(x.shape[axis], int) for axis in reduced):
        return f"a mean over axes of symbolic length, {x.shape}"
    # A split row would have to be gathered; JAX sums over the devices what each has of it.
    specs: list[tuple[Any, Iterable[int]]] = [(jax.typeof(x).sharding.spec.partitions, reduced)]
    if weight is not None:
        specs.append((jax.typeof(weight).sharding.spec.partitions, range(weight.ndim)))
        if not set(features) <= set(reduced):
            return f"a weight on axes {features} where the mean is over {reduced}"
    if any(spec[axis] is not None for spec, axes in specs for axis in axes):
        return "rows or a weight that an explicit mesh splits"
    for value in (x, weight, bias):
        if value is not None and not (value.dtype.name in DTYPES or _is_whole(value.dtype)):
            return f"dtype {value.dtype}"
    if statistic not in (jnp.float32, jnp.float64):
        return f"a mean computed in {statistic}"
    # It is part of the kernel; the originals also take an array, or a number that makes no sense.
    constant, limits = _constant(eps), jnp.finfo(accumulation_dtype(dtype))
    if constant is None:
        return "an epsilon that is not a number known while tracing"
    if not (constant == 0 or limits.tiny <= constant <= limits.max):
        return f"epsilon {eps}"
    return None


def _is_whole(dtype: jnp.dtype) -> bool:
    return dtype.kind == "b" or jnp.issubdtype(dtype, jnp.integer)


def _constant(value: Any) -> float | None:
    """A real number known while tracing, of Python's, NumPy's or JAX's; None for all else."""
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        if isinstance(value, Tracer) or value.shape != ():
            return None
        real = jnp.issubdtype(value.dtype, jnp.floating) or jnp.issubdtype(value.dtype, jnp.integer)
        return float(value) if real else None
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return None
    try:
        return float(value)
    except OverflowError:  # an int past every float
        return math.inf


def _by_rows(
    x: jax.Array,
    weight: jax.Array | None,
    reduced: tuple[int, ...],
    features: tuple[int, ...],
    options: dict[str, Any],
) -> jax.Array:
    if weight is not None:
        if _is_whole(weight.dtype):
            weight = weight.astype(accumulation_dtype(x.dtype))
        along = weight.reshape([x.shape[axis] if axis in features else 1 for axis in reduced])
        weight = jnp.broadcast_to(along, [x.shape[axis] for axis in reduced]).reshape(-1)
    order = [axis for axis in range(x.ndim) if axis not in reduced] + list(reduced)
    last = x.transpose(order)
    lead, row = last.shape[: x.ndim - len(reduced)], last.shape[x.ndim - len(reduced) :]
    rows = last if len(reduced) == 1 else last.reshape(*lead, math.prod(row))
    y = rms_norm(rows, weight, **options)
    return y.reshape(last.shape).transpose(np.argsort(order))


def _along(value: jax.Array, x: jax.Array, features: tuple[int, ...]) -> jax.Array:
    """A weight or a bias with x's rank."""
    return value.reshape([x.shape[axis] if axis in features else 1 for axis in range(x.ndim)])
