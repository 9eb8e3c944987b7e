"""The backward kernel: dx and partial sums of dw in one read of x and dy.

With `normal = x * rstd` and `dn = dy * weight`: `dx = rstd * (dn - normal * mean(dn * normal))` and
`dw = sum over rows of dy * normal`; an addend is added to dx before its one rounding. CTAs take rows by
turns; each keeps its part of dw in registers, and has its next rows on their way while it works on
one.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass

from jax_ptx import types
from jax_ptx.dsl import ptx, reg, smem
from jax_ptx.dsl.reg import Reg
from jax_ptx.dsl.tile import RunTime, Tensor, Tile
from jax_ptx.launch import Launch
from jax_ptx.ops import vectors
from jax_ptx.ops.bulk import BulkRing
from jax_ptx.ops.cluster import ClusterSum
from jax_ptx.ops.declare import MAX_GRID, launch_of
from jax_ptx.ops.layout import PORTABLE, WARP, RowLayout
from jax_ptx.ops.reduce import row_sum
from jax_ptx.ops.ring import Ring
from jax_ptx.ops.rms_norm.config_backward import BackwardConfig, backward_config
from jax_ptx.ops.rms_norm.config_few import FewConfig
from jax_ptx.ops.rms_norm.elementwise import Gradient
from jax_ptx.ops.rms_norm.gradient_row import (
    GradientRow,
    RowInPieces,
    WholeRow,
    add_row,
    addend_of_steps,
    weight_of_steps,
)
from jax_ptx.ops.rms_norm.kernels import weight_tile
from jax_ptx.ops.rms_norm.kernels_few import few_rows_kernel
from jax_ptx.ops.rows import Predicates, Row
from jax_ptx.ops.vectors import READ, Elements, elements_of, first_of
from jax_ptx.types import f32, u32, u64

# So many columns' sums and a row leave no registers for all of an addend, or of a float32 weight.
MANY_COLUMNS = 32


@functools.cache
def backward_launch(
    *,
    n: int,
    x_dtype: str,
    weight_dtype: str | None,
    grouped: bool,
    weight_offset: float,
    addend: bool,
    need_dx: bool,
    runs: int,
    final: bool,
    one_block: bool,
    few: FewConfig | None = None,
    target: int = PORTABLE,
    wide_clusters: bool = False,
) -> Launch | None:
    """The launch for rows of n elements; None: a row is too long for the kernel.

    Operands are x and dy `[rows, n]`, what is added to dx `[rows, n]`, rstd `[rows]` and the weight;
    results are dx `[rows, n]` and dw's partial sums `[parts, n]`, one for each run of rows, as far as
    they are needed.

    Args:
        n: elements of a row.
        x_dtype: name of the dtype of x, dy, the addend and dx.
        weight_dtype: name of the weight's dtype; None: there is no weight.
        grouped: the weight has several rows, each for as many consecutive rows of x.
        weight_offset: added to the weight.
        addend: whether there is one.
        need_dx: whether dx is a result.
        runs: runs of each block of rows; 0: dw is not a result.
        final: whether a partial sum is all of dw, and has the weight's dtype.
        one_block: whether all rows are one block.
        few: how CTAs share the columns of each block, where rows are few; `runs` is 1 then.
        target: the GPU's.
        wide_clusters: whether it runs clusters of 16 CTAs, one to an SM.
    """
    x_type = types.by_numpy_name(x_dtype)
    config = backward_config(n, x_type, target, wide=wide_clusters)
    if config is None:
        return None
    layout = config.layout
    wide = vectors.wide_type(x_type)
    rows = Tile(RunTime("rows"), n, x_type)
    inputs = {"x": rows, "dy": rows, **({"addend": rows} if addend else {})}
    inputs |= {"rstd": Tile(RunTime("rows"), wide), **weight_tile(n, weight_dtype, grouped)}
    # Of a cluster's row each CTA has a part: seen as so many rows, the same memory, the grid follows it.
    by_parts = runs > 0 or layout.cluster > 1
    outputs = {}
    if need_dx:
        outputs["dx"] = (
            rows if runs or not by_parts else Tile(RunTime("parts"), layout.part, x_type)
        )
    if runs:
        dw_type = types.by_numpy_name(weight_dtype) if final and weight_dtype else wide
        outputs["dw"] = Tile(RunTime("parts"), few.columns if few else layout.part, dw_type)
    body = functools.partial(_backward, config, _Runs(runs, one_block), grouped, weight_offset)
    threads = layout.cta_threads
    if few:
        body = functools.partial(few_rows_kernel, few, one_block, grouped, weight_offset)
        threads = few.threads + threads * need_dx
    return launch_of(
        "_".join(["rms_norm", *["few"] * (few is not None), *outputs]),
        inputs,
        outputs,
        body,
        grid=(MAX_GRID // layout.cluster * layout.cluster, 1, 1),
        block=(threads, 1, 1),
        cluster=(layout.cluster, 1, 1),
        rows_per_cta=1 if by_parts else layout.rows,
        grid_dim="parts" if by_parts else "rows",
    )


@dataclass(frozen=True)
class _Runs:
    """How CTAs, or clusters, share the rows.

    Attributes:
        count: runs of each block of rows; 0: dw is not summed, and each takes one turn.
        one_block: whether all rows are one block.
    """

    count: int
    one_block: bool

    def of(self, layout: RowLayout) -> tuple[Reg, int, Reg, Reg]:
        """Which rows are this run's, counted from the last one of its block back to the first.

        L2 holds the last ones of what was read or written before: of x by the forward kernel, of dy by what
        made it (10007 rows of 4,096 behind the forward kernel: 61 us, 63 from the first row on; 2048 float32
        rows of 8,192: 48.5, and 50.5). The runs of a block take its rows by turns: CTAs that run together
        then read what lies together.

        Returns:
            The count at its first row, the counts from one turn to its next, the count behind its last row,
            and the row with the count 0.
        """
        rows, own = ptx.run_time_dim("rows"), reg.scalar(u64)
        special = ptx.special.clusterid if layout.cluster > 1 else ptx.special.ctaid
        ptx.inst.cvt.u64.u32(own, reg.from_(special.x(), u32))
        if not self.count:
            first = own * layout.rows
            return first, layout.rows, (first + layout.rows).min(rows), rows - 1
        turn = self.count * layout.rows
        if self.one_block:
            return own * layout.rows, turn, rows, rows - 1
        rows_per_block = rows // (ptx.run_time_dim("parts") // (self.count * layout.cluster))
        block = own // self.count
        start = block * rows_per_block
        first = start + (own - block * self.count) * layout.rows
        end = start + rows_per_block
        return first, turn, end, start + end - 1


def _backward(
    config: BackwardConfig,
    runs: _Runs,
    grouped: bool,
    weight_offset: float,
    *,
    x: Tensor,
    dy: Tensor,
    rstd: Tensor,
    addend: Tensor | None = None,
    weight: Tensor | None = None,
    dx: Tensor | None = None,
    dw: Tensor | None = None,
) -> None:
    """The kernel's body."""
    layout = config.layout
    in_cta = reg.from_(ptx.special.tid.x(), u32)
    this, in_group = Row(layout, in_cta), reg.scalar(u32, init=0)
    if layout.rows > 1:
        this = Row(layout, in_cta & (layout.threads - 1))
        in_group = in_cta >> (layout.threads.bit_length() - 1)
    rank = reg.from_(ptx.special.cluster_ctarank(), u32) if layout.cluster > 1 else None
    first, turn, end, last = runs.of(layout)
    number = first if layout.rows == 1 else first + in_group
    row_number = last - number
    p_rstd, px, pdy = elements_of(rstd), elements_of(x, READ), elements_of(dy, READ)
    p_addend, p_dx = first_of(addend, READ), first_of(dx)
    n_bytes = ptx.run_time_dim("rows") * (layout.n * px.bytes)
    ends = [px.pointer + n_bytes, pdy.pointer + n_bytes]
    for p in (px, pdy, p_addend, p_dx):
        if p:
            p.skip(row_number, layout.n)
    p_rstd.skip(row_number)
    inside = this.predicates(None)
    bulk = None
    if config.bulk and (dw or config.in_pieces):  # without dw a CTA has no second row
        parts = [px.copy(), pdy.copy()]
        if rank is not None:
            for p in parts:
                p.skip(rank, layout.apart)
        bulk = BulkRing(
            layout, parts, -turn, in_cta, config.slots, ends, in_pieces=config.in_pieces
        )
    for p in (px, pdy, p_addend, p_dx):
        if p:
            this.skip_to_own(p, rank)
    in_pieces = bulk is not None and bulk.pieces > 1
    group_row = row_number if grouped else None
    crowded = layout.threads > WARP and layout.steps * layout.vector >= MANY_COLUMNS
    keep = not in_pieces and not (crowded and (addend or (weight and weight.dtype is f32)))
    weight_of = weight_of_steps(this, rank, weight, group_row, inside, keep=keep)
    wide = vectors.wide_type(px.dtype)
    sums = [reg.scalar(wide, init=0.0) for _ in range(layout.steps * layout.vector)] if dw else []

    def exists(ahead: int) -> Reg:
        """Whether the row that this thread takes so many turns from now belongs to the CTA's run."""
        return (number + ahead * turn if ahead else number) < end

    def accesses(row: Reg) -> list[Reg | None]:
        return [row if p is None else p & row for p in inside]

    ring = None
    if bulk:
        for ahead in range(config.slots):
            bulk.fill(exists(ahead // bulk.pieces), ahead % bulk.pieces)
    elif config.slots and dw:
        ring = Ring(layout, [px, pdy], -turn, in_cta, config.slots, wide)
        for ahead in range(config.slots - 1):
            ring.fill(accesses(exists(ahead)))
    cluster_sum = None
    if rank is not None:
        cluster_sum = ClusterSum(layout, in_cta, rank, wide)
        cluster_sum.ready()
    elif bulk:
        ptx.bar.sync(0)
    (following,) = p_rstd.load(0, 1, exists(0))
    parity = reg.scalar(u32, init=0)

    def reduce(total: Reg) -> None:
        if cluster_sum:
            cluster_sum(total)
        else:
            row_sum(total, in_cta, layout.threads, parity)
        if bulk and not in_pieces:  # every thread has read the row: its part is in the sum
            bulk.fill(exists(config.slots))

    def next_row(current: Predicates, addend: Callable[[int], list[Reg] | None]) -> GradientRow:
        if bulk and in_pieces:
            return RowInPieces(this, bulk, addend, current, exists)
        if bulk:
            x_row, dy_row = bulk.read(inside)
        elif ring:
            # Into the slot of the row before this one, which this thread has used up.
            ring.fill(accesses(exists(config.slots - 1)))
            x_row, dy_row = ring.read()
        else:
            x_row, dy_row = this.load(px, current), this.load(pdy, current)
            for p in (px, pdy):
                p.skip(-turn, layout.n)
        return WholeRow(x_row, dy_row, addend)

    # Rows of one CTA advance together: every thread takes part in each reduction.
    with ptx.while_(lambda: first < end):
        current, scale = accesses(exists(0)), reg.from_(following, wide)
        # Not in a ring: it comes while x and dy are waited for and reduced.
        addend_of = addend_of_steps(this, p_addend, current, keep=not (crowded or in_pieces))
        p_rstd.skip(-turn)
        following.assign(p_rstd.load(0, 1, exists(1))[0])
        weight_type = weight.dtype if weight else None
        gradient = Gradient(px.dtype, scale, weight_type, weight_offset)
        row = next_row(current, addend_of)
        add_row(this, row, weight_of, gradient, sums, p_dx, current, reduce)
        if bulk and not in_pieces and not p_dx:
            ptx.bar.sync(0)
            bulk.fill(exists(config.slots))
        for p in (p_addend, p_dx):
            if p:
                p.skip(-turn, layout.n)
        ptx.inst.xor.b32(parity, parity, 1)
        first += turn
        if layout.rows > 1:
            number += turn
    if dw:
        _store_sums(this, in_cta, in_group, sums, elements_of(dw), inside, ring)
    ptx.ret()


def _store_sums(
    this: Row,
    in_cta: Reg,
    in_group: Reg,
    sums: list[Reg],
    dw: Elements,
    inside: Predicates,
    ring: Ring | None,
) -> None:
    """Stores the CTA's partial of dw, after summing over the rows that the CTA takes side by side."""
    layout = this.layout
    if ring:
        ring.drain()
    cta = reg.from_(ptx.special.ctaid.x(), u32)
    rank = cta & (layout.cluster - 1)
    dw.skip(cta - rank, layout.part)
    dw.skip(rank, layout.apart)
    if layout.rows == 1:
        dw.skip(this.thread, layout.vector)
        for step, pred in enumerate(inside):
            values = sums[step * layout.vector : (step + 1) * layout.vector]
            dw.store(step * layout.stride, values, pred)
        return
    # Each row's sums after those of the row before: in the ring, which is larger, if there is one.
    n_sums = layout.rows * layout.n
    columns = ring.memory if ring else smem.alloc(sums[0].dtype, (n_sums,))
    own = reg.scalar(u32)
    ptx.inst.mul.lo.u32(own, in_group, layout.n)
    ptx.inst.mad.lo.u32(own, this.thread, layout.vector, own)
    for step, pred in enumerate(inside):
        with ptx.if_(pred) if pred is not None else contextlib.nullcontext():
            for i in range(layout.vector):
                columns[own + (step * layout.stride + i)] = sums[step * layout.vector + i]
    ptx.bar.sync(0)
    for start in range(0, layout.n, layout.cta_threads):
        column = in_cta + start
        with ptx.if_(column < layout.n):
            total = columns[column]
            for at in ptx.range_(column + layout.n, n_sums, layout.n):
                getattr(ptx.inst.add.rn, total.dtype.name)(total, total, columns[at])
            out = dw.copy()
            out.skip(column)
            out.store(0, [total])
