"""The backward kernel of few rows: dx and all of dw at once (see `config_few.py`).

A CTA has two kinds of warps, which never wait for each other: some take rows by turns for dx, with the same
bits as the kernel of many rows; the others sum dw over all rows of the block, for a slice of the columns.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from jax_ptx.dsl import ptx, reg, smem
from jax_ptx.dsl.reg import Reg
from jax_ptx.dsl.tile import Tensor
from jax_ptx.ops.layout import ACCESS_BYTES
from jax_ptx.ops.reduce import row_sum
from jax_ptx.ops.rms_norm.config_few import FewConfig
from jax_ptx.ops.rms_norm.elementwise import Gradient, group_of
from jax_ptx.ops.rms_norm.gradient_row import Packed, WholeRow, add_row
from jax_ptx.ops.rows import Row
from jax_ptx.ops.vectors import Elements, elements_of, first_of
from jax_ptx.types import u32, u64

DX_BARRIER, DW_BARRIER = 1, 2


@dataclass(frozen=True)
class _Block:
    """The block of rows that a CTA belongs to, in 32 bits, and its slice of the columns.

    Attributes:
        first: the block's first row.
        rows: how many it has.
        cta: the CTA's number in the block, and its slice's.
    """

    first: Reg
    rows: Reg
    cta: Reg

    @staticmethod
    def of(slices: int, *, one_block: bool) -> _Block:
        """This CTA's, of so many that share a block."""
        rows, cta = reg.scalar(u32), reg.from_(ptx.special.ctaid.x(), u32)
        ptx.inst.cvt.u32.u64(rows, ptx.run_time_dim("rows"))
        first = reg.scalar(u32, init=0)
        if not one_block:
            parts = reg.scalar(u32)
            ptx.inst.cvt.u32.u64(parts, ptx.run_time_dim("parts"))
            rows = rows // (parts // slices)
            ptx.inst.mul.lo.u32(first, cta // slices, rows)
            cta = cta % slices
        return _Block(first, rows, cta)


def few_rows_kernel(
    config: FewConfig,
    one_block: bool,
    grouped: bool,
    weight_offset: float,
    *,
    x: Tensor,
    dy: Tensor,
    rstd: Tensor,
    dw: Tensor,
    addend: Tensor | None = None,
    weight: Tensor | None = None,
    dx: Tensor | None = None,
) -> None:
    """The kernel's body; without dx a CTA has the second kind of warps alone."""
    thread = reg.from_(ptx.special.tid.x(), u32)
    block = _Block.of(config.slices, one_block=one_block)
    if dx is None:
        _sum_columns(config, block, thread, x, dy, rstd, dw)
    else:
        with ptx.if_(thread < config.layout.cta_threads):
            tensors = {"x": x, "dy": dy, "rstd": rstd, "addend": addend, "weight": weight, "dx": dx}
            _take_rows(config, block, thread, grouped, weight_offset, **tensors)
        with ptx.else_():
            _sum_columns(config, block, thread - config.layout.cta_threads, x, dy, rstd, dw)
    ptx.ret()


def _take_rows(
    config: FewConfig,
    block: _Block,
    in_cta: Reg,
    grouped: bool,
    weight_offset: float,
    *,
    x: Tensor,
    dy: Tensor,
    rstd: Tensor,
    addend: Tensor | None,
    weight: Tensor | None,
    dx: Tensor,
) -> None:
    """Stores dx of the CTA's rows; `in_cta` is this thread's number among those that do."""
    layout, turn = config.layout, config.slices * config.layout.rows
    this, in_group = Row(layout, in_cta), reg.scalar(u32, init=0)
    if layout.rows > 1:
        this = Row(layout, in_cta & (layout.threads - 1))
        in_group = in_cta >> (layout.threads.bit_length() - 1)
    first = reg.scalar(u32)
    ptx.inst.mul.lo.u32(first, block.cta, layout.rows)
    p_x, p_dy, p_rstd, p_dx = (elements_of(each) for each in (x, dy, rstd, dx))
    p_addend, p_weight = first_of(addend), first_of(weight)
    moving = [p for p in (p_x, p_dy, p_dx, p_addend) if p]
    row = block.first + first + in_group
    p_rstd.skip(row)
    for p in moving:
        p.skip(row, layout.n)
        this.skip_to_own(p)
    if p_weight:
        this.skip_to_own(p_weight)
        if grouped:  # all rows of a block have the same weight
            of_block = reg.scalar(u64)
            ptx.inst.cvt.u64.u32(of_block, block.first)
            p_weight.skip(group_of(of_block, layout.n), layout.n)
    loaded_from = [p for p in (p_x, p_dy, p_addend, p_weight) if p]
    parity = reg.scalar(u32, init=0)

    def exists() -> Reg | None:
        return first + in_group < block.rows if layout.rows > 1 else None

    def load() -> list[list[Packed]]:
        """A row of each tensor and last its rstd, all issued before any is used."""
        inside = this.predicates(exists())
        return [*(this.load(p, inside) for p in loaded_from), [p_rstd.load(0, 1, exists())]]

    def reduce(total: Reg) -> None:
        row_sum(total, in_cta, layout.threads, parity, barrier=DX_BARRIER)

    # A row is loaded ahead of the loop, or at its end. In the loop ptxas would load what is needed last,
    # the addend, when it is needed, and the weight, which stays the same, before all else.
    # Rows of one CTA advance together: every thread takes part in each reduction.
    with ptx.if_(first < block.rows):
        row = load()
        with ptx.loop():
            x_row, dy_row, *rest, ((scale,),) = row
            weight_of = rest.pop().__getitem__ if p_weight else lambda _: None
            addend_of = rest.pop().__getitem__ if p_addend else lambda _: None
            gradient = Gradient(p_x.dtype, scale, p_weight and p_weight.dtype, weight_offset)
            whole = WholeRow(x_row, dy_row, addend_of)
            add_row(this, whole, weight_of, gradient, [], p_dx, this.predicates(exists()), reduce)
            for p in moving:
                p.skip(turn, layout.n)
            p_rstd.skip(turn)
            first += turn
            ptx.break_(first >= block.rows)
            ptx.inst.xor.b32(parity, parity, 1)
            for old, new in zip(_registers(row), _registers(load()), strict=True):
                old.assign(new)


def _registers(rows: list[list[Packed]]) -> list[Reg]:
    return [each for row in rows for packed in row for each in packed]


def _sum_columns(
    config: FewConfig, block: _Block, thread: Reg, x: Tensor, dy: Tensor, rstd: Tensor, dw: Tensor
) -> None:
    """Stores dw of the CTA's slice: `sum over rows of dy * x * rstd`, in an order that depends on nothing
    but the configuration.
    """
    n, vector, step = config.layout.n, config.layout.vector, config.side_by_side
    round_ = config.in_flight * step
    px, pdy, p_rstd = (elements_of(each) for each in (x, dy, rstd))
    lane, first = thread & (config.lanes - 1), thread >> (config.lanes.bit_length() - 1)
    row = block.first + first
    for p in (px, pdy):
        p.skip(row, n)
        p.skip(block.cta, config.columns)
        p.skip(lane, vector)
    p_rstd.skip(row)
    sums = [reg.scalar(p_rstd.dtype, init=0.0) for _ in range(vector)]
    fma = getattr(ptx.inst.fma.rn, p_rstd.dtype.name)
    number = reg.from_(first, u32)
    with ptx.while_(lambda: number < block.rows):
        loaded = []
        for ahead in range(0, round_, step):
            exists = number + ahead < block.rows if ahead else None
            x_row, dy_row = (p.load(ahead * n, vector, exists, zeros=False) for p in (px, pdy))
            loaded.append((exists, x_row, dy_row, *p_rstd.load(ahead, 1, exists, zeros=False)))
        # A branch first, behind which ptxas moves no load: it would, to save registers.
        for exists, x_row, dy_row, scale in (*loaded[1:], loaded[0]):
            with ptx.if_(exists) if exists is not None else contextlib.nullcontext():
                terms = Gradient(px.dtype, scale).terms(x_row, dy_row, None)
                for total, (normal, dy_value, _) in zip(sums, terms, strict=True):
                    fma(total, dy_value, normal, total)
        number += round_
        for p in (px, pdy):
            p.skip(round_, n)
        p_rstd.skip(round_)
    _add_up(config, thread, lane, first, sums, elements_of(dw))


def _add_up(
    config: FewConfig, thread: Reg, lane: Reg, row: Reg, sums: list[Reg], dw: Elements
) -> None:
    """Adds up the sums of all threads that have the same columns, and stores them.

    Neighbouring threads share a column, of which each takes every so many-th thread's sum.

    Args:
        config: how the CTA's threads share its slice.
        thread: this thread's number.
        lane: its number in the row that it read.
        row: that row's number among those that were read together.
        sums: of this thread's columns.
        dw: the first element of all.
    """
    wide, columns = sums[0].dtype, config.columns
    n_bytes = wide.bits // 8
    # A gap of one access between rows: few of a warp's stores and loads then meet in a bank.
    pitch_bytes = columns * n_bytes + ACCESS_BYTES
    memory = smem.alloc(wide, (config.side_by_side, pitch_bytes // n_bytes))
    write, read = reg.from_(memory, u32), reg.from_(memory, u32)
    width = config.threads // columns
    column, part = thread >> (width.bit_length() - 1), thread & (width - 1)
    dw.skip(reg.from_(ptx.special.ctaid.x(), u32), columns)  # of all blocks' slices
    dw.skip(column)
    for at, number, in_row, each in (
        (write, row, lane, config.layout.vector * n_bytes),
        (read, part, column, n_bytes),
    ):
        ptx.inst.mad.lo.u32(at, number, pitch_bytes, at)
        ptx.inst.mad.lo.u32(at, in_row, each, at)
    Elements(write, wide).store_shared(0, sums, len(sums))
    ptx.bar.sync(DW_BARRIER, config.threads)
    turns = range(0, config.side_by_side * pitch_bytes, width * pitch_bytes)
    total, *others = (Elements(read, wide).load_shared(start, 1)[0] for start in turns)
    for other in others:
        total += other
    if width > 1:
        ptx.warp.reduce_sum(total, width=width)
    dw.store(0, [total], part == 0)
