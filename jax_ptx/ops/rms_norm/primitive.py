"""The primitives of RMS norm: forward, tangent and backward; each with its rules in one order.

x is `[*lead, n]` with two or more leading dimensions, the weight `[n]` or `[*lead[:k], n]`, rstd
`[*lead]`. Every rule keeps x's leading dimensions apart: merging them would merge sharded axes. A mapped
axis is one more of them, so that dw stays apart for each example.

The JVP of the forward primitive binds the tangent, which is linear in its last operands; the transpose
of that binds the fused backward. The latter two are differentiated again through their formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jax_ptx.launch import bind_varying, new_primitive
from jax_ptx.ops import rowwise
from jax_ptx.ops.rms_norm import kernels, kernels_backward, reference
from jax_ptx.ops.rms_norm.config import Parts, backward_parts
from jax_ptx.ops.rowwise import Role

rms_norm_p = new_primitive("ptx_rms_norm")
rms_norm_tangent_p = new_primitive("ptx_rms_norm_tangent")
rms_norm_backward_p = new_primitive("ptx_rms_norm_backward")


def _check(x: Any, weight: Sequence[Any]) -> None:
    for w in weight:
        if w.shape[-1] != x.shape[-1] or w.shape[:-1] != x.shape[: len(w.shape) - 1]:
            raise ValueError(f"rms_norm: weight {w.shape} does not belong to x {x.shape}")
    rowwise.check_feature_axis("rms_norm", x=x, **dict(zip(("weight",), weight, strict=False)))


def _is_zero(tangent: Any) -> bool:
    return type(tangent) is ad.Zero


# ---- forward: x, [weight] -> y, [rstd] ----


def _forward_abstract(
    x: Any, *weight: Any, eps: float, emulate: bool, with_rstd: bool
) -> list[Any]:
    _check(x, weight)
    sharding = rowwise.row_sharding(x, *weight)
    y = x.update(weak_type=False, sharding=sharding)
    return [y, rowwise.statistic(y)] if with_rstd else [y]


def _forward_batch(
    operands: Sequence[Any], axes: Sequence[int | None], **params: Any
) -> tuple[list[Any], list[int]]:
    position, operands = rowwise.batch(operands, axes, weights=range(1, len(operands)))
    results = bind_varying(rms_norm_p, *operands, **params)
    return results, [position] * len(results)


def _forward_jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, eps: float, emulate: bool, with_rstd: bool
) -> tuple[list[Any], list[Any]]:
    params = {"eps": eps, "emulate": emulate}
    y, rstd = bind_varying(rms_norm_p, *primals, **params, with_rstd=True)
    x, x_dot = primals[0], tangents[0]
    dots = [ad.instantiate_zeros(t) for t in tangents]
    (y_dot,) = bind_varying(rms_norm_tangent_p, *primals, rstd, *dots, emulate=emulate)
    if not with_rstd:
        return [y], [y_dot]
    if _is_zero(x_dot):
        return [y, rstd], [y_dot, ad.Zero(jax.typeof(rstd).to_tangent_aval())]
    return [y, rstd], [y_dot, reference.rstd_tangent(x, rstd, x_dot)]


def _forward_transpose(
    cotangents: Sequence[Any], x: Any, *weight: Any, eps: float, emulate: bool, with_rstd: bool
) -> list[Any]:
    if ad.is_undefined_primal(x):
        raise NotImplementedError(
            "rms_norm: it is not linear in x and has no transpose there; jax.vjp differentiates it"
        )
    dy, *_ = cotangents  # rstd does not depend on the weight
    if _is_zero(dy):
        return [None, None]
    _, rstd = bind_varying(rms_norm_p, x, eps=eps, emulate=emulate, with_rstd=True)
    # The kernel has the weight as an operand, and does not need its values for dw alone.
    values = jnp.ones(weight[0].aval.shape, weight[0].aval.dtype)
    return [None, _weight_cotangent(x, values, rstd, dy, emulate=emulate)]


def _forward_formula(
    x: Any, *weight: Any, eps: float, emulate: bool, with_rstd: bool
) -> list[jax.Array]:
    y, rstd = reference.forward(x, *weight, eps=eps)
    return [y, rstd] if with_rstd else [y]


def _forward_launch(
    x: Any, *weight: Any, eps: float, emulate: bool, with_rstd: bool
) -> rowwise.Call:
    launch = kernels.forward_launch(
        n=x.shape[-1], x_dtype=x.dtype.name, eps=eps, with_rstd=with_rstd, **_weight_facts(weight)
    )
    roles = (Role.ROWS, *[Role.WEIGHT] * len(weight), Role.ROWS, *[Role.STATISTIC] * with_rstd)
    return rowwise.Call(launch, tuple(range(1 + len(weight))), roles)


# ---- tangent: x, [weight], rstd, x_dot, [weight_dot] -> y_dot ----


def _split_tangent(operands: Sequence[Any]) -> tuple[Any, Any, Any, Any, Any]:
    """x, weight, rstd, x_dot, weight_dot, with None for a weight that is not there."""
    if len(operands) == 3:
        x, rstd, x_dot = operands
        return x, None, rstd, x_dot, None
    x, weight, rstd, x_dot, weight_dot = operands
    return x, weight, rstd, x_dot, weight_dot


def _tangent_abstract(*operands: Any, emulate: bool) -> list[Any]:
    x, weight, *_ = _split_tangent(operands)
    weights = () if weight is None else (weight,)
    return [x.update(weak_type=False, sharding=rowwise.row_sharding(x, *weights))]


def _tangent_batch(
    operands: Sequence[Any], axes: Sequence[int | None], **params: Any
) -> tuple[list[Any], list[int]]:
    weights = (1, 4) if len(operands) == 5 else ()
    position, operands = rowwise.batch(operands, axes, weights=weights)
    return bind_varying(rms_norm_tangent_p, *operands, **params), [position]


def _tangent_formula(*operands: Any, emulate: bool) -> list[jax.Array]:
    return [reference.tangent(*_split_tangent(operands))]


def _tangent_jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, emulate: bool
) -> tuple[list[Any], list[Any]]:
    n_linear = 2 if len(primals) == 5 else 1
    fixed, linear = primals[:-n_linear], primals[-n_linear:]
    fixed_dots, linear_dots = tangents[:-n_linear], tangents[-n_linear:]
    result = bind_varying(rms_norm_tangent_p, *primals, emulate=emulate)
    dots = []
    if not all(map(_is_zero, linear_dots)):
        # The primitive again: linear in these operands, it is its own derivative.
        values = map(ad.instantiate_zeros, linear_dots)
        dots += bind_varying(rms_norm_tangent_p, *fixed, *values, emulate=emulate)
    if not all(map(_is_zero, fixed_dots)):
        formula = lambda *values: _tangent_formula(*values, *linear, emulate=emulate)[0]
        values = [ad.instantiate_zeros(t) for t in fixed_dots]
        dots.append(jax.jvp(formula, list(fixed), values)[1])
    if not dots:
        return result, [ad.Zero(jax.typeof(result[0]).to_tangent_aval())]
    return result, [dots[0] if len(dots) == 1 else dots[0] + dots[1]]


def _tangent_transpose(cotangents: Sequence[Any], *operands: Any, emulate: bool) -> list[Any]:
    (dy,) = cotangents
    x, weight, rstd, x_dot, weight_dot = _split_tangent(operands)
    needs = [ad.is_undefined_primal(t) for t in (x_dot, weight_dot)]
    empty = [None] * (len(operands) - (1 if weight is None else 2))
    if _is_zero(dy):
        return [None] * len(operands)
    parts = None
    if weight is not None and needs[1]:
        parts = _parts(x, weight)
    weights = [] if weight is None else [weight]
    results = bind_varying(
        rms_norm_backward_p, x, *weights, rstd, dy, need_dx=needs[0], parts=parts, emulate=emulate
    )
    dx = results.pop(0) if needs[0] else None
    if weight is None:
        return [*empty, dx]
    return [*empty, dx, _sum_partials(results[0], weight) if results else None]


def _parts(x: Any, weight: Any) -> Parts:
    lead, known = x.shape[:-1], rowwise.shards(jax.typeof(x))
    return backward_parts(lead, known, weight.ndim - 1, jax.device_count())


def _sum_partials(partials: jax.Array, weight: Any) -> jax.Array:
    return partials.sum(tuple(range(weight.ndim - 1, partials.ndim - 1))).astype(weight.dtype)


def _weight_cotangent(x: Any, weight: Any, rstd: Any, dy: Any, *, emulate: bool) -> jax.Array:
    (partials,) = bind_varying(
        rms_norm_backward_p,
        *(x, weight, rstd, dy),
        need_dx=False,
        parts=_parts(x, weight),
        emulate=emulate,
    )
    return _sum_partials(partials, weight)


# ---- backward: x, [weight], rstd, dy -> [dx], [partial sums of dw] ----


def _split_backward(operands: Sequence[Any]) -> tuple[Any, Any, Any, Any]:
    """x, weight, rstd, dy, with None for a weight that is not there."""
    x, *weight, rstd, dy = operands
    return x, weight[0] if weight else None, rstd, dy


def _backward_abstract(
    *operands: Any, need_dx: bool, parts: Parts | None, emulate: bool
) -> list[Any]:
    x, weight, *_ = _split_backward(operands)
    weights = () if weight is None else (weight,)
    _check(x, weights)
    dx = x.update(weak_type=False, sharding=rowwise.row_sharding(x, *weights))
    dw = [] if parts is None else [rowwise.partial_sums(dx, parts.blocks, parts.runs)]
    return [dx, *dw] if need_dx else dw


def _backward_batch(
    operands: Sequence[Any],
    axes: Sequence[int | None],
    *,
    parts: Parts | None,
    **params: Any,
) -> tuple[list[Any], list[int]]:
    weights = (1,) if len(operands) == 4 else ()
    position, operands = rowwise.batch(operands, axes, weights=weights)
    if parts is not None:
        parts = parts.insert(position, operands[0].shape[position])
    results = bind_varying(rms_norm_backward_p, *operands, parts=parts, **params)
    return results, [position] * len(results)


def _backward_formula(
    *operands: Any, need_dx: bool, parts: Parts | None, emulate: bool
) -> list[jax.Array]:
    return reference.backward(*_split_backward(operands), need_dx=need_dx, parts=parts)


def _backward_jvp(
    primals: Sequence[Any], tangents: Sequence[Any], **params: Any
) -> tuple[list[Any], list[Any]]:
    results = bind_varying(rms_norm_backward_p, *primals, **params)
    formula = lambda *values: _backward_formula(*values, **params)
    _, dots = jax.jvp(formula, list(primals), [ad.instantiate_zeros(t) for t in tangents])
    return results, dots


def _backward_launch(
    *operands: Any, need_dx: bool, parts: Parts | None, emulate: bool
) -> rowwise.Call | None:
    x, weight, *_ = _split_backward(operands)
    weights = () if weight is None else (weight,)
    launch = kernels_backward.backward_launch(
        n=x.shape[-1],
        x_dtype=x.dtype.name,
        need_dx=need_dx,
        need_dw=parts is not None,
        **_weight_facts(weights),
    )
    if launch is None:
        return None
    # The kernel's order is x, dy, rstd, weight: XLA's partitioner goes by the rank of the first.
    order = (0, 2, 1) if weight is None else (0, 3, 2, 1)
    roles = (Role.ROWS, Role.ROWS, Role.STATISTIC, *[Role.WEIGHT] * len(weights))
    roles += (*[Role.ROWS] * need_dx, *[Role.PARTIAL] * (parts is not None))
    blocks, runs = (parts.blocks, parts.runs) if parts else (None, 1)
    return rowwise.Call(launch, order, roles, blocks, runs)


def _weight_facts(weight: Sequence[Any]) -> dict[str, Any]:
    return {
        "weight_dtype": weight[0].dtype.name if weight else None,
        "grouped": bool(weight) and weight[0].ndim > 1,
    }


# ---- lowering ----


def _lowering(
    ptx: bool | None,
    formula: Callable[..., list[jax.Array]],
    launch_of: Callable[..., rowwise.Call | None],
) -> Callable[..., Any]:
    """A lowering rule.

    Args:
        ptx: True: the kernel. None: the kernel where it is asked for, for the emulator checks, it does
            not compete with XLA. False: never.
        formula: the plain JAX formula.
        launch_of: the call for given types; None: the kernel does not take rows so long.
    """
    lower_formula = mlir.lower_fun(formula, multiple_results=True)

    def rule(ctx: mlir.LoweringRuleContext, *operands: Any, **params: Any) -> Any:
        emulate = params["emulate"]
        if ptx is False and emulate:
            raise NotImplementedError(
                "rms_norm: implementation='ptx' runs on an NVIDIA GPU or, emulated, on a CPU; "
                "implementation=None takes the plain formula elsewhere"
            )
        call = launch_of(*ctx.avals_in, **params) if ptx or emulate else None
        if call is None:
            return lower_formula(ctx, *operands, **params)
        return rowwise.lower(ctx, operands, call)

    return rule


def _register(
    primitive: Primitive,
    abstract: Callable[..., Any],
    batch: Callable[..., Any],
    jvp: Callable[..., Any],
    formula: Callable[..., Any],
    launch_of: Callable[..., Any],
) -> None:
    primitive.def_abstract_eval(abstract)
    batching.primitive_batchers[primitive] = batch
    ad.primitive_jvps[primitive] = jvp
    mlir.register_lowering(primitive, _lowering(False, formula, launch_of))
    for platform, ptx in (("cpu", None), ("cuda", True)):
        rule = _lowering(ptx, formula, launch_of)
        # inline=False: call sites that are alike share one copy of the text.
        mlir.register_lowering(primitive, rule, platform=platform, inline=False)


_register(
    rms_norm_p,
    _forward_abstract,
    _forward_batch,
    _forward_jvp,
    _forward_formula,
    _forward_launch,
)
_register(
    rms_norm_backward_p,
    _backward_abstract,
    _backward_batch,
    _backward_jvp,
    _backward_formula,
    _backward_launch,
)
rms_norm_tangent_p.def_abstract_eval(_tangent_abstract)
batching.primitive_batchers[rms_norm_tangent_p] = _tangent_batch
ad.primitive_jvps[rms_norm_tangent_p] = _tangent_jvp
ad.primitive_transposes[rms_norm_tangent_p] = _tangent_transpose
ad.primitive_transposes[rms_norm_p] = _forward_transpose
mlir.register_lowering(rms_norm_tangent_p, mlir.lower_fun(_tangent_formula, multiple_results=True))
