"""Pieces of kernels that give a CTA one float32 row: its loads, its stores, its reductions."""

from __future__ import annotations

from collections.abc import Sequence

from jax_ptx import ptx, reg, smem
from jax_ptx.types import f32, u32

WARP = 32
MAX_THREADS = 1024
VECTOR = 4  # floats in 16 bytes


class Row:
    """How a CTA's threads share a row of `n` floats; each method emits code into the kernel.

    Thread t takes accesses t, t + threads, t + 2 * threads and so on, of 16 bytes where n allows it.
    """

    def __init__(self, n: int) -> None:
        if n < 1:
            raise ValueError(f"a row needs at least one element, got {n}")
        self.vector = VECTOR if n % VECTOR == 0 else 1
        self.accesses = n // self.vector
        self.threads = WARP
        while self.threads < MAX_THREADS and self.threads * 4 < self.accesses:
            self.threads *= 2
        self.steps = -(-self.accesses // self.threads)

    def begin(self, n: int, rows: Sequence, shared: Sequence = ()) -> list:
        """Pointers to this thread's first access: in this CTA's row, or in a row that all CTAs share."""
        pointers = ptx.global_ptrs(*rows, *shared)
        self.thread = reg.from_(ptx.special.tid.x(), u32)
        first = self.thread * (self.vector * 4)
        row = reg.from_(ptx.special.ctaid.x(), u32) * (n * 4)
        return [p + first + row for p in pointers[: len(rows)]] + [
            p + first for p in pointers[len(rows) :]
        ]

    def inside(self, step: int):
        """Whether this thread has an access in a step: a predicate, or None where all have."""
        left = self.accesses - step * self.threads
        return None if left >= self.threads else self.thread < left

    def load(self, pointer, fill: float = 0.0) -> list[list]:
        """This thread's part of a row, by step; `fill` stands for what lies past the row's end."""
        values = [
            [reg.scalar(f32, init=fill) for _ in range(self.vector)] for _ in range(self.steps)
        ]
        for step, target in enumerate(values):
            at = ptx.addr(pointer, step * self.threads * self.vector * 4)
            if self.vector == VECTOR:
                ptx.inst.ld.global_.v4.f32(target, at, pred=self.inside(step))
            else:
                ptx.inst.ld.global_.f32(target[0], at, pred=self.inside(step))
        return values

    def store(self, pointer, values: Sequence[Sequence]) -> None:
        """Stores what `load` gave the shape of."""
        for step, source in enumerate(values):
            at = ptx.addr(pointer, step * self.threads * self.vector * 4)
            if self.vector == VECTOR:
                ptx.inst.st.global_.v4.f32(at, list(source), pred=self.inside(step))
            else:
                ptx.inst.st.global_.f32(at, source[0], pred=self.inside(step))

    def reduce(self, value, operation: str) -> None:
        """Reduces `value` ("sum" or "max") over the CTA in place; every thread ends with the result."""
        in_warp = {"sum": ptx.warp.reduce_sum, "max": ptx.warp.reduce_max}[operation]
        in_warp(value)
        warps = self.threads // WARP
        if warps == 1:
            return
        partials = smem.alloc(f32, (warps,))
        with ptx.if_((self.thread & (WARP - 1)) == 0):
            partials[self.thread >> 5] = value
        ptx.bar.sync(0)
        ptx.inst.mov.f32(value, partials[self.thread & (warps - 1)])
        in_warp(value, width=warps)
