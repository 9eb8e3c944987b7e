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
from jax_ptx.ops.rms_norm.config_backward import backward_config
from jax_ptx.ops.rms_norm.config_few import few_rows, takes_slices
from jax_ptx.ops.rms_norm.operands import Names, by_name
from jax_ptx.ops.rms_norm.parts import Parts, backward_parts
from jax_ptx.ops.rowwise import Role
from jax_ptx.ops.target import device_target, has_wide_clusters
from jax_ptx.types import by_numpy_name

rms_norm_backward_p = new_primitive("ptx_rms_norm_backward")


def backward(
    at: Mapping[str, Any], *, need_dx: bool, need_dw: bool, **params: Any
) -> tuple[Any, Any]:
    """dx and dw, None where they are not needed: one kernel, and where there are many rows one that sums
    its partial sums.
    """
    x, weight = at["x"], at.get("weight")
    parts = None
    if need_dw and weight is not None:
        known = rowwise.shards(jax.typeof(x))
        rows = (x.shape[-1], by_numpy_name(x.dtype.name), device_target())
        config, few = backward_config(*rows, wide=has_wide_clusters()), few_rows(*rows)
        runs = config.runs if config else 1
        n_devices = max(_most_devices(), jax.typeof(x).sharding.mesh.size)
        parts = backward_parts(x.shape[:-1], known, weight.ndim - 1, n_devices, runs, few)
        if (weight.dtype == jnp.float64) != (
            x.dtype == jnp.float64
        ):  # a kernel rounds from float32
            parts = dataclasses.replace(parts, final=False)
        if parts.n_whole and weight.ndim == 1:
            at, parts = _behind_one(at, parts)
    results = operands.bind(rms_norm_backward_p, at, need_dx=need_dx, parts=parts, **params)
    dx, dw = results.pop(0) if need_dx else None, None
    if dx is not None and dx.ndim > x.ndim:
        dx = dx[0]
    if parts is not None and weight is not None:
        (sums,) = results
        if parts.n_whole and parts.runs > 1 and weight.ndim == 1:
            dw = column_sum(sums, weight.dtype, emulate=params["emulate"])
        else:
            summed = tuple(range(weight.ndim - 1, sums.ndim - 1))
            dw = sums.squeeze(summed) if parts.final else sums.sum(summed).astype(weight.dtype)
    return dx, dw


def _behind_one(at: Mapping[str, Any], parts: Parts) -> tuple[dict[str, Any], Parts]:
    """Rows with a leading dimension of 1, before which vmap adds others: XLA may cut those, and it may
    not be told to cut just one (see `partition.py`).
    """
    if isinstance(at["x"].shape[0], int) and at["x"].shape[0] == 1:
        return dict(at), dataclasses.replace(parts, n_whole=parts.n_whole - 1)
    rows = {
        name: value if value is None or name == "weight" else value[None]
        for name, value in at.items()
    }
    return rows, dataclasses.replace(parts, blocks=(1, *parts.blocks))


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


def _transpose(cotangents: Sequence[Any], *values: Any, names: Names, **params: Any) -> list[Any]:
    """Of what is linear in dy and the addend; the formula's, as for derivatives."""
    asked = [
        name for name, value in by_name(names, values).items() if ad.is_undefined_primal(value)
    ]
    if not {"dy", "addend"} >= set(asked):
        raise NotImplementedError(
            f"rms_norm: its gradient is not linear in {asked[0]} and has no transpose there; jax.vjp "
            "differentiates it"
        )
    at = by_name(names, values)

    def of_linear(*linear: Any) -> list[jax.Array]:
        return _formula(*(at | by_name(tuple(asked), linear)).values(), names=names, **params)

    zeros = [ad.instantiate_zeros(operands.zero_like(at[name].aval)) for name in asked]
    _, pull = jax.vjp(of_linear, *zeros)
    found = by_name(tuple(asked), pull([ad.instantiate_zeros(ct) for ct in cotangents]))
    return [found.get(name) for name in names]


def _launch(
    *values: Any,
    names: Names,
    weight_offset: float,
    need_dx: bool,
    parts: Parts | None,
    emulate: bool,
) -> rowwise.Call | None:
    at, few = by_name(names, values), None
    (*lead, n), dtype, target = at["x"].shape, at["x"].dtype.name, device_target()
    if parts is not None and parts.runs == 1:
        few = takes_slices(lead, parts.blocks, n, by_numpy_name(dtype), target)
    launch = kernels_backward.backward_launch(
        n=n,
        x_dtype=dtype,
        weight_offset=weight_offset,
        addend="addend" in at,
        need_dx=need_dx,
        runs=parts.runs if parts else 0,
        final=parts is not None and parts.final,
        one_block=parts is not None and math.prod(parts.blocks) == 1,
        few=few,
        target=target,
        wide_clusters=has_wide_clusters(),
        **operands.weight_facts(at.get("weight")),
    )
    if launch is None:
        return None
    results = (*[Role.ROWS] * need_dx, *[Role.PARTIAL] * (parts is not None))
    blocks, runs = (parts.blocks, parts.runs) if parts else (None, 1)
    n_cut = None
    if parts is not None and parts.n_whole:
        n_cut = len(parts.blocks) - parts.n_whole
    return rowwise.Call(launch, (*operands.roles(names), *results), blocks, runs, n_cut)


lowering.register(
    rms_norm_backward_p,
    abstract=_abstract,
    batch=_batch,
    jvp=_jvp,
    formula=_formula,
    launch_of=_launch,
)
ad.primitive_transposes[rms_norm_backward_p] = _transpose
