"""The forward kernel: `y = x * (rstd * weight)`, one read of x where the row fits in registers."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jax_ptx import types
from jax_ptx.dsl import ptx, reg
from jax_ptx.dsl.reg import Reg
from jax_ptx.dsl.tile import RunTime, Tensor, Tile
from jax_ptx.kernel import Kernel, kernel
from jax_ptx.launch import Launch
from jax_ptx.ops import vectors
from jax_ptx.ops.reduce import row_sum
from jax_ptx.ops.rms_norm.config import Config, rms_norm_config
from jax_ptx.ops.vectors import Elements
from jax_ptx.types import DType, f64, u32, u64

MAX_GRID = 2**31 - 1
SHORT_ROW = 64  # from here on, 2**32 rows of 16-bit elements would be half a terabyte


@functools.cache
def forward_launch(
    *, n: int, x_dtype: str, weight_dtype: str | None, grouped: bool, eps: float
) -> Launch:
    """The launch for rows of n elements, however many there are.

    Args:
        n: elements of a row.
        x_dtype: name of x's and the result's dtype.
        weight_dtype: name of the weight's dtype; None: there is no weight.
        grouped: the weight has several rows, each for as many consecutive rows of x.
        eps: added to the mean of squares.
    """
    weight_type = None if weight_dtype is None else types.by_numpy_name(weight_dtype)
    return _forward(n, types.by_numpy_name(x_dtype), weight_type, grouped, eps).launch()


def _forward(n: int, x_type: DType, weight_type: DType | None, grouped: bool, eps: float) -> Kernel:
    config = rms_norm_config(n, x_type)
    rows = Tile(RunTime("rows"), n, x_type)
    weights = []
    if weight_type is not None:
        weights = [Tile(RunTime("groups"), n, weight_type) if grouped else Tile(n, weight_type)]
    declare = kernel(
        in_specs=(rows, *weights),
        out_specs=(rows,),
        grid=(MAX_GRID, 1, 1),
        block=(config.threads * config.rows, 1, 1),
        rows_per_cta=config.rows,
    )

    def rms_norm(x: Tensor, weight: Tensor, y: Tensor) -> None:
        _emit(n, config, eps, x, weight, grouped, y)

    def rms_norm_unweighted(x: Tensor, y: Tensor) -> None:
        _emit(n, config, eps, x, None, False, y)

    return declare(rms_norm_unweighted if weight_type is None else rms_norm)


@dataclass(frozen=True)
class _Row:
    """What a thread knows of its row while the body is emitted.

    Attributes:
        n: elements of the row.
        config: how its threads share it.
        thread: this thread's number in the row.
        exists: whether the row does; None: every row of the grid does.
        x, y, weight: this thread's first elements.
    """

    n: int
    config: Config
    thread: Reg
    exists: Reg | None
    x: Elements
    y: Elements
    weight: Elements | None

    @property
    def stride(self) -> int:
        """Elements from one access of a thread to its next."""
        return self.config.threads * self.config.vector

    def predicates(self) -> list[Reg | None]:
        """For each step of a row in registers, whether this thread has an access; None: it has."""
        accesses, threads = self.n // self.config.vector, self.config.threads
        steps = math.ceil(accesses / threads)
        predicates = [self.exists] * steps
        if accesses % threads:
            inside = self.thread < accesses - (steps - 1) * threads
            if self.exists is not None:
                ptx.inst.and_.pred(inside, inside, self.exists)
            predicates[-1] = inside
        return predicates

    def load(self, x: Elements, predicates: Sequence[Reg | None]) -> list[list[Reg]]:
        """One access of x for each predicate, all issued before any is used."""
        return [
            x.load(step * self.stride, self.config.vector, pred)
            for step, pred in enumerate(predicates)
        ]

    def scale(
        self, loaded: Sequence[Sequence[Reg]], predicates: Sequence[Reg | None], rstd: Reg
    ) -> None:
        """Stores the results of what `load` gave."""
        for step, (packed, pred) in enumerate(zip(loaded, predicates, strict=True)):
            values = vectors.widen(packed, self.x.dtype)
            scales = [rstd] * len(values)
            if weight := self.weight:
                weights = weight.load(step * self.stride, self.config.vector, pred)
                scales = [
                    rstd * vectors.convert(w, rstd.dtype)
                    for w in vectors.widen(weights, weight.dtype)
                ]
            scaled = [value * scale for value, scale in zip(values, scales, strict=True)]
            self.y.store(step * self.stride, scaled, pred)

    def walk(
        self, run: Sequence[Elements], one_pass: Callable[[Sequence[Reg | None]], None]
    ) -> None:
        """Emits a long row as loops, so that the text does not grow with n: whole passes of several
        steps, then single steps, then the threads that have one more.

        Args:
            run: what moves on with the walk.
            one_pass: emits one step for each predicate.
        """
        accesses, config = self.n // self.config.vector, self.config
        passes, rest = divmod(accesses, config.threads * config.steps)
        for count, steps in ((passes, config.steps), (rest // config.threads, 1)):
            if count:
                with ptx.loop(count):
                    one_pass([None] * steps)
                    for elements in run:
                        elements.skip(steps * self.stride)
        if last := rest % config.threads:
            one_pass([self.thread < last])


def _emit(
    n: int, config: Config, eps: float, x: Tensor, weight: Tensor | None, grouped: bool, y: Tensor
) -> None:
    """The kernel's body."""
    tensors = [x, y] if weight is None else [x, y, weight]
    pointers = ptx.global_ptrs(*tensors)
    parts = [Elements(p, t.dtype) for p, t in zip(pointers, tensors, strict=True)]
    in_cta = reg.from_(ptx.special.tid.x(), u32)
    in_row = in_cta & (config.threads - 1)
    row = reg.from_(ptx.special.ctaid.x(), u32) * config.rows
    exists = None
    if config.rows > 1:
        row += in_cta >> (config.threads.bit_length() - 1)
        exists = row < ptx.run_time_dim("rows")
    for part in parts:
        part.skip(in_row, config.vector)
    for part in parts[:2]:
        part.skip(row, n)
    if grouped:
        parts[2].skip(_group_of(row, n), n)

    this = _Row(n, config, in_row, exists, *parts, *([None] if weight is None else []))
    if config.looped:
        total = _sum_squares_looped(this)
        rstd = _rstd(total, in_cta, n, eps, config)

        def scale_pass(predicates: Sequence[Reg | None]) -> None:
            # The second read of a long row, which L2 serves as far as it reaches.
            this.scale(this.load(this.x, predicates), predicates, rstd)

        this.walk(parts, scale_pass)
    else:
        predicates = this.predicates()
        loaded = this.load(this.x, predicates)
        total = reg.scalar(vectors.wide_type(x.dtype), init=0.0)
        for packed in loaded:
            _add_squares(total, vectors.widen(packed, x.dtype))
        this.scale(loaded, predicates, _rstd(total, in_cta, n, eps, config))
    ptx.ret()


