"""How the kernel divides a row: a pure function of the row's length and dtype.

The number of rows takes no part, so the order in which a row is summed, and with it every bit of the
result, is the same whatever batch the row arrives in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from jax_ptx.types import DType

ACCESS_BYTES = 16  # the widest load of a thread on every target
MAX_STEPS = 8  # accesses of a thread that are in flight, and whose values it keeps in registers
MAX_STEPS_16_BIT = 6  # each holds twice the elements, which are widened: with 8, 1,024 threads spill
LOOP_STEPS = 4  # accesses of one pass where a row is too long for that; bounds the text as well
WARP = 32
CTA_THREADS = 128  # small rows share a CTA of this size
MAX_ROW_THREADS = 1024
LOOP_THREADS = 512  # with 1,024 ptxas spills to make room for a second CTA


@dataclass(frozen=True)
class Config:
    """Attributes:
    vector: elements of x in one access; divides n, so no access crosses a row's end.
    threads: threads of one row, a power of two; up to 32 of them share a warp with other rows.
    rows: rows of one CTA.
    steps: accesses of one thread that cover a row, or, when `looped`, of one pass of the loop.
    looped: the row is too long for registers: it is read twice, in a loop.
    """

    vector: int
    threads: int
    rows: int
    steps: int
    looped: bool


def rms_norm_config(n: int, dtype: DType) -> Config:
    """The configuration for rows of `n` elements of `dtype`."""
    vector = math.gcd(n, ACCESS_BYTES * 8 // dtype.bits)
    accesses = n // vector
    # Four accesses a thread keep enough bytes in flight and leave enough CTAs for every SM.
    threads = 1
    while threads < MAX_ROW_THREADS and threads * 4 < accesses:
        threads *= 2
    steps = math.ceil(accesses / threads)
    looped = steps > (MAX_STEPS if dtype.bits > 16 else MAX_STEPS_16_BIT)
    if looped:
        threads, steps = LOOP_THREADS, LOOP_STEPS
    # A row of several warps has the CTA to itself: its barrier is the CTA's.
    rows = CTA_THREADS // threads if threads <= WARP else 1
    return Config(vector, threads, rows, steps, looped)
