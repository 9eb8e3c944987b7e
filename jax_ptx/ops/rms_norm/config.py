"""How the forward kernels divide rows: pure functions of a row's length and dtype, and of the target.

The number of rows takes no part in the order in which a row is summed, and so every bit of the result is the
same whatever batch the row arrives in. It says only whether several CTAs share a row (`row_shares`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from jax_ptx.ops.layout import (
    ACCESS_BYTES,
    MAX_THREADS,
    WARP,
    RowLayout,
    has_large_clusters,
    row_layout,
    slot_bytes,
)
from jax_ptx.types import DType, f16

# Times in us are of 268 MB tensors on an H200, where a copy takes 127.

SMS = 132  # of an H200
# Clusters that run at once, one CTA to an SM: one more would wait for all the others (backward of bfloat16
# rows of 65,536: 205 with 15 of eight CTAs, 337 with 16).
CLUSTERS = {2: 66, 4: 30, 8: 15, 16: 7}
# Larger ones take a GPC of as many SMs, and are slower where both do (backward of 131,072: 197, and 194).
PORTABLE_CTAS = 8

CTA_THREADS = 128  # threads that short rows share
# Four accesses a thread keep enough bytes in flight and leave enough CTAs for every SM.
STEPS = 4
# A row that fills 128 threads takes twice as many (rows of 4,096: 130, and 132; one alone 1.15, and 1.28).
HALF_STEPS = 2
# Narrow accesses carry less, so there are more of them (bfloat16 rows of 4,097: 169, and 258 with four).
NARROW_BYTES = 8
MAX_NARROW_STEPS = 16
# Where shared memory may be between, bulk copies carry 16 bytes whatever the threads do (rows of 4,097: 135,
# and 166; of 10,007: 138, and 179). So many bytes a thread fill the SM (10,007 with 32 in place of 48: 148).
STAGED_BYTES = 48
STAGED_MIN_THREADS = 128
# Where so many threads have all four, by the bits of an element, the weight comes first (rows of 1,024:
# 125.3, and 126.2; of 8,192: 125.4, and 126.4; float32 rows of 8,192: 125.4, and 126.3, 2,048 of them 32.6,
# and 33.2). Elsewhere that may be much slower (5,120: 134.0, and 125.2; 12,288: 133.7, and 125.8; float32
# rows of 1,024: once 139, and 125; of 16,384: 132, and 127).
WEIGHT_FIRST_THREADS = {16: range(257), 32: range(256, 513)}
# Longer rows: eight, since 512 threads with eight let two CTAs share an SM (bfloat16 rows of 32,768: 132, and
# 139 with 1,024 threads and four), up to 1,024 threads (65,536: 132, and 140 with each row read twice).
MAX_STEPS = 8
MANY_THREADS = 512
# A cluster that goes from row to row shares what is longer (131,072: 135, and 194 with each row read twice;
# 262,144: 131, 133 with 1,024 threads, and 200); it would be slower below (65,536: 131, and 130). By threads,
# the rows in shared memory (float32 rows of 65,536: 131, and 135 with four), and its CTAs of an SM: two where
# 256 threads hold a part of 16-bit elements (131,072: 133; wider ones ptxas would spill there).
SHARED_SLOTS, SHARED_CTAS = {256: 3, MANY_THREADS: 2}, {256: 2, MANY_THREADS: 1}
# Still longer rows are read twice, the second time from L2 as far as that reaches.
LOOP_THREADS = 1024  # one CTA an SM leaves each the most of it: 140, and 193 with two of 512
LOOP_STEPS = 4

# CTAs that share few rows (one row of 8,192: 1.15 with four, and 1.50 with one; 33: 1.41 with two, and 1.60,
# 1.50 with four; 64 rows of 4,096: 1.34 with two, and 1.31 with one).
SHARING_CTAS = SMS // 2


@dataclass(frozen=True)
class ForwardConfig:
    """Attributes:
    layout: how the threads share a row.
    pass_steps: accesses of one thread in one pass of the loop; 0: the row is held in registers.
    slots: rows that shared memory holds, of a cluster that goes from row to row; 0: a CTA has one turn.
    ctas: how many of such a CTA share an SM.
    staged: whether a row goes through shared memory, to and fro.
    weight_first: whether the weight is loaded before x, and not once x is there, where ptxas would put it.
    """

    layout: RowLayout
    pass_steps: int = 0
    slots: int = 0
    ctas: int = 1
    staged: bool = False
    weight_first: bool = False

    @property
    def runs(self) -> int:
        """Clusters that share the rows."""
        return CLUSTERS[self.layout.cluster] * self.ctas

    @property
    def large(self) -> bool:
        """Whether a CTA holds a row with all the threads that it may have, alone on its SM.

        L1 has room for the weight, which all rows share, if x goes past it (65,536: 128.9, and 130.1), and
        L2 is better rid of y (128.9, and 129.5).
        """
        return self.layout.threads == MAX_THREADS and not (self.pass_steps or self.staged)

    def widens_again(self, dtype: DType, *, residual: bool) -> bool:
        """Whether x is widened once more for the result (see `Finish.zero`).

        ptxas keeps it in twice the registers where a last step is not all threads', and spills (61,440:
        129.1, and 136.6); with a residual only float16, 16 to 440 bytes.
        """
        if not self.large or dtype.bits != 16 or self.layout.vector == 1:
            return False
        if residual:
            return dtype is f16
        return self.layout.accesses % self.layout.threads > 0

    def shares(self, dtype: DType) -> list[int]:
        """How many CTAs may share a row that one of them could hold in registers: divisors of its steps."""
        layout, alone = self.layout, not (self.pass_steps or self.slots or self.staged)
        if not alone or layout.rows > 1 or not layout.starts_aligned(dtype):
            return [1]
        return [count for count in range(1, layout.steps + 1) if layout.steps % count == 0]

    def weight_in_order(self, *, residual: bool) -> bool:
        """Whether loads of the weight stay where they are written (see `Finish.in_order`): a step ahead.

        They then take few registers from a row of many threads: two CTAs share an SM (bfloat16 rows of
        32,768: 132, and 137), or nothing is spilled (65,536 with rstd: 131, and 164; with no load ahead,
        142). Without rstd ptxas spills nothing either way (133, and 134), and the driver's compiler may
        (159 where it moves them); but with a residual moving them is what spills nothing (with rstd: 255,
        and 290).
        """
        threads = self.layout.threads
        return threads == MANY_THREADS or (threads > MANY_THREADS and not residual)


def forward_config(n: int, dtype: DType, target: int, *, may_stage: bool = False) -> ForwardConfig:
    """The configuration for rows of `n` elements of `dtype`.

    Args:
        n: elements of a row.
        dtype: their type.
        target: the GPU's.
        may_stage: whether the kernel has no more than x and y of that type. The layout, and with it the
            order of summation, is the same with a residual, so that its rows have the bits of two steps.
    """
    vector = math.gcd(n, ACCESS_BYTES * 8 // dtype.bits)
    access_bytes = vector * dtype.bits // 8
    if access_bytes < NARROW_BYTES and has_large_clusters(target):
        threads = WARP * math.ceil(n // vector / (STAGED_BYTES // access_bytes) / WARP)
        if STAGED_MIN_THREADS <= threads <= MAX_THREADS:
            return ForwardConfig(RowLayout(n, vector, threads, 1), staged=may_stage)
    more = max(1, NARROW_BYTES // access_bytes)
    steps, most = min(STEPS * more, MAX_NARROW_STEPS), min(MAX_STEPS * more, MAX_NARROW_STEPS)
    layout = row_layout(n, dtype, max_accesses=steps, max_elements=n, cta_threads=CTA_THREADS)
    if access_bytes == ACCESS_BYTES and layout.accesses <= WARP:
        # One access a thread where a warp covers the row (64: 124, and 138 with two lanes a row; 128: 124,
        # and 126 with four; 256: 124, and 126 with eight).
        layout = row_layout(n, dtype, max_accesses=1, max_elements=n, cta_threads=CTA_THREADS)
    if access_bytes == ACCESS_BYTES and layout.accesses == CTA_THREADS * STEPS:
        layout = RowLayout(n, vector, CTA_THREADS * STEPS // HALF_STEPS, 1)
    if layout.threads == MANY_THREADS and access_bytes == ACCESS_BYTES:
        # As many warps as it takes, no power of two (12,288: 126 with 384 threads, 132 with 512).
        layout = RowLayout(n, vector, WARP * math.ceil(layout.accesses / STEPS / WARP), 1)
    elif layout.threads >= MANY_THREADS:
        threads = MANY_THREADS if layout.accesses <= MANY_THREADS * most else MAX_THREADS
        layout = RowLayout(n, layout.vector, threads, 1)
    if layout.steps <= most:
        full = access_bytes == ACCESS_BYTES and layout.accesses == layout.threads * STEPS
        threads = WEIGHT_FIRST_THREADS.get(dtype.bits, ())
        return ForwardConfig(layout, weight_first=full and layout.threads in threads)
    for cluster in reversed(clusters(layout, dtype, target)[1:]):
        for threads, slots in SHARED_SLOTS.items():
            shared = RowLayout(n, layout.vector, threads, 1, cluster)
            held = shared.steps <= MAX_STEPS and slot_bytes(shared, dtype, 1) is not None
            if held and (dtype.bits == 16 or threads == MANY_THREADS):
                return ForwardConfig(shared, slots=slots, ctas=SHARED_CTAS[threads])
    return ForwardConfig(RowLayout(n, layout.vector, LOOP_THREADS, 1), LOOP_STEPS)


def row_shares(rows: Any, n: int, dtype: DType, target: int) -> int:
    """How many CTAs share a row where there are so few rows; 1: they do not.

    Args:
        rows: how many; a symbolic number counts as many.
        n: elements of a row.
        dtype: their type.
        target: the GPU's.
    """
    if not isinstance(rows, int):
        return 1
    possible = forward_config(n, dtype, target).shares(dtype)
    return max((count for count in possible if rows * count <= SHARING_CTAS), default=1)


def clusters(layout: RowLayout, dtype: DType, target: int, wide: bool = False) -> list[int]:
    """How many CTAs can share a row, from one up."""
    if not has_large_clusters(target) or dtype.bits > 32:
        return [1]
    runs = [c for c in CLUSTERS if c <= PORTABLE_CTAS or wide]
    return [1, *(c for c in runs if layout.accesses % c == 0)]
