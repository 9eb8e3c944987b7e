"""The operands of RMS norm's primitives, by name: which there are is a parameter, `names`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jax.extend.core import Primitive
from jax.interpreters import ad

from jax_ptx.launch import bind_varying
from jax_ptx.ops import rowwise
from jax_ptx.ops.rowwise import Role

Names = tuple[str, ...]

ROLES = {
    "x": Role.ROWS,
    "residual": Role.ROWS,
    "dy": Role.ROWS,
    "addend": Role.ROWS,
    "x_dot": Role.ROWS,
    "rstd": Role.STATISTIC,
    "weight": Role.WEIGHT,
    "weight_dot": Role.WEIGHT,
    "scale": Role.SCALAR,
}


def bind(primitive: Primitive, operands: Mapping[str, Any], **params: Any) -> list[Any]:
    """Binds operands by name; those that are None are not there."""
    there = {name: value for name, value in operands.items() if value is not None}
    names = tuple(there)
    there = rowwise.aligned(_op(there), there, roles(names))
    return bind_varying(primitive, *there.values(), names=names, **params)


def _op(operands: Mapping[str, Any]) -> str:
    """The public operation, for messages."""
    return "add_rms_norm" if "residual" in operands else "rms_norm"


def by_name(names: Names, values: Sequence[Any]) -> dict[str, Any]:
    """Operands, or what belongs to each, by name."""
    return dict(zip(names, values, strict=True))


def roles(names: Names) -> tuple[Role, ...]:
    """What the operands are."""
    return tuple(ROLES[name] for name in names)


def batch(
    primitive: Primitive,
    names: Names,
    operands: Sequence[Any],
    axes: Sequence[int | None],
    **params: Any,
) -> tuple[list[Any], list[int]]:
    """A batching rule's results, whose mapped axis is where the operands' is."""
    position, moved = rowwise.batch(operands, axes, roles(names))
    results = bind(primitive, by_name(names, moved), **params)
    return results, [position] * len(results)


def result_type(at: Mapping[str, Any]) -> Any:
    """The type of a result of x's shape and dtype."""
    x, weight = at["x"], at.get("weight")
    if weight is not None and (
        weight.shape[-1] != x.shape[-1] or weight.shape[:-1] != x.shape[: len(weight.shape) - 1]
    ):
        raise ValueError(f"rms_norm: weight {weight.shape} does not belong to x {x.shape}")
    checked = {name: at[name] for name in ("x", "residual", "weight") if name in at}
    rowwise.check_feature_axis(_op(at), **checked)
    return x.update(weak_type=False, sharding=rowwise.row_sharding(_op(at), checked))


def weight_facts(weight: Any) -> dict[str, Any]:
    """What a kernel needs to know of the weight."""
    return {
        "weight_dtype": None if weight is None else weight.dtype.name,
        "grouped": weight is not None and len(weight.shape) > 1,
    }


def is_zero(tangent: Any) -> bool:
    """Whether a tangent or cotangent is known to be zero."""
    return type(tangent) is ad.Zero


def zero_like(value: Any) -> ad.Zero:
    """A tangent of a value that is known to be zero."""
    return ad.Zero(value.to_tangent_aval())
