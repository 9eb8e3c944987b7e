"""How XLA may split the custom call of a row-wise kernel over devices.

XLA keeps a custom call local to each device only with all three of: a Shardy rule (propagation),
`num_batch_dims` (the partitioner), and the target's registration as batch partitionable (launch.py).

The partitioner splits along leading dimensions that every operand has, but for those of lower rank, which
stay whole. A mapped weight `[groups, n]` lacks the rows of its groups, which would be gathered: where there
are several devices, it gets a copy for each part that a group's rows may be split into.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
from jax.interpreters import mlir
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jax_ptx.launch import ptx_lowering
from jax_ptx.ops import rowwise
from jax_ptx.ops.rowwise import Call, Role

# A rule with a larger dimension cannot be read before that version of JAX: XLA then gathers what is split.
MAX_SIZE = 2**31 - 1
SIZES_OF_64_BITS = (0, 11)


def lower(ctx: mlir.LoweringRuleContext, operands: Sequence[Any], call: Call) -> Any:
    """Lowers to the custom call, partitioned along the rows' leading dimensions."""
    attributes, leading = None, ()
    avals: list[Any] = [*ctx.avals_in, *ctx.avals_out]
    # A rule states sizes: symbolic ones and 0 have none.
    if call.n_cut != 0 and all(isinstance(d, int) and d > 0 for a in avals for d in a.shape):
        ctx, operands = _with_copies(ctx, operands, call)
        if call.free_first and _automatic_devices(ctx) > 1:
            operands[0] = _free(ctx, operands[0])
        avals = [*ctx.avals_in, *ctx.avals_out]
        attributes = _attributes(avals, len(operands), call)
    # A sum over padded rows would be wrong; a result that is as long as its operand is padded with it.
    if attributes and Role.PARTIAL in call.roles:
        leading = tuple(avals[0].shape[:-1])
    return ptx_lowering(
        ctx, *operands, launch=call.launch, extra_attributes=attributes, leading=leading
    )


def _automatic_devices(ctx: mlir.LoweringRuleContext) -> int:
    """Over how many devices XLA may split a dimension, beyond what the types say."""
    mesh = ctx.avals_in[0].sharding.mesh  # pyright: ignore[reportAttributeAccessIssue]
    if mesh.empty:
        return getattr(ctx.module_context.axis_context, "num_devices", 1)
    axes = zip(mesh.axis_sizes, mesh.axis_types, strict=True)
    return math.prod(size for size, kind in axes if kind == AxisType.Auto)


def _free(ctx: mlir.LoweringRuleContext, first: Any) -> Any:
    """The first operand behind a barrier, where it may be split though it is a replicated argument.

    The partitioner splits a call as its first operand is, and gathers what is split otherwise.
    """
    of = ctx.replace(avals_in=ctx.avals_in[:1], avals_out=ctx.avals_in[:1])
    return mlir.lower_fun(jax.lax.optimization_barrier, multiple_results=False)(of, first)[0]


def _with_copies(
    ctx: mlir.LoweringRuleContext, operands: Sequence[Any], call: Call
) -> tuple[mlir.LoweringRuleContext, list[Any]]:
    """Mapped weights `[*groups, n]` as `[*groups, *copies, n]`, one for each part of a group's rows.

    The copies of a group are alike, so it does not matter which of its rows meet which.
    """
    avals: list[Any] = list(ctx.avals_in)
    values = list(operands)
    rows = [aval for aval, role in zip(avals, call.roles, strict=False) if role is Role.ROWS]
    known = [max(counts) for counts in zip(*map(rowwise.shards, rows), strict=True)]
    most = [count * _automatic_devices(ctx) for count in known]
    blocks = call.blocks or rows[0].shape[:-1]
    for index, (aval, role) in enumerate(zip(avals, call.roles, strict=False)):
        if role is not Role.WEIGHT:
            continue
        *groups, n = aval.shape
        copies = [math.gcd(*pair) for pair in zip(blocks, most, strict=True)][len(groups) :]
        while copies and copies[-1] == 1:
            copies.pop()
        if groups and copies:
            shape, axes = (*groups, *copies, n), [*range(len(groups)), len(groups) + len(copies)]
            spec = PartitionSpec(*aval.sharding.spec.partitions[: len(groups)])
            sharding = NamedSharding(aval.sharding.mesh, spec)
            avals[index] = aval.update(shape=shape, sharding=sharding)
            lower_copy = mlir.lower_fun(
                lambda w, s=shape, a=axes: jax.lax.broadcast_in_dim(w, s, a), multiple_results=False
            )
            of = ctx.replace(avals_in=[aval], avals_out=[avals[index]])
            (values[index],) = lower_copy(of, values[index])
    return ctx.replace(avals_in=avals), values


