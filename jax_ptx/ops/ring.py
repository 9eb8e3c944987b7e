"""Pieces of row-wise kernels: rows on their way from global memory while earlier ones are computed.

`cp.async` (PTX ISA, "Data Movement and Conversion Instructions: Asynchronous copy") needs no register for
what is on its way. Each thread copies just the accesses that it reads itself, so a wait for its own copies
is all the synchronisation there is.
"""

from __future__ import annotations

from collections.abc import Sequence

from jax_ptx.dsl import ptx, reg, smem
from jax_ptx.dsl.reg import Reg
from jax_ptx.ops.layout import ACCESS_BYTES, RowLayout
from jax_ptx.ops.rows import Predicates
from jax_ptx.ops.vectors import Elements
from jax_ptx.types import DType, u32


class Ring:
    """Slots in shared memory, each for one row of several tensors of one type."""

    def __init__(
        self,
        layout: RowLayout,
        tensors: Sequence[Elements],
        turn: int | Reg,
        in_cta: Reg,
        n_slots: int,
        memory: DType,
    ) -> None:
        """Declares the slots.

        Args:
            layout: how threads share a row.
            tensors: this thread's first elements of its first row; `fill` moves them on.
            turn: rows from one fill to the next, less than 0 backwards.
            in_cta: this thread's number in the CTA.
            n_slots: rows on their way, and the one that is read.
            memory: element type of `self.memory`, which is free for other use after `drain`.
        """
        self.layout, self.tensors, self.turn, self.n_slots = layout, tensors, turn, n_slots
        self.dtype = tensors[0].dtype
        self.access_bytes = layout.vector * tensors[0].bytes
        self.step_bytes = layout.cta_threads * self.access_bytes
        self.bytes = len(tensors) * layout.steps * self.step_bytes
        self.memory = smem.alloc(
            memory, (n_slots * self.bytes * 8 // memory.bits,), align=ACCESS_BYTES
        )
        base = reg.from_(self.memory, u32)
        own = reg.scalar(u32)
        ptx.inst.mad.lo.u32(own, in_cta, self.access_bytes, base)
        self.write, self.read_at = own, reg.from_(own, u32)
        self.end = own + n_slots * self.bytes

    def fill(self, predicates: Predicates) -> None:
        """Starts copying the next row; where a predicate is false, zeros take its place."""
        modifier = (
            ptx.inst.cp.async_.cg if self.access_bytes == ACCESS_BYTES else ptx.inst.cp.async_.ca
        )
        for index, tensor in enumerate(self.tensors):
            for step, pred in enumerate(predicates):
                target = ptx.addr(self.write, self._offset(index, step))
                source = ptx.addr(tensor.pointer, step * self.layout.stride * tensor.bytes)
                operands = [target, source, self.access_bytes]
                if pred is not None:
                    size = reg.scalar(u32)  # bytes that are read; the others are zeros
                    ptx.inst.selp.u32(size, self.access_bytes, 0, pred)
                    operands.append(size)
                hinted, operands = tensor.hinted(modifier.shared.global_, *operands)
                hinted(*operands)
            tensor.skip(self.turn, self.layout.n)
        ptx.inst.cp.async_.commit_group()
        self._advance(self.write)

    def read(self) -> list[list[list[Reg]]]:
        """Waits for the oldest row, and loads it: for each tensor and step, packed registers."""
        ptx.inst.cp.async_.wait_group(self.n_slots - 1)
        rows = [
            [
                Elements(self.read_at, self.dtype).load_shared(
                    self._offset(index, step), self.layout.vector
                )
                for step in range(self.layout.steps)
            ]
            for index in range(len(self.tensors))
        ]
        self._advance(self.read_at)
        return rows

    def drain(self) -> None:
        """Waits until every thread of the CTA is done with the slots."""
        ptx.inst.cp.async_.wait_all()
        ptx.bar.sync(0)

    def _offset(self, tensor: int, step: int) -> int:
        return (tensor * self.layout.steps + step) * self.step_bytes

    def _advance(self, at: Reg) -> None:
        at += self.bytes
        ptx.inst.sub.u32(at, at, self.n_slots * self.bytes, pred=at >= self.end)
