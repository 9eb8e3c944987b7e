"""Pieces of row-wise kernels: one thread's part of a row, its loads and its walk over a long one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jax_ptx.dsl import ptx
from jax_ptx.dsl.reg import Reg
from jax_ptx.ops.layout import RowLayout
from jax_ptx.ops.vectors import Elements

Predicates = Sequence[Reg | None]


@dataclass(frozen=True)
class Row:
    """What a thread knows of its row while a kernel's body is emitted.

    Attributes:
        layout: how the row's threads share it.
        thread: this thread's number in the row.
    """

    layout: RowLayout
    thread: Reg

    def skip_to_own(self, elements: Elements, rank: Reg | None = None) -> None:
        """Moves from a row's first element to this thread's.

        Args:
            elements: what moves.
            rank: the CTA's number in a cluster that shares the row; None: it has the row to itself.
        """
        if rank is not None:
            elements.skip(rank, self.layout.apart)
        elements.skip(self.thread, self.layout.vector)

    def predicates(self, exists: Reg | None) -> list[Reg | None]:
        """For each step, whether this thread has an access; None: it always has.

        Args:
            exists: whether the row does; None: it does.
        """
        layout = self.layout
        predicates = [exists] * layout.steps
        if layout.accesses % layout.threads:
            inside = self.thread < layout.accesses - (layout.steps - 1) * layout.threads
            if exists is not None:
                ptx.inst.and_.pred(inside, inside, exists)
            predicates[-1] = inside
        return predicates

    def load(
        self, elements: Elements, predicates: Predicates, *, first: int = 0, written: bool = False
    ) -> list[list[Reg]]:
        """One access for each predicate, from step `first` on, all issued before any is used."""
        layout = self.layout
        return [
            elements.load(step * layout.stride, layout.vector, pred, written=written)
            for step, pred in enumerate(predicates, first)
        ]

    def walk(
        self, run: Sequence[Elements], pass_steps: int, one_pass: Callable[[Predicates], None]
    ) -> None:
        """Emits a long row as loops, so that the text does not grow with n: whole passes of several
        steps, then single steps, then the threads that have one more.

        Args:
            run: what moves on with the walk.
            pass_steps: steps of a whole pass.
            one_pass: emits one step for each predicate.
        """
        layout = self.layout
        passes, rest = divmod(layout.accesses, layout.threads * pass_steps)
        for count, steps in ((passes, pass_steps), (rest // layout.threads, 1)):
            if count:
                with ptx.loop(count):
                    one_pass([None] * steps)
                    for elements in run:
                        elements.skip(steps * layout.stride)
        if last := rest % layout.threads:
            one_pass([self.thread < last])
