"""Element by element, on vectors in registers: how a row begins and ends in both kernels.

However a kernel shares a row among threads or waits for it, these are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jax_ptx.dsl import ptx, reg
from jax_ptx.dsl.reg import Reg
from jax_ptx.dsl.tile import Tensor
from jax_ptx.ops import vectors
from jax_ptx.ops.layout import MAX_THREADS
from jax_ptx.ops.rms_norm.options import Options
from jax_ptx.ops.rows import Predicates, Row
from jax_ptx.ops.vectors import Elements, elements_of
from jax_ptx.types import DType, f64, u32

# Accesses of x and of the residual that are on their way together where a CTA has 1,024 threads, and
# a thread 64 registers.
RESIDUAL_STEPS = 2
SHORT_ROW = 64  # from here on, 2**32 rows of 16-bit elements would be half a terabyte

# ---- a row's beginning: x, or the rounded sum of x and the residual ----


@dataclass(frozen=True)
class Source:
    """Where the rows come from: x, or `x + residual`, which is rounded to x's dtype and stored.

    Attributes:
        x: this thread's first elements of its row.
        residual: the same of the residual; None: there is none.
        added: where the sum goes.
    """

    x: Elements
    residual: Elements | None = None
    added: Elements | None = None

    @property
    def dtype(self) -> DType:
        """The type of what is normalised."""
        return self.x.dtype

    @property
    def moving(self) -> list[Elements]:
        """All that moves along a row."""
        return [e for e in (self.x, self.residual, self.added) if e]

    @property
    def again(self) -> Elements:
        """What a second walk over the row reads."""
        return self.added or self.x

    def copy(self) -> Source:
        """The same, to be moved on by itself."""
        rest = (e and e.copy() for e in (self.residual, self.added))
        return Source(self.x.copy(), *rest)

    def load(self, this: Row, predicates: Predicates, *, in_order: bool = False) -> list[list[Reg]]:
        """What is normalised, packed: one access for each predicate.

        Args:
            this: the thread's part of the row.
            predicates: of each step.
            in_order: whether loads of x stay behind what comes before them.
        """
        if self.residual is None:
            return this.load(self.x, predicates, written=in_order)
        layout, rows = this.layout, []
        chunk = RESIDUAL_STEPS if layout.threads == MAX_THREADS else max(1, len(predicates))
        for first in range(0, len(predicates), chunk):
            part = predicates[first : first + chunk]
            pairs = [this.load(e, part, first=first) for e in (self.x, self.residual)]
            for step, (a, b) in enumerate(zip(*pairs, strict=True), first):
                rows.append(self.add(a, b, step * layout.stride, layout.vector, predicates[step]))
        return rows

    def add(
        self, x: Sequence[Reg], residual: Sequence[Reg], offset: int, count: int, pred: Reg | None
    ) -> list[Reg]:
        """The sum of packed vectors, rounded, packed, and stored."""
        pairs = zip(vectors.widen(x, self.dtype), vectors.widen(residual, self.dtype), strict=True)
        packed = vectors.pack([a + b for a, b in pairs], self.dtype)
        if self.added:
            self.added.store_packed(offset, packed, count, pred)
        return packed

    def load_again(self, this: Row, predicates: Predicates) -> list[list[Reg]]:
        """What `load` gave at the same place, by the same thread."""
        return this.load(self.again, predicates, written=self.added is not None)


# ---- a row's end: scale, round, multiply with the weight, store ----


@dataclass(frozen=True)
class Finish:
    """What becomes of a row once its rstd is known.

    Attributes:
        options: what is computed.
        dtype: x's type.
        y: this thread's first elements of the result's row.
        weight: the same of the weight's; None: there is no weight.
        rstd: the row's.
        inverse_scale: what the result is multiplied by last; None: nothing.
        in_order: whether a load of the weight stays behind the stores before it. ptxas moves those from
            the read-only cache to the front, all together, and takes registers from the row.
        zero: a register that is 0, which ptxas does not know: it then widens x once more, where it would keep
            two registers for one. None: it may.
    """

    options: Options
    dtype: DType
    y: Elements
    weight: Elements | None
    rstd: Reg
    inverse_scale: Reg | None = None
    in_order: bool = False
    zero: Reg | None = None

    def store(
        self,
        packed: Sequence[Reg],
        offset: int,
        count: int,
        pred: Reg | None,
        weights: Sequence[Reg] | None = None,
    ) -> None:
        """Normalises a packed vector and stores it; the arguments are those of `values`."""
        self.y.store(offset, self.values(packed, offset, count, pred, weights), pred)

    def values(
        self,
        packed: Sequence[Reg],
        offset: int,
        count: int,
        pred: Reg | None,
        weights: Sequence[Reg] | None = None,
    ) -> list[Reg]:
        """A packed vector normalised: wide values.

        Args:
            packed: the vector.
            offset: where it is in the row.
            count: its elements.
            pred: a predicate, or None.
            weights: the weight's packed vector, if it is loaded already.
        """
        if self.zero is not None:
            packed = [register ^ self.zero for register in packed]
        values = [value * self.rstd for value in vectors.widen(packed, self.dtype)]
        if self.weight:
            if self.options.round_before_weight:
                values = vectors.widen(vectors.pack(values, self.dtype), self.dtype)
            if weights is None:
                weights = self.weight.load(offset, count, pred, written=self.in_order)
            factors = wide_weight(
                weights, self.weight.dtype, self.rstd.dtype, self.options.weight_offset
            )
            values = [value * factor for value, factor in zip(values, factors, strict=True)]
        if self.inverse_scale is not None:
            values = [value * self.inverse_scale for value in values]
        return values


def wide_weight(packed: Sequence[Reg], dtype: DType, wide: DType, offset: float) -> list[Reg]:
    """A packed vector of the weight as it is multiplied with: wide, and with its offset."""
    values = [vectors.convert(value, wide) for value in vectors.widen(packed, dtype)]
    return [value + offset for value in values] if offset else values


def inverse_scale(scale: Tensor | None, like: Reg) -> Reg | None:
    """1 / scale in the type of `like`."""
    if scale is None:
        return None
    inverse = reg.scalar(like.dtype)
    value = vectors.convert(elements_of(scale).load(0, 1)[0], like.dtype)
    getattr(ptx.inst.rcp.rn, like.dtype.name)(inverse, value)
    return inverse


# ---- statistics ----


def sum_of_squares(row: Sequence[Sequence[Reg]], dtype: DType) -> Reg:
    """A thread's part of the sum of a row's squares, from its packed vectors of that type, in order."""
    total = reg.scalar(vectors.wide_type(dtype), init=0.0)
    for packed in row:
        for value in vectors.widen(packed, dtype):
            getattr(ptx.inst.fma.rn, total.dtype.name)(total, value, value, total)
    return total


def rstd_of(total: Reg, n: int, eps: float) -> Reg:
    """1 / sqrt(mean + eps), of a sum of n squares."""
    mean = total * (1.0 / n) + eps
    rstd = reg.scalar(mean.dtype)
    if mean.dtype is f64:  # there is no accurate rsqrt of a float64
        ptx.inst.sqrt.rn.f64(rstd, mean)
        ptx.inst.rcp.rn.f64(rstd, rstd)
    else:
        ptx.inst.rsqrt.approx.f32(rstd, mean)
    return rstd


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


# ---- backward ----


@dataclass(frozen=True)
class Gradient:
    """What a row's gradients are made of, once its rstd is known.

    Attributes:
        dtype: x's and dy's type.
        rstd: the row's.
        weight_type: the weight's type; None: there is no weight.
        weight_offset: added to the weight.
    """

    dtype: DType
    rstd: Reg
    weight_type: DType | None = None
    weight_offset: float = 0.0

    def terms(
        self, x: Sequence[Reg], dy: Sequence[Reg], weight: Sequence[Reg] | None
    ) -> list[tuple[Reg, Reg, Reg]]:
        """For each element of packed vectors: `x * rstd`, dy, `dy * weight`."""
        normals = [value * self.rstd for value in vectors.widen(x, self.dtype)]
        dys = vectors.widen(dy, self.dtype)
        if weight is None or self.weight_type is None:
            return list(zip(normals, dys, dys, strict=True))
        ws = wide_weight(weight, self.weight_type, self.rstd.dtype, self.weight_offset)
        return [(a, dy, dy * w) for a, dy, w in zip(normals, dys, ws, strict=True)]

    def dx(
        self,
        terms: Sequence[tuple[Reg, Reg, Reg]],
        minus_mean: Reg,
        addend: Sequence[Reg] | None,
    ) -> list[Reg]:
        """dx, unrounded: `rstd * (dn - normal * mean)`, plus a packed vector of addends."""
        fma = getattr(ptx.inst.fma.rn, self.rstd.dtype.name)
        addends = None if addend is None else vectors.widen(addend, self.dtype)
        values = []
        for index, (normal, _, dn) in enumerate(terms):
            value = reg.scalar(self.rstd.dtype)
            fma(value, normal, minus_mean, dn)
            if addends is None:
                values.append(value * self.rstd)
            else:
                fma(value, value, self.rstd, addends[index])
                values.append(value)
        return values
