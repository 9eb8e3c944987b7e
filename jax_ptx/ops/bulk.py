"""Pieces of row-wise kernels: rows that bulk copies move, between global and shared memory (sm_90).

`cp.async.bulk` (PTX ISA, "Data Movement and Conversion Instructions: Bulk copy") moves whole 16 bytes,
between addresses that are multiples of 16. A row may start at any element all the same: what is copied
starts with the 16 bytes that hold its first element, and threads find their elements in shared memory.
Tensors start at multiples of 16 bytes, and so a row starts as far behind one in all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from jax_ptx.dsl import ptx, reg, smem
from jax_ptx.dsl.operands import Address
from jax_ptx.dsl.reg import Reg
from jax_ptx.ops.layout import ACCESS_BYTES, RowLayout, bulk_slot_bytes
from jax_ptx.ops.rows import Predicates
from jax_ptx.ops.vectors import Elements
from jax_ptx.types import b8, b64, pred, u32

BARRIER_BYTES = 8


class BulkRing:
    """Slots in shared memory, each for a CTA's part of one row of several tensors of one type.

    One thread starts the copies, and the others spend no instruction on them. The mbarrier of a slot
    counts the bytes that arrived. Where a row is in pieces, each a step of all threads, a slot has a piece.
    """

    def __init__(
        self,
        layout: RowLayout,
        tensors: Sequence[Elements],
        turn: int,
        in_cta: Reg,
        n_slots: int,
        ends: Sequence[Reg],
        *,
        in_pieces: bool = False,
    ) -> None:
        """Declares the slots. A barrier of the CTA or the cluster must come before the first `read`.

        Args:
            layout: how threads share a row, of which a CTA has one at a time.
            tensors: the first elements of the CTA's first row, not this thread's; `fill` moves them on.
            turn: rows from one fill to the next, less than 0 backwards; 0: there is one.
            in_cta: this thread's number in the CTA.
            n_slots: rows on their way, and the one that is read.
            ends: for each tensor the address behind its last element.
            in_pieces: whether a slot has a piece; rows must start at multiples of 16 bytes.
        """
        self._layout, self._tensors, self._turn, self._ends = layout, tensors, turn, ends
        self._dtype, self.n_slots = tensors[0].dtype, n_slots
        self._part_bytes = layout.part * tensors[0].bytes
        self._bytes = bulk_slot_bytes(layout, self._dtype, len(tensors), in_pieces=in_pieces)
        self._tensor_bytes = self._bytes // len(tensors)
        self.pieces = layout.steps if in_pieces else 1
        self._aligned = layout.starts_aligned(self._dtype)
        slots = smem.alloc(b8, (n_slots * self._bytes,), align=ACCESS_BYTES)
        barriers = smem.alloc(b64, (n_slots,))
        self._leads = in_cta == 0
        with ptx.if_(self._leads):
            for slot in range(n_slots):
                at = ptx.addr(barriers, BARRIER_BYTES * slot)
                ptx.inst.mbarrier.init.shared__cta.b64(at, 1)
            ptx.inst.fence.mbarrier_init.release.cluster()
        self._write, self._write_barrier = reg.from_(slots, u32), reg.from_(barriers, u32)
        self._read, self._read_barrier = reg.from_(slots, u32), reg.from_(barriers, u32)
        self._end = self._read + n_slots * self._bytes
        self._parity = reg.scalar(u32, init=0)
        self._own, self._phase = reg.scalar(u32), reg.scalar(u32)
        ptx.inst.mul.lo.u32(self._own, in_cta, layout.vector * tensors[0].bytes)
        ptx.inst.cvt.u32.u64(self._phase, tensors[0].pointer & (ACCESS_BYTES - 1))

    def fill(self, exists: Reg, piece: int = 0) -> None:
        """Starts copying the next row, or its next piece, if it exists.

        No thread may still have to read what the slot had.
        """
        with ptx.if_(self._leads & exists):
            barrier = ptx.addr(self._write_barrier)
            expect = ptx.inst.mbarrier.arrive.expect_tx.shared__cta.b64
            copy = ptx.inst.cp.async_.bulk.shared__cluster.global_.mbarrier__complete_tx__bytes
            if self._aligned:
                copies = self._chunks(piece)
                expect("_", barrier, sum(size for *_, size in copies))
            else:
                copies = [self._whole_pieces(index) for index in range(len(self._tensors))]
                total = reg.scalar(u32, init=0)
                for *_, size in copies:
                    total += size
                expect("_", barrier, total)
            for index, at, start, size in copies:
                target = ptx.addr(self._write, index * self._tensor_bytes + at)
                hinted, operands = self._tensors[index].hinted(copy, target, start, size, barrier)
                hinted(*operands)
        if self._turn and piece == self.pieces - 1:
            for tensor in self._tensors:
                tensor.skip(self._turn, self._layout.n)
        self._advance(self._write, self._write_barrier)

    def _chunks(self, piece: int) -> list[tuple[int, int, Address, int]]:
        """What is copied of a row, or a piece of it: a tensor's index, the place in its part of the slot,
        the address, and the size in bytes.
        """
        layout, n_bytes = self._layout, self._tensors[0].bytes
        chunk = layout.chunk * n_bytes
        if self.pieces > 1:
            size = min(chunk, self._part_bytes - piece * chunk)
            found = [(0, piece * layout.stride * n_bytes, size)]
        elif layout.side_by_side:
            found = [(k * chunk, k * layout.stride * n_bytes, chunk) for k in range(layout.steps)]
        else:
            found = [(0, 0, self._part_bytes)]
        return [
            (index, at, ptx.addr(tensor.pointer, before), size)
            for index, tensor in enumerate(self._tensors)
            for at, before, size in found
        ]

    def _whole_pieces(self, index: int) -> tuple[int, int, Address, Reg]:
        """The 16-byte pieces with a tensor's row, as `_chunks` says it.

        Those of the tensor's last row may reach past its end: what the last, broken one holds is copied
        here.
        """
        tensor, end = self._tensors[index], self._ends[index]
        start, whole = tensor.pointer & -ACCESS_BYTES, end & -ACCESS_BYTES
        behind = (tensor.pointer + (self._part_bytes + ACCESS_BYTES - 1)) & -ACCESS_BYTES
        size, at, left = (reg.scalar(u32) for _ in range(3))
        ptx.inst.cvt.u32.u64(size, behind.min(whole) - start)
        with ptx.if_(behind > end):
            ptx.inst.cvt.u32.u64(at, whole - start)
            at += self._write + index * self._tensor_bytes
            ptx.inst.cvt.u32.u64(left, (end - whole) >> (tensor.bytes.bit_length() - 1))
            rest, place = Elements(whole, self._dtype), Elements(at, self._dtype)
            with ptx.loop(left):
                place.store_shared(0, rest.load(0, 1), 1)
                rest.skip(1)
                at += tensor.bytes
        return index, 0, ptx.addr(start), size

    def read(self, predicates: Predicates) -> list[list[list[Reg]]]:
        """Waits for the oldest row, or piece, and loads it: for each tensor and step, packed registers."""
        with ptx.while_(lambda: ~self._is_there()):
            pass
        rows = self._load(self.own_elements(), predicates)
        if not self._aligned:
            self._phase += self._turn * self._layout.n * self._tensors[0].bytes % ACCESS_BYTES
            self._phase &= ACCESS_BYTES - 1
        wraps = self._advance(self._read, self._read_barrier)
        ptx.inst.xor.b32(self._parity, self._parity, 1, pred=wraps)
        return rows

    def read_again(self, slot: Reg, pred: Reg | None) -> list[list[list[Reg]]]:
        """Loads a piece that was read before, and is not filled since, and moves `slot` on to the next."""
        rows = self._load(Elements(slot + self._own, self._dtype), [pred])
        self._advance(slot)
        return rows

    def _load(self, own: Elements, predicates: Predicates) -> list[list[list[Reg]]]:
        stride_bytes = self._layout.chunk * own.bytes
        return [
            [
                own.load_shared(
                    index * self._tensor_bytes + step * stride_bytes, self._layout.vector, p
                )
                for step, p in enumerate(predicates)
            ]
            for index in range(len(self._tensors))
        ]

    def slot(self) -> Reg:
        """Where `read` finds the oldest row: the address of the 16 bytes with its first element."""
        return reg.from_(self._read, u32)

    def own_elements(self) -> Elements:
        """This thread's first elements there, of the first tensor."""
        at = self._read + self._own
        return Elements(at if self._aligned else at + self._phase, self._dtype)

    def _is_there(self) -> Reg:
        done = reg.scalar(pred)
        wait = ptx.inst.mbarrier.try_wait.parity.shared__cta.b64
        wait(done, ptx.addr(self._read_barrier), self._parity)
        return done

    def _advance(self, at: Reg, barrier: Reg | None = None) -> Reg:
        """Moves on to the next slot; whether that is the first again."""
        at += self._bytes
        wraps = at >= self._end
        ptx.inst.sub.u32(at, at, self.n_slots * self._bytes, pred=wraps)
        if barrier is not None:
            barrier += BARRIER_BYTES
            ptx.inst.sub.u32(barrier, barrier, self.n_slots * BARRIER_BYTES, pred=wraps)
        return wraps


