"""The forward primitive: x, [residual], [weight], [scale] -> y, [x + residual], [rstd].

x is `[*lead, n]` with two or more leading dimensions, the weight `[n]` or `[*lead[:k], n]`, rstd
`[*lead]`. Every rule keeps x's leading dimensions apart: merging them would merge sharded axes. A mapped
axis is one more of them, so that dw stays apart for each example.

Its JVP binds the tangent primitive (tangent.py), whose transpose binds the backward one (backward.py); both
are differentiated again through their formulas.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import ad

from jax_ptx.launch import new_primitive
from jax_ptx.ops import lowering, rowwise
from jax_ptx.ops.rms_norm import kernels, operands, reference
from jax_ptx.ops.rms_norm.backward import backward
from jax_ptx.ops.rms_norm.config import row_shares
from jax_ptx.ops.rms_norm.operands import Names, by_name, is_zero
from jax_ptx.ops.rms_norm.options import Options
from jax_ptx.ops.rms_norm.tangent import tangent
from jax_ptx.ops.rowwise import Role
from jax_ptx.ops.target import device_target
from jax_ptx.types import by_numpy_name

rms_norm_p = new_primitive("ptx_rms_norm")


def forward(
    at: Mapping[str, Any],
    *,
    options: Options,
    emulate: bool,
    out_dtype: str | None = None,
    with_rstd: bool = False,
) -> list[Any]:
    """y, then the sum where there is a residual, then rstd where it is asked for."""
    params = {"options": options, "emulate": emulate, "out_dtype": out_dtype}
    return operands.bind(rms_norm_p, at, with_rstd=with_rstd, **params)


def _abstract(
    *values: Any, names: Names, out_dtype: str | None, with_rstd: bool, **_: Any
) -> list[Any]:
    added = operands.result_type(by_name(names, values))
    y = added.update(dtype=jnp.dtype(out_dtype)) if out_dtype else added
    statistics = [rowwise.statistic(added)] if with_rstd else []
    return [y, *[added] * ("residual" in names), *statistics]


def _batch(
    values: Sequence[Any],
    axes: Sequence[int | None],
    *,
    names: Names,
    options: Options,
    **params: Any,
) -> tuple[list[Any], list[int]]:
    at, axis = by_name(names, values), by_name(names, axes)
    if axis.get("scale") is not None:
        at, axis, options = _scale_in_weight(at, axis, options)
    of = list(at.values()), list(axis.values())
    return operands.batch(rms_norm_p, tuple(at), *of, options=options, **params)


def _scale_in_weight(
    at: dict[str, Any], axis: dict[str, int | None], options: Options
) -> tuple[dict[str, Any], dict[str, int | None], Options]:
    """A mapped scale as part of a mapped weight, with the kernel's own roundings."""
    wide = reference.accumulation_dtype(at["x"].dtype)
    inverse = 1 / at["scale"].astype(wide)
    if "weight" in at:
        weight = reference.wide_weight(at["weight"], wide, options.weight_offset)
        weight = weight[None] if axis["weight"] is None else jnp.moveaxis(weight, axis["weight"], 0)
    else:
        n = jnp.moveaxis(at["x"], axis["x"] or 0, 0).shape[-1]
        weight = jnp.ones((1, n), wide)
    weight = weight * inverse.reshape(-1, *[1] * (weight.ndim - 1))
    rows = [name for name in ("x", "residual") if name in at]
    at = {**{k: at[k] for k in rows}, "weight": weight, "scale": jnp.ones((), jnp.float32)}
    axis = {**{k: axis[k] for k in rows}, "weight": 0, "scale": None}
    return at, axis, Options(options.eps, 0.0, options.round_before_weight)


