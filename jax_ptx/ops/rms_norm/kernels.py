"""The forward kernel: `y = x * (rstd * weight)`, one read of x where the row fits in registers."""

from __future__ import annotations

import functools

from jax_ptx import types
from jax_ptx.dsl import ptx, reg
from jax_ptx.dsl.reg import Reg
from jax_ptx.dsl.tile import RunTime, Tensor, Tile
from jax_ptx.launch import Launch
from jax_ptx.ops import vectors
from jax_ptx.ops.declare import MAX_GRID, launch_of
from jax_ptx.ops.reduce import row_sum
from jax_ptx.ops.rms_norm.config import ForwardConfig, forward_config
from jax_ptx.ops.rms_norm.elementwise import Finish, Source, inverse_scale
from jax_ptx.ops.rms_norm.options import Options
from jax_ptx.ops.rows import Predicates, Row
from jax_ptx.ops.vectors import elements_of, first_of
from jax_ptx.types import f32, f64, u32

SHORT_ROW = 64  # from here on, 2**32 rows of 16-bit elements would be half a terabyte


@functools.cache
def forward_launch(
    *,
    n: int,
    x_dtype: str,
    weight_dtype: str | None,
    grouped: bool,
    options: Options,
    residual: bool,
    out_dtype: str | None,
    with_rstd: bool,
) -> Launch:
    """The launch for rows of n elements, however many there are.

    Operands are x, the residual, the weight and the scale; results are y, `x + residual` and rstd, as
    far as they are asked for.

    Args:
        n: elements of a row.
        x_dtype: name of x's, the residual's and their sum's dtype.
        weight_dtype: name of the weight's dtype; None: there is no weight.
        grouped: the weight has several rows, each for as many consecutive rows of x.
        options: what is computed.
        residual: whether there is a residual, which is added to x, and their sum a result.
        out_dtype: name of the 8-bit dtype that y, divided by a scale, is rounded to; None: x's.
        with_rstd: whether `1 / sqrt(mean + eps)` of each row is a result.
    """
    x_type = types.by_numpy_name(x_dtype)
    config = forward_config(n, x_type)
    rows = Tile(RunTime("rows"), n, x_type)
    inputs, outputs = {"x": rows}, {"y": rows}
    if residual:
        inputs["residual"] = outputs["added"] = rows
    inputs |= weight_tile(n, weight_dtype, grouped)
    if out_dtype:
        inputs["scale"] = Tile(f32)
        outputs["y"] = Tile(RunTime("rows"), n, types.by_numpy_name(out_dtype))
    if with_rstd:
        outputs["rstd"] = Tile(RunTime("rows"), vectors.wide_type(x_type))
    return launch_of(
        "add_rms_norm" if residual else "rms_norm",
        inputs,
        outputs,
        functools.partial(_forward, config, options, grouped),
        grid=(MAX_GRID, 1, 1),
        block=(config.layout.cta_threads, 1, 1),
        rows_per_cta=config.layout.rows,
    )


def weight_tile(n: int, weight_dtype: str | None, grouped: bool) -> dict[str, Tile]:
    """The weight's tile, if there is a weight."""
    if weight_dtype is None:
        return {}
    weight_type = types.by_numpy_name(weight_dtype)
    tile = Tile(RunTime("groups"), n, weight_type) if grouped else Tile(n, weight_type)
    return {"weight": tile}


