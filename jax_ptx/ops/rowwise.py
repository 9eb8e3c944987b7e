"""What the row-wise operations share: how their custom call is partitioned, and row-wise types.

XLA keeps a custom call local to each device only with all three of: a Shardy rule (propagation),
`num_batch_dims` (the partitioner), and the target's registration as batch partitionable (launch.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.interpreters import mlir
from jax.sharding import AxisType, NamedSharding, PartitionSpec


def partition_attributes(n_lead: int, n_grouped: int, avals: Sequence[Any], n_operands: int) -> Any:
    """Attributes that let XLA split a row-wise custom call along the rows' leading dimensions.

    Args:
        n_lead: leading dimensions of x, `[*lead, n]`; at least two, since the partitioner slices any
            operand whose rank reaches the number of split dimensions, and would slice a weight `[n]`.
        n_grouped: leading dimensions of a mapped weight `[*lead[:n_grouped], n]`, 0 for a plain one;
            only those are split then.
        avals: types of the operands, then of the results. Each has x's shape or the weight's.
        n_operands: how many of them are operands.
    """
    if any(not isinstance(size, int) or size == 0 for aval in avals for size in aval.shape):
        return None  # a rule states sizes: symbolic ones and 0 have none
    letters = [*"ijklmnopqrstuvwxyz", *(f"z_{number}" for number in range(1, n_lead))][: n_lead + 1]
    sizes = dict(zip(letters, max(avals, key=lambda aval: len(aval.shape)).shape, strict=True))

    def spelling(aval: Any) -> str:
        return f"[{', '.join([*letters[: len(aval.shape) - 1], letters[-1]])}]"

    operands = ", ".join(map(spelling, avals[:n_operands]))
    results = ", ".join(map(spelling, avals[n_operands:]))
    factors = ", ".join(f"{letter}={size}" for letter, size in sizes.items())
    rule = (
        f"#sdy.op_sharding_rule<({operands}) -> ({results}) {{{factors}}} "
        f"need_replication={{{letters[-1]}}}, custom>"
    )
    return {
        "sdy.sharding_rule": mlir.ir.Attribute.parse(rule),
        "mhlo.frontend_attributes": mlir.ir_attribute({"num_batch_dims": str(n_grouped or n_lead)}),
    }


def check_feature_axis(op: str, **operands: Any) -> None:
    """Refuses operands whose last axis is sharded over an explicit mesh, or that are unreduced."""
    for name, aval in operands.items():
        spec = aval.sharding.spec
        if aval.manual_axis_type.unreduced or spec.unreduced:
            raise ValueError(
                f"{op}: {name} is unreduced, {aval}; jax.lax.psum or jax.reshard it first"
            )
        if len(spec) == len(aval.shape) and spec[-1] is not None:
            raise ValueError(
                f"{op}: the last axis of {name} is sharded, {aval}; a row must be whole on its device: "
                f"jax.reshard {name} first"
            )


def row_sharding(x: Any, *others: Any) -> NamedSharding:
    """x's sharding, with each leading axis that only another operand shards taken from that operand."""
    mesh = x.sharding.mesh
    if not any(kind == AxisType.Explicit for kind in mesh.axis_types):
        return NamedSharding(mesh, PartitionSpec())
    spec = list(x.sharding.spec) + [None] * (len(x.shape) - len(x.sharding.spec))
    for other in others:
        for axis, entry in enumerate(other.sharding.spec[: len(other.shape) - 1]):
            spec[axis] = spec[axis] if spec[axis] is not None else entry
    return NamedSharding(mesh, PartitionSpec(*spec))


def as_rows(x: jax.Array) -> jax.Array:
    """x with at least two leading dimensions (see `partition_attributes`)."""
    return x.reshape((1,) * (3 - x.ndim) + x.shape) if x.ndim < 3 else x
