"""How the threads of a CTA share rows: pure arithmetic on a row's length and dtype."""

from __future__ import annotations

import math
from dataclasses import dataclass

from jax_ptx.types import DType

ACCESS_BYTES = 16  # the widest access of a thread on every target
WARP = 32
MAX_THREADS = 1024
MIN_ASYNC_BYTES = 4  # the smallest cp.async
PORTABLE = 80  # the target whose code every later GPU runs
HOPPER = 90  # its target, and those below sm_120, have both of what `has_large_clusters` says
CONSUMER_BLACKWELL = 120


@dataclass(frozen=True)
class RowLayout:
    """Thread t of a row takes its accesses t, t + threads, t + 2 * threads and so on.

    Attributes:
        n: elements of a row.
        vector: elements of one access; divides n, so that no access crosses a row's end.
        threads: threads of one row: a power of two up to 32, which share a warp with other rows, or a
            multiple of 32.
        rows: rows of a CTA; 1 where a row takes several warps, since its barrier is the CTA's.
        cluster: CTAs of a cluster that share a row.
        side_by_side: whether they take their parts of each step side by side; otherwise each has a
            contiguous part of the row.
    """

    n: int
    vector: int
    threads: int
    rows: int
    cluster: int = 1
    side_by_side: bool = False

    @property
    def part(self) -> int:
        """Elements of a row that belong to one CTA."""
        return self.n // self.cluster

    @property
    def accesses(self) -> int:
        """Accesses that cover a CTA's part of a row."""
        return self.part // self.vector

    @property
    def steps(self) -> int:
        """Accesses of the busiest thread."""
        return math.ceil(self.accesses / self.threads)

    @property
    def chunk(self) -> int:
        """Elements of a step of one CTA."""
        return self.threads * self.vector

    @property
    def stride(self) -> int:
        """Elements from one access of a thread to its next."""
        return self.chunk * self.cluster if self.side_by_side else self.chunk

    @property
    def apart(self) -> int:
        """Elements from the first one of a CTA to that of the next one of the cluster."""
        return self.chunk if self.side_by_side else self.part

    @property
    def cta_threads(self) -> int:
        """Threads of a CTA."""
        return self.threads * self.rows

    def starts_aligned(self, dtype: DType) -> bool:
        """Whether every row starts at a multiple of 16 bytes."""
        return self.vector * dtype.bits // 8 == ACCESS_BYTES


def row_layout(
    n: int, dtype: DType, *, max_accesses: int, max_elements: int, cta_threads: int
) -> RowLayout:
    """The layout with the fewest threads that leave each at most so many accesses and elements of a
    row; with 1,024 threads there may be more.

    Args:
        n: elements of a row.
        dtype: their type.
        max_accesses: the most accesses of a thread.
        max_elements: the most elements of a thread.
        cta_threads: threads of a CTA that short rows share.
    """
    vector = math.gcd(n, ACCESS_BYTES * 8 // dtype.bits)
    each = vector * max(1, min(max_accesses, max_elements // vector))
    threads = 1
    while threads < MAX_THREADS and threads * each < n:
        threads *= 2
    return RowLayout(n, vector, threads, cta_threads // threads if threads <= WARP else 1)


def slot_bytes(layout: RowLayout, dtype: DType, n_tensors: int) -> int | None:
    """Shared memory for one row of each tensor, of all rows that a CTA takes side by side; None: the
    accesses are too small for cp.async.
    """
    access_bytes = layout.vector * dtype.bits // 8
    if access_bytes < MIN_ASYNC_BYTES:
        return None
    return n_tensors * layout.steps * layout.cta_threads * access_bytes


def bulk_slot_bytes(
    layout: RowLayout, dtype: DType, n_tensors: int, *, in_pieces: bool = False
) -> int:
    """The same for bulk copies, of whole 16 bytes: of a CTA's part of one row, wherever it starts, or of
    a piece of it, which is one step of all threads.
    """
    n_bytes = (layout.chunk if in_pieces else layout.part) * dtype.bits // 8
    pieces = -(-n_bytes // ACCESS_BYTES) + (0 if layout.starts_aligned(dtype) else 1)
    return n_tensors * pieces * ACCESS_BYTES


def has_large_clusters(target: int) -> bool:
    """Whether CTAs of a cluster can share a row, each with up to 227 KiB of shared memory."""
    return HOPPER <= target < CONSUMER_BLACKWELL
