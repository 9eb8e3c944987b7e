"""How the backward kernel takes one row: whole, in registers, or piece by piece out of shared memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from jax_ptx.dsl import ptx, reg
from jax_ptx.dsl.reg import Reg
from jax_ptx.dsl.tile import Tensor
from jax_ptx.ops.bulk import BulkRing
from jax_ptx.ops.rms_norm.elementwise import Gradient, group_of
from jax_ptx.ops.rows import Predicates, Row
from jax_ptx.ops.vectors import Elements, elements_of

Packed = list[Reg]  # the registers of a step's vector


class GradientRow(Protocol):
    """A row of x, dy and what is added to dx, which is read twice: before its mean is known, and after."""

    def first(self, step: int, /) -> tuple[Packed, Packed]:
        """A step's x and dy, the first time; steps come in order."""
        ...

    def again(self, step: int, /) -> tuple[Packed, Packed]:
        """The same, once more."""
        ...

    @property
    def addend(self) -> Callable[[int], Packed | None]:
        """What is added to a step's dx; asked for in order."""
        ...

    def done(self, step: int) -> None:
        """The step is not read any more."""
        ...


class WholeRow:
    """A row in registers: for each step a vector of x and dy."""

    def __init__(
        self, x: list[Packed], dy: list[Packed], addend: Callable[[int], Packed | None]
    ) -> None:
        """
        Args:
            x: the vectors.
            dy: the vectors.
            addend: what is added to dx in a step; asked for in order.
        """
        self._x, self._dy, self.addend = x, dy, addend

    def first(self, step: int) -> tuple[Packed, Packed]:
        return self._x[step], self._dy[step]

    again = first

    def done(self, step: int) -> None:
        pass


class RowInPieces:
    """A row that registers do not hold beside the sums of dw: its pieces stay in shared memory.

    What a piece leaves is filled at once with one of the row after it.
    """

    def __init__(
        self,
        this: Row,
        ring: BulkRing,
        addend: Callable[[int], Packed | None],
        predicates: Predicates,
        exists: Callable[[int], Reg],
    ) -> None:
        """
        Args:
            this: the thread's part of a row.
            ring: has the row's pieces next.
            addend: what is added to dx in a step.
            predicates: of each step.
            exists: whether there is a row so many turns from this one.
        """
        self._ring, self.addend = ring, addend
        self._predicates, self._exists = predicates, exists
        self._slot = ring.slot()

    def first(self, step: int) -> tuple[Packed, Packed]:
        (x,), (dy,) = self._ring.read([self._predicates[step]])
        return x, dy

    def again(self, step: int) -> tuple[Packed, Packed]:
        (x,), (dy,) = self._ring.read_again(self._slot, self._predicates[step])
        return x, dy

    def done(self, step: int) -> None:
        ptx.bar.sync(0)
        turns, piece = divmod(step + self._ring.n_slots, self._ring.pieces)
        self._ring.fill(self._exists(turns), piece)


def weight_of_steps(
    this: Row,
    rank: Reg | None,
    weight: Tensor | None,
    row: Reg | None,
    inside: Predicates,
    *,
    keep: bool,
) -> Callable[[int], Packed | None]:
    """The weight's vector of a step, for this thread.

    Args:
        this: the thread's part of a row.
        rank: the CTA's number in a cluster.
        weight: None: there is none.
        row: the row of x whose weight it is; None: all have the same.
        inside: whether the thread has an access in each step.
        keep: whether it stays in registers for all rows of the CTA, or is loaded each time: steps are then
            to be asked for in order, again and again.
    """
    if weight is None:
        return lambda step: None
    p = elements_of(weight)
    this.skip_to_own(p, rank)
    if row is not None:
        # A thread without a row reads the last group's weight, for nothing.
        existing = row.min(ptx.run_time_dim("rows") - 1)
        p.skip(group_of(existing, this.layout.n), this.layout.n)
    return _vectors_of_steps(this, p, inside, keep=keep)


def addend_of_steps(
    this: Row, addend: Elements | None, predicates: Predicates, *, keep: bool
) -> Callable[[int], Packed | None]:
    """The vector of a step of what is added to dx.

    Args:
        this: the thread's part of a row.
        addend: this thread's first elements of the addend's row; None: there is none.
        predicates: of each step.
        keep: whether the row has registers from the start, or a step at a time: steps are then asked for in
            order.
    """
    return _vectors_of_steps(this, addend, predicates, keep=keep) if addend else lambda step: None


def _vectors_of_steps(
    this: Row, elements: Elements, predicates: Predicates, *, keep: bool
) -> Callable[[int], Packed]:
    """All steps' vectors at once, or each a step before it is asked for, and the first after the last.

    The latter in order: loads that ptxas moved further would take the registers that this saves.
    """
    if keep:
        return this.load(elements, predicates).__getitem__
    layout = this.layout

    def load(step: int) -> Packed:
        return elements.load(step * layout.stride, layout.vector, predicates[step], written=True)

    ahead = load(0)

    def next_of(step: int) -> Packed:
        packed = [reg.from_(each, each.dtype) for each in ahead]
        for each, loaded in zip(ahead, load((step + 1) % layout.steps), strict=True):
            each.assign(loaded)
        return packed

    return next_of


def add_row(
    this: Row,
    row: GradientRow,
    weight: Callable[[int], Packed | None],
    gradient: Gradient,
    sums: list[Reg],
    dx: Elements | None,
    predicates: Predicates,
    reduce: Callable[[Reg], None],
) -> None:
    """Adds a row to the sums of dw, if there are any, and stores its dx, if it is needed.

    Args:
        this: the thread's part of a row.
        row: the row.
        weight: the weight's vector of a step.
        gradient: the row's.
        sums: of each of the thread's columns.
        dx: this thread's first elements of dx's row.
        predicates: of each step of dx.
        reduce: sums a register over the row's threads, in place.
    """
    layout, wide = this.layout, gradient.rstd.dtype
    fma = getattr(ptx.inst.fma.rn, wide.name)
    total = reg.scalar(wide, init=0.0)
    for step in range(layout.steps):
        terms = gradient.terms(*row.first(step), weight(step))
        for i, (normal, dy, dn) in enumerate(terms):
            if dx:
                fma(total, dn, normal, total)
            if sums:
                partial = sums[step * layout.vector + i]
                fma(partial, dy, normal, partial)
        if not dx:
            row.done(step)
    if not dx:
        return
    reduce(total)
    minus_mean = total * (-1.0 / layout.n)
    for step, pred in enumerate(predicates):
        # The terms are cheaper again than kept.
        terms = gradient.terms(*row.again(step), weight(step))
        dx.store(step * layout.stride, gradient.dx(terms, minus_mean, row.addend(step)), pred)
        row.done(step)