def _forward(
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
    """The kernel's body."""
    layout = config.layout
    source = Source(elements_of(x), first_of(residual), first_of(added))
    py, pw = elements_of(y), first_of(weight)
    in_cta = reg.from_(ptx.special.tid.x(), u32)
    this = Row(layout, in_cta & (layout.threads - 1))
    number = reg.from_(ptx.special.ctaid.x(), u32) * layout.rows
    exists = None
    if layout.rows > 1:
        number += in_cta >> (layout.threads.bit_length() - 1)
        exists = number < ptx.run_time_dim("rows")
    for part in (*source.moving, py):
        part.skip(number, layout.n)
        part.skip(this.thread, layout.vector)
    if pw:
        pw.skip(this.thread, layout.vector)
        if grouped:
            pw.skip(group_of(number, layout.n), layout.n)

    predicates = [] if config.pass_steps else this.predicates(exists)
    loaded = source.load(this, predicates)
    if config.pass_steps:
        total = _sum_squares_looped(this, source, config.pass_steps)
    else:
        total = reg.scalar(vectors.wide_type(source.dtype), init=0.0)
        for packed in loaded:
            _add_squares(total, vectors.widen(packed, source.dtype))
    row_sum(total, in_cta, layout.threads)
    row_rstd = _rstd(total * (1.0 / layout.n) + options.eps)
    if rstd is not None:
        _store_rstd(this, rstd, number, row_rstd, exists)
    finish = Finish(options, source.dtype, py, pw, row_rstd, inverse_scale(scale, row_rstd))

    if config.pass_steps:

        def second_pass(steps: Predicates) -> None:
            # The second read of a long row, which L2 serves as far as it reaches.
            for step, packed in enumerate(source.load_again(this, steps)):
                finish.store(packed, step * layout.stride, layout.vector, steps[step])

        moving = [e for e in (source.again, py, pw) if e]
        this.walk(moving, config.pass_steps, second_pass)
    for step, packed in enumerate(loaded):
        finish.store(packed, step * layout.stride, layout.vector, predicates[step])
    ptx.ret()


# ---- rows and groups ----


def group_of(row: Reg, n: int) -> Reg:
    """The row of the weight that belongs to a row of x."""
    counts = [row, ptx.run_time_dim("rows"), ptx.run_time_dim("groups")]
    if n >= SHORT_ROW:
        # ptxas inlines a division of 32 bits and calls a routine for one of 64, which costs registers.
        narrow = [reg.scalar(u32) for _ in counts]
        for target, count in zip(narrow, counts, strict=True):
            ptx.inst.cvt.u32.u64(target, count)
        counts = narrow
    row, rows, groups = counts
    divide = getattr(ptx.inst.div, row.dtype.name)
    rows_per_group, group = reg.scalar(row.dtype), reg.scalar(row.dtype)
    divide(rows_per_group, rows, groups)
    divide(group, row, rows_per_group)
    return group


def _store_rstd(this: Row, rstd: Tensor, number: Reg, value: Reg, exists: Reg | None) -> None:
    out = elements_of(rstd)
    out.skip(number)
    first = this.thread == 0
    if exists is not None:
        ptx.inst.and_.pred(first, first, exists)
    out.store(0, [value], first)


def _add_squares(total: Reg, values: list[Reg]) -> None:
    for value in values:
        getattr(ptx.inst.fma.rn, total.dtype.name)(total, value, value, total)


def _sum_squares_looped(this: Row, source: Source, pass_steps: int) -> Reg:
    """A thread's part of the sum over a long row.

    A pass is summed by itself and added with compensation (Kahan, 1965): the error does not grow with
    the number of passes, of which a row of 2**28 has thousands.
    """
    wide = vectors.wide_type(source.dtype)
    total, lost = reg.scalar(wide, init=0.0), reg.scalar(wide, init=0.0)
    source = source.copy()

    def sum_pass(predicates: Predicates) -> None:
        part = reg.scalar(wide, init=0.0)
        for packed in source.load(this, predicates):
            _add_squares(part, vectors.widen(packed, source.dtype))
        part -= lost
        new = total + part
        lost.assign((new - total) - part)
        total.assign(new)

    this.walk(source.moving, pass_steps, sum_pass)
    return total


def _rstd(mean: Reg) -> Reg:
    """1 / sqrt(mean)."""
    rstd = reg.scalar(mean.dtype)
    if mean.dtype is f64:  # there is no accurate rsqrt of a float64
        ptx.inst.sqrt.rn.f64(rstd, mean)
        ptx.inst.rcp.rn.f64(rstd, rstd)
    else:
        ptx.inst.rsqrt.approx.f32(rstd, mean)
    return rstd
