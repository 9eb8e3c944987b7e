"""What the row-wise operations share: what their tensors are, their types, and batching."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jax_ptx.launch import Launch


class Role(enum.Enum):
    """What a tensor of a row-wise kernel is, for x of `[*lead, n]`."""

    ROWS = "[*lead, n]"
    STATISTIC = "[*lead]"
    WEIGHT = "[n], or [*lead[:k], n] where it is mapped"
    SCALAR = "[]"
    PARTIAL = "[*blocks[:-1], blocks[-1] * runs, n]: sums over runs of rows"


@dataclass(frozen=True)
class Call:
    """A custom call of a row-wise kernel.

    Attributes:
        launch: the launch record.
        roles: what the kernel's operands and results are.
        blocks: into how many blocks each of x's leading dimensions is cut; None: there is no partial.
        runs: partials of a block.
        n_cut: along how many of x's leading dimensions XLA may split the call; None: along all. It
            gathers what is split along others.
        free_first: whether the first operand may be replicated where another is split.
    """

    launch: Launch
    roles: tuple[Role, ...]
    blocks: tuple[int, ...] | None = None
    runs: int = 1
    n_cut: int | None = None
    free_first: bool = False


# ---- types ----


def on_explicit_mesh(avals: Iterable[Any]) -> bool:
    """Whether the types say how values are sharded."""
    return any(map(_explicit, avals))


def check_feature_axis(op: str, **operands: Any) -> None:
    """Refuses operands whose last axis is sharded over an explicit mesh, or that are (un)reduced."""
    for name, aval in operands.items():
        if aval.manual_axis_type.unreduced or is_reduced(aval):
            state = "unreduced" if not aval.sharding.spec.reduced else "reduced"
            raise ValueError(
                f"{op}: {name} is {state}, {aval}; jax.lax.psum or jax.reshard it first, or leave "
                "implementation out"
            )
        if _spec(aval)[-1] is not None:
            raise ValueError(
                f"{op}: the last axis of {name} is sharded, {aval}; for the kernel a row must be whole on "
                f"its device: jax.reshard {name} first. The plain formula (implementation left out) takes a "
                "last axis that is sharded alike in all operands, over mesh axes that shard no other"
            )


def is_reduced(aval: Any) -> bool:
    """Whether an explicit mesh has a value unreduced, or will have its cotangent so."""
    return bool(aval.sharding.spec.unreduced or aval.sharding.spec.reduced)


def shards_features(*avals: Any) -> bool:
    """Whether an explicit mesh shards the operands' last axis, in the same way and no other axis with it.

    A row is then on several devices. The plain formula sums the squares of its parts and adds the sums up
    over the devices, where a kernel would need the row gathered.
    """
    last, others = set[str](), set[str]()
    for aval in avals:
        spec = _spec(aval) if _explicit(aval) else [None]
        names = _names(spec[-1])
        if names and last not in (set(), names):
            return False
        last |= names
        others = others.union(*map(_names, spec[:-1]))
    return bool(last) and not last & others


def with_features_of(weight: jax.Array, x: jax.Array) -> jax.Array:
    """The weight `[n]` sharded as x's last axis is: its cotangent is then summed before it is gathered."""
    entry = _spec(jax.typeof(x))[-1] if _explicit(jax.typeof(x)) else None
    return weight if entry is None else jax.reshard(weight, PartitionSpec(entry))


def row_sharding(op: str, operands: Mapping[str, Any]) -> NamedSharding:
    """The sharding of a result of the shape of x, the first operand, on an explicit mesh.

    Each axis is sharded as in the first operand that shards it.

    Args:
        op: for the message.
        operands: types, by name; each has x's axes, or the first of them and then axes of its own.

    Raises:
        ValueError: two shard an axis differently, or a mesh axis would shard two.
    """
    (_, x), *_ = operands.items()
    meshes = [aval.sharding.mesh for aval in operands.values() if _explicit(aval)]
    if not meshes:
        return NamedSharding(x.sharding.mesh, PartitionSpec())
    spec: list[Any] = [None] * len(x.shape)
    for name, aval in operands.items():
        own = _spec(aval)
        for axis, entry in enumerate(own if len(own) == len(spec) else own[:-1]):
            others = [*spec[:axis], *spec[axis + 1 :]]
            used = set[str]().union(*map(_names, others))
            if (entry is not None and spec[axis] not in (None, entry)) or _names(entry) & used:
                raise ValueError(
                    f"{op}: {name} must be sharded like x, {PartitionSpec(*spec)}, or not at all, got "
                    f"{aval}; jax.reshard {name} to that"
                )
            spec[axis] = entry if spec[axis] is None else spec[axis]
    return NamedSharding(meshes[0], PartitionSpec(*spec))


