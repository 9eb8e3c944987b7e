"""The primitive that adds up partial sums of one device, `[*lead, n]` -> `[n]`: a kernel on a GPU.

For partial sums that XLA may split over devices there is its own sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import ad
from jax.sharding import NamedSharding, PartitionSpec

from jax_ptx.launch import bind_varying, new_primitive
from jax_ptx.ops import lowering, rowwise
from jax_ptx.ops.columns import column_sum_launch
from jax_ptx.ops.rowwise import Role

column_sum_p = new_primitive("ptx_column_sum")


def column_sum(parts: jax.Array, dtype: Any, *, emulate: bool) -> jax.Array:
    """The sums over all dimensions but the last, rounded last (to 16 bits by way of float32, as in JAX).

    Args:
        parts: `[*lead, n]`, float32 or float64; on one device, or the same on each.
        dtype: the result's.
        emulate: whether a CPU runs the kernel, in the emulator.
    """
    dtype = jnp.dtype(dtype).name
    (sums,) = bind_varying(column_sum_p, parts, dtype=dtype, emulate=emulate)
    return sums


def _abstract(parts: Any, *, dtype: str, **_: Any) -> list[Any]:
    whole = NamedSharding(parts.sharding.mesh, PartitionSpec())
    return [parts.update(shape=parts.shape[-1:], dtype=jnp.dtype(dtype), sharding=whole)]


def _batch(
    values: Sequence[Any], axes: Sequence[int], *, dtype: str, emulate: bool
) -> tuple[list[Any], list[int]]:
    mapped = jnp.moveaxis(values[0], axes[0], 0)
    return [mapped.sum(tuple(range(1, mapped.ndim - 1))).astype(dtype)], [0]


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
    dots = _formula(ad.instantiate_zeros(tangents[0]), **params)
    return bind_varying(column_sum_p, *primals, **params), dots


def _formula(parts: jax.Array, *, dtype: str, emulate: bool) -> list[jax.Array]:
    return [parts.sum(tuple(range(parts.ndim - 1))).astype(dtype)]


def _launch(parts: Any, *, dtype: str, emulate: bool) -> rowwise.Call:
    *lead, n = parts.shape
    launch = column_sum_launch(math.prod(lead), n, parts.dtype.name, dtype)
    return rowwise.Call(launch, (Role.PARTIAL, Role.WEIGHT), n_cut=0)


def _transpose(cotangents: Sequence[Any], parts: Any, **_: Any) -> list[Any]:
    (sums,) = cotangents
    if type(sums) is ad.Zero:
        return [None]
    return [jnp.broadcast_to(sums.astype(parts.aval.dtype), parts.aval.shape)]


lowering.register(
    column_sum_p,
    abstract=_abstract,
    batch=_batch,
    jvp=_jvp,
    formula=_formula,
    launch_of=_launch,
)
ad.primitive_transposes[column_sum_p] = _transpose
