"""The backward primitive: x, dy, [addend], rstd, [weight] -> [dx], [partial sums of dw].

The operands' order is the kernel's: XLA's partitioner goes by the rank of the first.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import ad

from jax_ptx.launch import new_primitive
from jax_ptx.ops import lowering, rowwise
from jax_ptx.ops.column_sum import column_sum
from jax_ptx.ops.rms_norm import kernels_backward, operands, reference
from jax_ptx.ops.rms_norm.config import Parts, backward_config, backward_parts
from jax_ptx.ops.rms_norm.operands import Names, by_name
from jax_ptx.ops.rowwise import Role
from jax_ptx.ops.target import device_target
from jax_ptx.types import by_numpy_name

rms_norm_backward_p = new_primitive("ptx_rms_norm_backward")


def backward(
    at: Mapping[str, Any], *, need_dx: bool, need_dw: bool, **params: Any
) -> tuple[Any, Any]:
    """dx and dw, None where they are not needed; one kernel, and one that sums its partial sums."""
    x, weight = at["x"], at.get("weight")
    parts = None
    if need_dw and weight is not None:
        known = rowwise.shards(jax.typeof(x))
        config = backward_config(x.shape[-1], by_numpy_name(x.dtype.name), device_target())
        runs = config.runs if config else 1
        parts = backward_parts(x.shape[:-1], known, weight.ndim - 1, _most_devices(), runs)
        if (weight.dtype == jnp.float64) != (
            x.dtype == jnp.float64
        ):  # a kernel rounds from float32
            parts = dataclasses.replace(parts, final=False)
    results = operands.bind(rms_norm_backward_p, at, need_dx=need_dx, parts=parts, **params)
    dx, dw = results.pop(0) if need_dx else None, None
    if parts is not None and weight is not None:
        (sums,) = results
        if parts.whole and parts.runs > 1 and weight.ndim == 1:
            dw = column_sum(sums, weight.dtype, emulate=params["emulate"])
        else:
            dw = sums.sum(tuple(range(weight.ndim - 1, sums.ndim - 1))).astype(weight.dtype)
    return dx, dw


def _most_devices() -> int:
    """Whatever backend the program is for: a CPU may be cut into more devices than there are GPUs."""
    try:
        on_cpu = jax.device_count("cpu")
    except RuntimeError:  # JAX_PLATFORMS names others alone
        on_cpu = 0
    return max(jax.device_count(), on_cpu)


def _abstract(
    *values: Any, names: Names, need_dx: bool, parts: Parts | None, **_: Any
) -> list[Any]:
    at = by_name(names, values)
    dx, dw = operands.result_type(at), []
    if parts is not None:
        dtype = at["weight"].dtype if parts.final else None
        dw = [rowwise.partial_sums(dx, parts.blocks, parts.runs, dtype)]
    return [dx, *dw] if need_dx else dw


def _batch(
    values: Sequence[Any],
    axes: Sequence[int | None],
    *,
    names: Names,
    parts: Parts | None,
    **params: Any,
) -> tuple[list[Any], list[int]]:
    position, moved = rowwise.batch(values, axes, operands.roles(names))
    if parts is not None:
        parts = parts.insert(position, moved[0].shape[position])
    at = by_name(names, moved)
    results = operands.bind(rms_norm_backward_p, at, parts=parts, **params)
    return results, [position] * len(results)


def _formula(*values: Any, names: Names, emulate: bool, **params: Any) -> list[jax.Array]:
    return reference.backward(**by_name(names, values), **params)


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, names: Names, **params: Any
) -> tuple[list[Any], list[Any]]:
    results = operands.bind(rms_norm_backward_p, by_name(names, primals), **params)
    formula = lambda *values: _formula(*values, names=names, **params)
    _, dots = jax.jvp(formula, list(primals), [ad.instantiate_zeros(t) for t in tangents])
    return results, dots


def _launch(
    *values: Any,
    names: Names,
    weight_offset: float,
    need_dx: bool,
    parts: Parts | None,
    emulate: bool,
) -> rowwise.Call | None:
    at = by_name(names, values)
    launch = kernels_backward.backward_launch(
        n=at["x"].shape[-1],
        x_dtype=at["x"].dtype.name,
        weight_offset=weight_offset,
        addend="addend" in at,
        need_dx=need_dx,
        runs=parts.runs if parts else 0,
        final=parts is not None and parts.final,
        one_block=parts is not None and math.prod(parts.blocks) == 1,
        target=device_target(),
        **operands.weight_facts(at.get("weight")),
    )
    if launch is None:
        return None
    results = (*[Role.ROWS] * need_dx, *[Role.PARTIAL] * (parts is not None))
    blocks, runs = (parts.blocks, parts.runs) if parts else (None, 1)
    may_be_cut = parts is None or not parts.whole
    return rowwise.Call(launch, (*operands.roles(names), *results), blocks, runs, may_be_cut)


lowering.register(
    rms_norm_backward_p,
    abstract=_abstract,
    batch=_batch,
    jvp=_jvp,
    formula=_formula,
    launch_of=_launch,
)