def aligned(op: str, operands: Mapping[str, Any], roles: Sequence[Role]) -> dict[str, Any]:
    """Operands whose leading axes an explicit mesh shards alike; a cotangent comes back as its operand was.

    XLA shards the call as its first operand is.
    """
    types = {name: jax.typeof(value) for name, value in operands.items()}
    if not on_explicit_mesh(types.values()):
        return dict(operands)
    named = zip(types.items(), roles, strict=True)
    rows = {name: aval for (name, aval), role in named if role in (Role.ROWS, Role.WEIGHT)}
    sharding = row_sharding(op, rows)
    spec = _entries(sharding.spec, len(next(iter(rows.values())).shape))
    moved = dict(operands)
    for (name, aval), role in zip(types.items(), roles, strict=True):
        n_lead = len(aval.shape) - (role in (Role.ROWS, Role.WEIGHT))
        own, wanted = _spec(aval), [*spec[:n_lead], *_spec(aval)[n_lead:]]
        if own != wanted:
            wanted = NamedSharding(sharding.mesh, PartitionSpec(*wanted))
            moved[name] = jax.reshard(operands[name], wanted)
    return moved


def shards(x: Any) -> tuple[int, ...]:
    """Into how many parts an explicit mesh shards each of x's leading dimensions."""
    counts = []
    for entry in _spec(x)[:-1] if _explicit(x) else [None] * (len(x.shape) - 1):
        counts.append(math.prod(x.sharding.mesh.shape[name] for name in _names(entry)))
    return tuple(counts)


def statistic(x: Any) -> Any:
    """The type of a value for each row of x."""
    return _like(x, x.shape[:-1], _spec(x)[:-1])


def partial_sums(x: Any, blocks: tuple[Any, ...], runs: int, dtype: Any = None) -> Any:
    """The type of partial sums over x's rows (see `Role.PARTIAL`), wide unless a dtype is given."""
    spec = [entry if count != 1 else None for entry, count in zip(_spec(x), blocks, strict=False)]
    shape = (*blocks[:-1], blocks[-1] * runs, x.shape[-1])
    return _like(x, shape, [*spec, None], dtype)


def _like(x: Any, shape: tuple[int, ...], spec: Sequence[Any], dtype: Any = None) -> Any:
    dtype = dtype or jnp.dtype("float64" if x.dtype == "float64" else "float32")
    sharding = PartitionSpec(*spec) if _explicit(x) else PartitionSpec()
    return x.update(
        shape=shape,
        dtype=dtype,
        weak_type=False,
        sharding=NamedSharding(x.sharding.mesh, sharding),
    )


def _explicit(x: Any) -> bool:
    return AxisType.Explicit in x.sharding.mesh.axis_types


def _names(entry: Any) -> set[str]:
    """The mesh axes in an entry of a specification."""
    return set() if entry is None else set(entry) if isinstance(entry, tuple) else {entry}


def _spec(x: Any) -> list[Any]:
    return _entries(x.sharding.spec, len(x.shape))


def _entries(spec: PartitionSpec, rank: int) -> list[Any]:
    return [*spec.partitions, *[None] * (rank - len(spec.partitions))]


# ---- arrays ----


def batch(
    operands: Sequence[Any], axes: Sequence[int | None], roles: Sequence[Role]
) -> tuple[int, list[Any]]:
    """Makes a mapped axis a leading dimension of every operand that has x's.

    Args:
        operands: the primitive's operands, x first; a scalar is not mapped.
        axes: the mapped axis of each, or None.
        roles: what they are. If no weight is mapped the weights stay as they are, and the axis goes
            behind the leading dimensions that they have; not behind x's last one, though, along which
            runs of rows are summed.

    Returns:
        The axis's position in operands and results, and the operands.
    """
    mapped = [(x, axis) for x, axis in zip(operands, axes, strict=True) if axis is not None]
    size = mapped[0][0].shape[mapped[0][1]]
    entries = [_spec(jax.typeof(x))[axis] for x, axis in mapped]
    n_lead = operands[0].ndim - 1 - (axes[0] is not None)
    weights = [i for i, role in enumerate(roles) if role is Role.WEIGHT]
    shared = all(axes[i] is None and operands[i].ndim <= n_lead for i in weights)
    position = operands[weights[0]].ndim - 1 if weights and shared else 0
    moved = []
    for operand, axis, role in zip(operands, axes, roles, strict=True):
        if role is Role.SCALAR or (role is Role.WEIGHT and shared):
            moved.append(operand)
        elif axis is not None:
            moved.append(jnp.moveaxis(operand, axis, position))
        else:
            moved.append(_repeated(operand, position, size, next(filter(None, entries), None)))
    return position, moved


def _repeated(x: jax.Array, position: int, size: int, entry: Any) -> jax.Array:
    """x with a new axis, sharded as an explicit mesh shards the others' if it can be."""
    shape = (*x.shape[:position], size, *x.shape[position:])
    spec = _spec(jax.typeof(x))
    axes = [axis for axis in range(len(shape)) if axis != position]
    if entry is None or _names(entry) & set[str]().union(*map(_names, spec)):
        return jax.lax.broadcast_in_dim(x, shape, axes)
    sharding = PartitionSpec(*spec[:position], entry, *spec[position:])
    return jax.lax.broadcast_in_dim(x, shape, axes, out_sharding=sharding)


def as_rows(x: jax.Array) -> jax.Array:
    """x with at least two leading dimensions (see partition.py)."""
    return x.reshape((1,) * (3 - x.ndim) + x.shape) if x.ndim < 3 else x