def _group_of(row: Reg, n: int) -> Reg:
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


def _add_squares(total: Reg, values: Sequence[Reg]) -> None:
    for value in values:
        getattr(ptx.inst.fma.rn, total.dtype.name)(total, value, value, total)


def _sum_squares_looped(row: _Row) -> Reg:
    """A thread's part of the sum over a long row.

    A pass is summed by itself and added with compensation (Kahan, 1965): the error does not grow with
    the number of passes, of which a row of 2**28 has thousands.
    """
    wide = vectors.wide_type(row.x.dtype)
    total, lost = reg.scalar(wide, init=0.0), reg.scalar(wide, init=0.0)
    x = Elements(reg.from_(row.x.pointer, u64), row.x.dtype)

    def sum_pass(predicates: Sequence[Reg | None]) -> None:
        part = reg.scalar(wide, init=0.0)
        for packed in row.load(x, predicates):
            _add_squares(part, vectors.widen(packed, x.dtype))
        part -= lost
        new = total + part
        lost.assign((new - total) - part)
        total.assign(new)

    row.walk([x], sum_pass)
    return total


def _rstd(total: Reg, in_cta: Reg, n: int, eps: float, config: Config) -> Reg:
    """1 / sqrt(mean + eps), from each thread's part of the sum of squares."""
    row_sum(total, in_cta, config.threads)
    mean = total * (1.0 / n) + eps
    rstd = reg.scalar(total.dtype)
    if total.dtype is f64:  # there is no accurate rsqrt of a float64
        ptx.inst.sqrt.rn.f64(rstd, mean)
        ptx.inst.rcp.rn.f64(rstd, rstd)
    else:
        ptx.inst.rsqrt.approx.f32(rstd, mean)
    return rstd
