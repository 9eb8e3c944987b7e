"""The forward kernel for long rows: a cluster shares a row, and its next ones are on their way (sm_90)."""

from __future__ import annotations

from jax_ptx.dsl import ptx, reg
from jax_ptx.dsl.reg import Reg
from jax_ptx.dsl.tile import Tensor
from jax_ptx.ops import vectors
from jax_ptx.ops.cluster import ClusterSum
from jax_ptx.ops.ring import Ring
from jax_ptx.ops.rms_norm.config import ForwardConfig
from jax_ptx.ops.rms_norm.elementwise import (
    Finish,
    Source,
    group_of,
    inverse_scale,
    rstd_of,
    sum_of_squares,
)
from jax_ptx.ops.rms_norm.options import Options
from jax_ptx.ops.rows import Row
from jax_ptx.ops.vectors import READ, elements_of, first_of
from jax_ptx.types import u32, u64

KEPT_BYTES = 128  # of a thread's registers, beside as many for the row


def by_turns(
    config: ForwardConfig,
    options: Options,
    grouped: bool,
    *,
    x: Tensor,
    y: Tensor,
    residual: Tensor | None = None,
    added: Tensor | None = None,
    weight: Tensor | None = None,
    scale: Tensor | None = None,
    rstd: Tensor | None = None,
) -> None:
    """The kernel's body: cluster k of c takes rows k, k + c, k + 2 * c and so on."""
    layout, turn = config.layout, config.runs
    in_cta = reg.from_(ptx.special.tid.x(), u32)
    rank = reg.from_(ptx.special.cluster_ctarank(), u32)
    this = Row(layout, in_cta)
    number, end = reg.scalar(u64), ptx.run_time_dim("rows")
    ptx.inst.cvt.u64.u32(number, reg.from_(ptx.special.clusterid.x(), u32))
    source = Source(elements_of(x, READ), first_of(residual, READ), first_of(added))
    # y goes first too (rows of 131,072: 134, and 139).
    py, pw, p_rstd = elements_of(y, "first"), first_of(weight), first_of(rstd)
    moving = [part for part in (py, source.residual, source.added) if part]
    for part in (*moving, source.x):
        part.skip(number, layout.n)
        this.skip_to_own(part, rank)
    if pw:
        this.skip_to_own(pw, rank)
    inside = this.predicates(None)

    def accesses(ahead: int) -> list[Reg]:
        exists = (number + ahead * turn if ahead else number) < end
        return [exists if p is None else p & exists for p in inside]

    wide = vectors.wide_type(source.dtype)
    ring = Ring(layout, [source.x], turn, in_cta, config.slots, wide)
    for ahead in range(config.slots - 1):
        ring.fill(accesses(ahead))
    # One weight stays in registers, where there are enough.
    kept: list[list[Reg]] | None = None
    if pw and not grouped and layout.steps * layout.vector * pw.bytes <= KEPT_BYTES:
        kept = this.load(pw, inside)
    cluster_sum = ClusterSum(layout, in_cta, rank, wide)
    cluster_sum.ready()
    leads = (in_cta + rank) == 0
    with ptx.while_(lambda: number < end):
        # Into the slot of the row before this one, which this thread has used up.
        ring.fill(accesses(config.slots - 1))
        (row,) = ring.read()
        if source.residual:
            others = this.load(source.residual, inside)
            row = [
                source.add(a, b, step * layout.stride, layout.vector, inside[step])
                for step, (a, b) in enumerate(zip(row, others, strict=True))
            ]
        total = sum_of_squares(row, source.dtype)
        cluster_sum(total)
        row_rstd = rstd_of(total, layout.n, options.eps)
        if p_rstd:
            out = p_rstd.copy()
            out.skip(number)
            out.store(0, [row_rstd], leads)
        weights = pw
        if pw and grouped:
            weights = pw.copy()
            weights.skip(group_of(number, layout.n), layout.n)
        inverse = inverse_scale(scale, row_rstd)
        finish = Finish(options, source.dtype, py, weights, row_rstd, inverse)
        for step, (packed, pred) in enumerate(zip(row, inside, strict=True)):
            finish.store(
                packed, step * layout.stride, layout.vector, pred, kept[step] if kept else None
            )
        for part in moving:
            part.skip(turn, layout.n)
        number += turn
    ptx.ret()
