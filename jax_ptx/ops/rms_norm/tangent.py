"""The tangent primitive: x, [weight], rstd, [x_dot], [weight_dot] -> y_dot, [x_dot].

It is linear in its last operands, one or both, and its transpose is the backward kernel. `with_added`: the
second result is the tangent of `x + residual`, which is x here, so that the cotangent of that sum reaches the
kernel together with dy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.interpreters import ad

from jax_ptx.launch import new_primitive
from jax_ptx.ops import lowering
from jax_ptx.ops.rms_norm import operands, reference
from jax_ptx.ops.rms_norm.backward import backward
from jax_ptx.ops.rms_norm.operands import Names, by_name, is_zero

LINEAR = ("x_dot", "weight_dot")
rms_norm_tangent_p = new_primitive("ptx_rms_norm_tangent")


def tangent(at: Mapping[str, Any], **params: Any) -> list[Any]:
    """y's tangent, and the sum's `with_added`."""
    return operands.bind(rms_norm_tangent_p, at, **params)


def _abstract(*values: Any, names: Names, with_added: bool, **_: Any) -> list[Any]:
    return [operands.result_type(by_name(names, values))] * (1 + with_added)


def _batch(
    values: Sequence[Any], axes: Sequence[int | None], *, names: Names, **params: Any
) -> tuple[list[Any], list[int]]:
    return operands.batch(rms_norm_tangent_p, names, values, axes, **params)


def _formula(
    *values: Any, names: Names, weight_offset: float, with_added: bool, emulate: bool
) -> list[jax.Array]:
    at = by_name(names, values)
    y_dot = reference.tangent(**at, weight_offset=weight_offset)
    return [y_dot, at["x_dot"]] if with_added else [y_dot]


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, names: Names, **params: Any
) -> tuple[list[Any], list[Any]]:
    n_fixed = sum(name not in LINEAR for name in names)
    fixed, linear = primals[:n_fixed], primals[n_fixed:]
    fixed_dots, linear_dots = tangents[:n_fixed], tangents[n_fixed:]
    results = tangent(by_name(names, primals), **params)
    dots = [operands.zero_like(jax.typeof(result)) for result in results]
    given = {k: v for k, v in by_name(names[n_fixed:], linear_dots).items() if not is_zero(v)}
    if given:
        # The primitive again: linear in these operands, it is its own derivative.
        with_added = params["with_added"] and "x_dot" in given
        at = {**by_name(names[:n_fixed], fixed), **given}
        found = tangent(at, **{**params, "with_added": with_added})
        dots[: len(found)] = found
    if not all(map(is_zero, fixed_dots)):
        formula = lambda *values: _formula(*values, *linear, names=names, **params)[0]
        values = [ad.instantiate_zeros(t) for t in fixed_dots]
        y_dot = jax.jvp(formula, list(fixed), values)[1]
        dots[0] = y_dot if is_zero(dots[0]) else dots[0] + y_dot
    return results, dots


def _transpose(
    cotangents: Sequence[Any], *values: Any, names: Names, with_added: bool, **params: Any
) -> list[Any]:
    dy, addend = cotangents[0], cotangents[1] if with_added else None
    addend = None if addend is None or is_zero(addend) else addend
    at = by_name(names, values)
    need_dx, need_dw = (ad.is_undefined_primal(at.get(k)) for k in LINEAR)
    if is_zero(dy):
        found = {"x_dot": addend if need_dx else None}
    else:
        fixed = {name: at.get(name) for name in ("rstd", "weight")}
        addend = addend if need_dx else None
        rows = {"x": at["x"], "dy": dy, "addend": addend}
        dx, dw = backward({**rows, **fixed}, need_dx=need_dx, need_dw=need_dw, **params)
        found = {"x_dot": dx, "weight_dot": dw}
    return [found.get(name) for name in names]


lowering.register(rms_norm_tangent_p, abstract=_abstract, batch=_batch, jvp=_jvp, formula=_formula)
ad.primitive_transposes[rms_norm_tangent_p] = _transpose
