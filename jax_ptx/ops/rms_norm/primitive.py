"""The primitive of RMS norm and its rules, in the order: abstract, batching, JVP, lowering.

Operands are x `[*lead, n]` with two or more leading dimensions and, optionally, a weight `[n]` or
`[*lead[:k], n]`. Every rule keeps x's leading dimensions apart: merging them would merge sharded axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import ad, batching, mlir

from jax_ptx.launch import bind_varying, new_primitive, ptx_lowering
from jax_ptx.ops import rowwise
from jax_ptx.ops.rms_norm import kernels
from jax_ptx.ops.rms_norm.reference import rms_norm as reference

rms_norm_p = new_primitive("ptx_rms_norm")


def _rms_norm_abstract(x: Any, *weight: Any, eps: float, emulate: bool) -> list[Any]:
    for w in weight:
        if w.shape[-1] != x.shape[-1] or w.shape[:-1] != x.shape[: len(w.shape) - 1]:
            raise ValueError(f"rms_norm: weight {w.shape} does not belong to x {x.shape}")
    rowwise.check_feature_axis("rms_norm", **dict(zip(("x", "weight"), (x, *weight), strict=False)))
    return [x.update(weak_type=False, sharding=rowwise.row_sharding(x, *weight))]


def _rms_norm_batch(
    operands: Sequence[Any], axes: Sequence[int | None], **params: Any
) -> tuple[list[Any], list[int]]:
    (x, *weight), (x_axis, *weight_axis) = operands, axes
    position = 0
    if x_axis is None:
        size = weight[0].shape[weight_axis[0]]
        x, x_axis = jnp.broadcast_to(x, (size, *x.shape)), 0
    if weight and weight_axis[0] is not None:
        weight = [jnp.moveaxis(weight[0], weight_axis[0], 0)]
    elif weight:  # a weight that is not mapped stays as it is: its leading dimensions come first
        position = weight[0].ndim - 1
    x = jnp.moveaxis(x, x_axis, position)
    return bind_varying(rms_norm_p, x, *weight, **params), [position]


def _rms_norm_jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, eps: float, emulate: bool
) -> tuple[list[Any], list[Any]]:
    results = bind_varying(rms_norm_p, *primals, eps=eps, emulate=emulate)
    active = [index for index, tangent in enumerate(tangents) if type(tangent) is not ad.Zero]

    def formula(*values: Any) -> jax.Array:
        operands = list(primals)
        for index, value in zip(active, values, strict=True):
            operands[index] = value
        return reference(*operands, eps=eps)

    _, tangent = jax.jvp(formula, [primals[i] for i in active], [tangents[i] for i in active])
    return results, [tangent]


def _rms_norm_formula(
    x: jax.Array, *weight: jax.Array, eps: float, emulate: bool
) -> list[jax.Array]:
    return [reference(x, *weight, eps=eps)]


def _rms_norm_ptx(ctx: mlir.LoweringRuleContext, *operands: Any, eps: float, emulate: bool) -> Any:
    avals: list[Any] = [*ctx.avals_in, *ctx.avals_out]
    x, *weight = avals[: len(operands)]
    n_grouped = weight[0].ndim - 1 if weight else 0
    launch = kernels.forward_launch(
        n=x.shape[-1],
        x_dtype=x.dtype.name,
        weight_dtype=weight[0].dtype.name if weight else None,
        grouped=n_grouped > 0,
        eps=eps,
    )
    attributes = rowwise.partition_attributes(x.ndim - 1, n_grouped, avals, len(operands))
    return ptx_lowering(ctx, *operands, launch=launch, extra_attributes=attributes)


_lower_formula = mlir.lower_fun(_rms_norm_formula, multiple_results=True)


def _rms_norm_cpu(ctx: mlir.LoweringRuleContext, *operands: Any, eps: float, emulate: bool) -> Any:
    # The emulator checks; it does not compete with XLA. It runs by asking for it.
    lower = _rms_norm_ptx if emulate else _lower_formula
    return lower(ctx, *operands, eps=eps, emulate=emulate)


def _rms_norm_elsewhere(
    ctx: mlir.LoweringRuleContext, *operands: Any, eps: float, emulate: bool
) -> Any:
    if emulate:
        raise NotImplementedError(
            "rms_norm: implementation='ptx' runs on an NVIDIA GPU or, emulated, on a CPU; "
            "implementation=None takes the plain formula elsewhere"
        )
    return _lower_formula(ctx, *operands, eps=eps, emulate=emulate)


rms_norm_p.def_abstract_eval(_rms_norm_abstract)
batching.primitive_batchers[rms_norm_p] = _rms_norm_batch
ad.primitive_jvps[rms_norm_p] = _rms_norm_jvp
mlir.register_lowering(rms_norm_p, _rms_norm_elsewhere)
mlir.register_lowering(rms_norm_p, _rms_norm_cpu, platform="cpu", inline=False)
mlir.register_lowering(rms_norm_p, _rms_norm_ptx, platform="cuda", inline=False)