def _jvp(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    names: Names,
    options: Options,
    emulate: bool,
    out_dtype: str | None,
    with_rstd: bool,
) -> tuple[list[Any], list[Any]]:
    if out_dtype:
        reference.refuse_derivative(out_dtype)
    at, dots = by_name(names, primals), by_name(names, tangents)
    y, *added, rstd = forward(at, options=options, emulate=emulate, with_rstd=True)
    x = added[0] if added else at["x"]
    # What is zero is no operand: as an array it would be kept for the backward pass.
    given = [dots[k] for k in ("x", "residual") if k in dots and not is_zero(dots[k])]
    x_dot = functools.reduce(operator.add, given) if given else None
    weight_dot = dots.get("weight")
    weight_dot = None if is_zero(weight_dot) else weight_dot
    fixed = {"x": x, "weight": at.get("weight"), "rstd": rstd}
    y_dot, *added_dot = tangent(
        {**fixed, "x_dot": x_dot, "weight_dot": weight_dot},
        weight_offset=options.weight_offset,
        with_added=bool(added and given),
        emulate=emulate,
    )
    if added and not given:
        added_dot = [operands.zero_like(jax.typeof(x))]
    if not with_rstd:
        return [y, *added], [y_dot, *added_dot]
    rstd_dot = operands.zero_like(jax.typeof(rstd))
    if x_dot is not None:
        rstd_dot = reference.rstd_tangent(x, rstd, x_dot)
    return [y, *added, rstd], [y_dot, *added_dot, rstd_dot]


def _transpose(
    cotangents: Sequence[Any],
    *values: Any,
    names: Names,
    options: Options,
    emulate: bool,
    out_dtype: str | None,
    with_rstd: bool,
) -> list[Any]:
    if out_dtype:
        reference.refuse_derivative(out_dtype)
    at = by_name(names, values)
    rows = {name: at.get(name) for name in ("x", "residual")}
    if any(map(ad.is_undefined_primal, rows.values())):
        raise NotImplementedError(
            "rms_norm: it is not linear in x and has no transpose there; jax.vjp differentiates it"
        )
    dy = cotangents[0]  # the sum and rstd do not depend on the weight
    if is_zero(dy):
        return [None] * len(names)
    _, *added, rstd = forward(rows, options=Options(options.eps), emulate=emulate, with_rstd=True)
    # The kernel has the weight as an operand, and does not need its values for dw alone.
    ones = jnp.ones(at["weight"].aval.shape, at["weight"].aval.dtype)
    x = added[0] if added else at["x"]
    _, dw = backward(
        {"x": x, "dy": dy, "rstd": rstd, "weight": ones},
        weight_offset=0.0,
        need_dx=False,
        need_dw=True,
        emulate=emulate,
    )
    return [dw if name == "weight" else None for name in names]


def _formula(
    *values: Any,
    names: Names,
    options: Options,
    emulate: bool,
    out_dtype: str | None,
    with_rstd: bool,
) -> list[jax.Array]:
    at = by_name(names, values)
    x, residual = at.pop("x"), at.pop("residual", None)
    added = [] if residual is None else [reference.add(x, residual)]
    y, rstd = reference.forward(*(added or [x]), **at, options=options, out_dtype=out_dtype)
    return [y, *added, rstd] if with_rstd else [y, *added]


def _launch(
    *values: Any,
    names: Names,
    options: Options,
    emulate: bool,
    out_dtype: str | None,
    with_rstd: bool,
) -> rowwise.Call:
    at = by_name(names, values)
    (*lead, n), dtype, target = at["x"].shape, at["x"].dtype.name, device_target()
    shares = row_shares(math.prod(lead), n, by_numpy_name(dtype), target)
    launch = kernels.forward_launch(
        n=n,
        x_dtype=dtype,
        options=options,
        residual="residual" in at,
        out_dtype=out_dtype,
        with_rstd=with_rstd,
        target=target,
        shares=shares,
        **operands.weight_facts(at.get("weight")),
    )
    adds = "residual" in at
    results = (Role.ROWS, *[Role.ROWS] * adds, *[Role.STATISTIC] * with_rstd)
    return rowwise.Call(launch, (*operands.roles(names), *results), free_first=adds)


lowering.register(
    rms_norm_p,
    abstract=_abstract,
    batch=_batch,
    jvp=_jvp,
    formula=_formula,
    launch_of=_launch,
)
ad.primitive_transposes[rms_norm_p] = _transpose