def store_row(staged: Elements, start: Reg, n_bytes: int, in_cta: Reg) -> None:
    """Stores a row that the CTA's threads have written to shared memory, and waits until it is read there.

    A bulk copy takes the whole 16 bytes; the first and the last elements, which share theirs with other
    rows, are stored one by one.

    Args:
        staged: the 16 bytes in shared memory with the row's first element.
        start: the row's address in global memory, as far behind a multiple of 16 bytes.
        n_bytes: its size, 32 or more.
        in_cta: this thread's number in the CTA.
    """
    ptx.inst.fence.proxy.async_.shared__cta()  # the copy sees what this thread wrote
    ptx.bar.sync(0)
    origin, behind = start & -ACCESS_BYTES, start + n_bytes
    first, last = (start + (ACCESS_BYTES - 1)) & -ACCESS_BYTES, behind & -ACCESS_BYTES

    def place(address: Reg) -> Elements:
        at = reg.scalar(u32)
        ptx.inst.cvt.u32.u64(at, address - origin)
        return Elements(at + staged.pointer, staged.dtype)

    with ptx.if_(in_cta == 0):
        size = reg.scalar(u32)
        ptx.inst.cvt.u32.u64(size, last - first)
        copy = ptx.inst.cp.async_.bulk.global_.shared__cta.bulk_group
        copy(ptx.addr(first), ptx.addr(place(first).pointer), size)
        ptx.inst.cp.async_.bulk.commit_group()
    own = in_cta * staged.bytes
    for begin, stop in ((start, first), (last, behind)):
        at = begin + own
        with ptx.if_(at < stop):
            Elements(at, staged.dtype).store_packed(0, place(at).load_shared(0, 1), 1)
    ptx.inst.cp.async_.bulk.wait_group.read(0)
