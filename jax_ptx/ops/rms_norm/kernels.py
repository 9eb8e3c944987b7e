"""The forward kernel: `y = x * (rstd * weight)`, one read of x where the row fits in registers."""

from __future__ import annotations

import functools

from jax_ptx import types
from jax_ptx.dsl import ptx, reg
from jax_ptx.dsl.reg import Reg
from jax_ptx.dsl.tile import RunTime, Tensor, Tile
from jax_ptx.kernel import kernel
from jax_ptx.launch import Launch
from jax_ptx.ops import vectors
from jax_ptx.ops.reduce import row_sum
from jax_ptx.ops.rms_norm.config import ForwardConfig, forward_config
from jax_ptx.ops.rows import Predicates, Row
from jax_ptx.ops.vectors import Elements
from jax_ptx.types import f64, u32, u64

MAX_GRID = 2**31 - 1
SHORT_ROW = 64  # from here on, 2**32 rows of 16-bit elements would be half a terabyte


@functools.cache
def forward_launch(
    *, n: int, x_dtype: str, weight_dtype: str | None, grouped: bool, eps: float, with_rstd: bool
) -> Launch:
    """The launch for rows of n elements, however many there are.

    Args:
        n: elements of a row.
        x_dtype: name of x's and the result's dtype.
        weight_dtype: name of the weight's dtype; None: there is no weight.
        grouped: the weight has several rows, each for as many consecutive rows of x.
        eps: added to the mean of squares.
        with_rstd: whether `1 / sqrt(mean + eps)` of each row is a second result.
    """
    x_type = types.by_numpy_name(x_dtype)
    config = forward_config(n, x_type)
    rows = Tile(RunTime("rows"), n, x_type)
    weights = weight_tiles(n, weight_dtype, grouped)
    statistics = (Tile(RunTime("rows"), vectors.wide_type(x_type)),) if with_rstd else ()
    emit = functools.partial(_forward, config, eps, grouped)

    # A kernel's parameters are its function's, so there is one function for each set of tensors.
    def rms_norm(x: Tensor, weight: Tensor, y: Tensor) -> None:
        emit(x, weight, y, None)

    def rms_norm_rstd(x: Tensor, weight: Tensor, y: Tensor, rstd: Tensor) -> None:
        emit(x, weight, y, rstd)

    def rms_norm_unweighted(x: Tensor, y: Tensor) -> None:
        emit(x, None, y, None)

    def rms_norm_unweighted_rstd(x: Tensor, y: Tensor, rstd: Tensor) -> None:
        emit(x, None, y, rstd)

    weighted = (rms_norm, rms_norm_rstd)
    unweighted = (rms_norm_unweighted, rms_norm_unweighted_rstd)
    declare = kernel(
        in_specs=(rows, *weights),
        out_specs=(rows, *statistics),
        grid=(MAX_GRID, 1, 1),
        block=(config.layout.cta_threads, 1, 1),
        rows_per_cta=config.layout.rows,
    )
    return declare((weighted if weights else unweighted)[with_rstd]).launch()


def weight_tiles(n: int, weight_dtype: str | None, grouped: bool) -> tuple[Tile, ...]:
    """The weight's tile, if there is a weight."""
    if weight_dtype is None:
        return ()
    weight_type = types.by_numpy_name(weight_dtype)
    return (Tile(RunTime("groups"), n, weight_type) if grouped else Tile(n, weight_type),)


def _forward(
    config: ForwardConfig,
    eps: float,
    grouped: bool,
    x: Tensor,
    weight: Tensor | None,
    y: Tensor,
    rstd: Tensor | None,
) -> None:
    """The kernel's body."""
    layout = config.layout
    tensors = [x, y] if weight is None else [x, y, weight]
    px, py, *pw = elements_of(*tensors)
    in_cta = reg.from_(ptx.special.tid.x(), u32)
    this = Row(layout, in_cta & (layout.threads - 1))
    number = reg.from_(ptx.special.ctaid.x(), u32) * layout.rows
    exists = None
    if layout.rows > 1:
        number += in_cta >> (layout.threads.bit_length() - 1)
        exists = number < ptx.run_time_dim("rows")
    for part in (px, py, *pw):
        part.skip(this.thread, layout.vector)
    for part in (px, py):
        part.skip(number, layout.n)
    if grouped:
        pw[0].skip(group_of(number, layout.n), layout.n)

    predicates = [] if config.pass_steps else this.predicates(exists)
    loaded = this.load(px, predicates)
    if config.pass_steps:
        total = _sum_squares_looped(this, px, config.pass_steps)
    else:
        total = reg.scalar(vectors.wide_type(px.dtype), init=0.0)
        for packed in loaded:
            _add_squares(total, vectors.widen(packed, px.dtype))
    row_sum(total, in_cta, layout.threads)
    scale = _rstd(total * (1.0 / layout.n) + eps)
    if rstd is not None:
        _store_rstd(this, rstd, number, scale, exists)

    def store(packed: list[Reg], step: int, pred: Reg | None) -> None:
        values, scales = vectors.widen(packed, px.dtype), [scale] * layout.vector
        for w in pw:
            weights = w.load(step * layout.stride, layout.vector, pred)
            scales = [
                scale * vectors.convert(v, scale.dtype) for v in vectors.widen(weights, w.dtype)
            ]
        scaled = [value * s for value, s in zip(values, scales, strict=True)]
        py.store(step * layout.stride, scaled, pred)

    if config.pass_steps:

        def second_pass(steps: Predicates) -> None:
            # The second read of a long row, which L2 serves as far as it reaches.
            for step, packed in enumerate(this.load(px, steps)):
                store(packed, step, steps[step])

        this.walk([px, py, *pw], config.pass_steps, second_pass)
    for step, packed in enumerate(loaded):
        store(packed, step, predicates[step])
    ptx.ret()


def elements_of(*tensors: Tensor) -> list[Elements]:
    """Each tensor's first element."""
    pointers = ptx.global_ptrs(*tensors)
    return [Elements(p, t.dtype) for p, t in zip(pointers, tensors, strict=True) if t.dtype]


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


def _store_rstd(this: Row, rstd: Tensor, number: Reg, scale: Reg, exists: Reg | None) -> None:
    (out,) = elements_of(rstd)
    out.skip(number)
    first = this.thread == 0
    if exists is not None:
        ptx.inst.and_.pred(first, first, exists)
    out.store(0, [scale], first)


def _add_squares(total: Reg, values: list[Reg]) -> None:
    for value in values:
        getattr(ptx.inst.fma.rn, total.dtype.name)(total, value, value, total)


def _sum_squares_looped(this: Row, x: Elements, pass_steps: int) -> Reg:
    """A thread's part of the sum over a long row.

    A pass is summed by itself and added with compensation (Kahan, 1965): the error does not grow with
    the number of passes, of which a row of 2**28 has thousands.
    """
    wide = vectors.wide_type(x.dtype)
    total, lost = reg.scalar(wide, init=0.0), reg.scalar(wide, init=0.0)
    x = Elements(reg.from_(x.pointer, u64), x.dtype)

    def sum_pass(predicates: Predicates) -> None:
        part = reg.scalar(wide, init=0.0)
        for packed in this.load(x, predicates):
            _add_squares(part, vectors.widen(packed, x.dtype))
        part -= lost
        new = total + part
        lost.assign((new - total) - part)
        total.assign(new)

    this.walk([x], pass_steps, sum_pass)
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