def _attributes(avals: Sequence[Any], n_operands: int, call: Call) -> Any:
    """Attributes that let XLA split the custom call.

    The partitioner slices any operand whose rank reaches the number of split dimensions, and would
    slice a weight `[n]` if there was only one: x has two or more leading dimensions.
    """
    lead = avals[call.roles.index(Role.ROWS)].shape[:-1]
    weights = [a for a, role in zip(avals, call.roles, strict=True) if role is Role.WEIGHT]
    grouped = weights[0].shape[:-1] if weights else ()
    n_cut = len(grouped) or (len(lead) if call.n_cut is None else call.n_cut)
    if n_cut == 1 and not grouped:
        return None
    sizes: dict[str, int] = {}

    def factor(size: int) -> str:
        letters = "ijklmnopqrstuvwxyz"  # Shardy's names; then z_1, z_2 and so on
        past = len(sizes) - len(letters) + 1
        name = letters[len(sizes)] if past < 1 else f"z_{past}"
        sizes[name] = size
        return name

    blocks = call.blocks or lead
    rows, partials, copies, whole = [], [], [], []
    for axis, (size, count) in enumerate(zip(lead, blocks, strict=True)):
        parts = grouped[axis] if axis < len(grouped) else count
        # A dimension of several factors may have none of size 1, and no factor may be left over.
        across = factor(parts) if parts > 1 or size == 1 else ""
        block = factor(count // parts) if count > parts else ""
        within = factor(size // count) if size > count else ""
        rows.append(across + block + within)
        partials.append(across + block)
        copies.append(across)
        whole += [name for name in (block, within) if name]
    n_elements = avals[call.roles.index(Role.ROWS)].shape[-1]
    # A weight's and its gradient's are factors of their own: stored in parts, they would else have the rows
    # split into parts, and these gathered.
    n, of_weight, of_partial = (
        factor(n_elements) if role in call.roles else ""
        for role in (Role.ROWS, Role.WEIGHT, Role.PARTIAL)
    )
    whole += [name for name in (n, of_weight, of_partial) if name]
    if Role.PARTIAL in call.roles:
        if call.runs > 1:
            whole.append(factor(call.runs))
            partials[-1] = whole[-1] if blocks[-1] == 1 else partials[-1] + whole[-1]
        partials = [names or factor(1) for names in partials]
    spelling = {
        Role.ROWS: [*rows, n],
        Role.STATISTIC: rows,
        Role.WEIGHT: [*(names or factor(1) for names in copies[: len(grouped)]), of_weight],
        Role.SCALAR: [],
        Role.PARTIAL: [*partials, of_partial],
    }
    if max(sizes.values()) > MAX_SIZE and jax.__version_info__ < SIZES_OF_64_BITS:
        return None
    mappings = [f"[{', '.join(spelling[role])}]" for role in call.roles]
    rule = (
        f"#sdy.op_sharding_rule<({', '.join(mappings[:n_operands])}) -> "
        f"({', '.join(mappings[n_operands:])}) {{{', '.join(f'{k}={v}' for k, v in sizes.items())}}} "
        f"need_replication={{{', '.join(whole)}}}, custom>"
    )
    return {
        "sdy.sharding_rule": mlir.ir.Attribute.parse(rule),
        "mhlo.frontend_attributes": mlir.ir_attribute({"num_batch_dims": str(n_cut)}),
    }
