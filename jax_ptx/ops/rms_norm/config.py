"""How the kernels divide rows: pure functions of the row's length and dtype.

The number of rows takes no part, so the order in which a row is summed, and with it every bit of the
result, is the same whatever batch the row arrives in.
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
    bulk_slot_bytes,
    has_large_clusters,
    row_layout,
    slot_bytes,
)
from jax_ptx.types import DType

# Times in us are of 268 MB tensors on an H200: forward, where a copy takes 127, and backward with the sum of
# dw, where reading two tensors and writing one takes 184.

SMS = 132  # of an H200
# Clusters that run at once, one CTA to an SM: one more would wait for all the others (bfloat16 rows of
# 65,536: 205 with 15 of eight CTAs, 337 with 16).
CLUSTERS = {2: 66, 4: 30, 8: 15, 16: 7}
# Larger ones take a GPC of as many SMs, and are slower where both do (131,072: 197 us, and 194).
PORTABLE_CTAS = 8
CLUSTER_SLOTS = 4

# ---- forward ----

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

# ---- backward ----

# A thread has a float32 sum of dw for each of its columns.
ROW_COLUMNS = 16
MOST_COLUMNS_16_BIT = 24
# So many where a warp then holds a row, which needs no barrier, and where the row is too long otherwise.
EXTREME_COLUMNS_16_BIT = 32
# In larger clusters CTAs then take their parts of each step side by side, since contiguous parts take longer
# for some places of x in memory (262,144: 195-200, and 196-211; 524,288: 286, and 295; float32 262,144: 264,
# and 274); with fewer columns they do not (196,608: 201, and 194; float32 131,072: 192, and 190), nor in
# clusters of eight (131,072: 193 either way).
SIDE_BY_SIDE_COLUMNS = 32
# As many as an access has, of rows that have few (64, 512 threads a CTA: 189, and 194).
SHORTEST = 64
FEWEST_COLUMNS = 8
# Elements of 32 bits take twice the registers (537 MB of float32 rows of 4,096: 371, and 405 with 16).
COLUMNS_32_BIT = 8
MAX_THREADS_FEW_COLUMNS = 640
MAX_THREADS_MANY_COLUMNS = 512
BACKWARD_CTA_THREADS = 256  # threads that short rows share; 128 with many columns
# Rows in shared memory: one that is read, the others on their way.
SLOTS = 3
PORTABLE_RING_BYTES = 96 * 1024  # every target has 99 KiB for a CTA
# What the CTAs of an SM have together (rows of 2,048: 194 with five CTAs of 128 threads, 242 with two).
SM_RING_BYTES = 144 * 1024
SM_THREADS = 640
MAX_CTAS = 5
MIN_SHORT_CTAS = 2  # where rows end within warps
# A cluster's CTAs have an SM each, and as much of it as leaves room for no other.
CLUSTER_RING_BYTES = 128 * 1024
# With bulk copies fewer bytes on their way are faster (rows of 4,096, two CTAs: 188 with two slots, 189 with
# three, and 205 with three CTAs; of 8,192: 191 with two slots, 200 with three or four; of 2,560: 187 with
# three CTAs, 202 with four; of 3,584: 189 with two, 203 with three).
BULK_SM_BYTES = 92 * 1024
BULK_SM_THREADS = 576
BULK_SLOTS = 4
# Of a cluster too (rows of 32,768: 195 with two slots, 200 with four; of 18,432: 194, 198 with three), but
# for eight CTAs (65,536: 191 with four, 199 with two).
BULK_CLUSTER_SLOTS = {2: 2, 4: 2, 8: 4, 16: 4}
# Threads of two lengths that models use and that take the rule's 384 and 448 badly, for no reason that was
# found (6,144: 187, and 218; 7,168: 192, and 205).
THREADS_16_BIT = {6144: 256, 7168: 896}
# Twice the columns where a thread holds no row beside their sums: it stays in shared memory, in pieces, of
# which those of the next row take the places (rows of 262,144, where the formula takes 379).
PIECE_COLUMNS_BYTES = 128
PIECES_RING_BYTES = 224 * 1024


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

        L1 has room for the weight, which all rows share, if x goes past it (65,536: 128.9, and 130.1).
        """
        return self.layout.threads == MAX_THREADS and not (self.pass_steps or self.staged)

    def widens_again(self, dtype: DType, *, residual: bool) -> bool:
        """Whether x is widened once more for the result (see `Finish.zero`).

        ptxas keeps it in twice the registers where a last step is not all threads', and spills (61,440:
        129.1, and 136.6); with a residual it does not.
        """
        narrow = dtype.bits == 16 and self.layout.vector > 1
        partial = self.layout.accesses % self.layout.threads > 0
        return self.large and narrow and partial and not residual

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
    for cluster in reversed(_clusters(layout, dtype, target)[1:]):
        for threads, slots in SHARED_SLOTS.items():
            shared = RowLayout(n, layout.vector, threads, 1, cluster)
            held = shared.steps <= MAX_STEPS and slot_bytes(shared, dtype, 1) is not None
            if held and (dtype.bits == 16 or threads == MANY_THREADS):
                return ForwardConfig(shared, slots=slots, ctas=SHARED_CTAS[threads])
    return ForwardConfig(RowLayout(n, layout.vector, LOOP_THREADS, 1), LOOP_STEPS)


def row_shares(rows: Any, n: int, dtype: DType, target: int) -> int:
    """How many CTAs share a row where there are so few rows; 1: each row has one, or clusters have them.

    Args:
        rows: how many; one that is not known yet counts as many.
        n: elements of a row.
        dtype: their type.
        target: the GPU's.
    """
    config = forward_config(n, dtype, target)
    layout = config.layout
    if not isinstance(rows, int) or config.slots or config.pass_steps or layout.rows > 1:
        return 1
    if not layout.starts_aligned(dtype):
        return 1
    steps = layout.steps
    fitting = (k for k in range(1, steps + 1) if steps % k == 0 and rows * k <= SHARING_CTAS)
    return max(fitting, default=1)


@dataclass(frozen=True)
class BackwardConfig:
    """Attributes:
    layout: how the threads share a row.
    slots: rows that shared memory holds; 0: none, a row is loaded when its turn comes.
    runs: CTAs, or clusters, that share the rows, each with its own sum of dw.
    bulk: whether bulk copies bring the rows there.
    in_pieces: whether a slot has a step of all threads, and not a row.
    """

    layout: RowLayout
    slots: int
    runs: int
    bulk: bool = False
    in_pieces: bool = False


def backward_config(
    n: int, dtype: DType, target: int, *, wide: bool = False
) -> BackwardConfig | None:
    """The configuration of the backward kernel; None: the row is too long for it.

    Args:
        n: elements of a row.
        dtype: their type.
        target: the GPU's.
        wide: whether it runs clusters of 16 CTAs, one to an SM.
    """
    layout = _backward_layout(n, dtype, target, wide)
    if layout is None:
        return _pieces_config(n, dtype, target, wide)
    if layout.rows == 1 and has_large_clusters(target) and dtype.bits <= 32:
        config = _bulk_config(layout, dtype)
        if config:
            return config
    slots = _slots(layout, dtype, 2, _ring_bytes(layout, target))
    if layout.cluster > 1:
        return BackwardConfig(layout, slots, CLUSTERS[layout.cluster])
    ctas = min(SM_THREADS // layout.cta_threads, MAX_CTAS)
    if layout.rows > 1:
        ctas = max(ctas, MIN_SHORT_CTAS)
    if slots:
        ctas = min(ctas, SM_RING_BYTES // (slots * (slot_bytes(layout, dtype, 2) or 1)))
    return BackwardConfig(layout, slots, SMS * max(ctas, 1))


def _bulk_config(layout: RowLayout, dtype: DType) -> BackwardConfig | None:
    """With bulk copies; None: with others, or none."""
    slot = bulk_slot_bytes(layout, dtype, 2)
    if layout.cluster > 1:
        slots = min(BULK_CLUSTER_SLOTS[layout.cluster], CLUSTER_RING_BYTES // slot)
        return BackwardConfig(layout, slots, CLUSTERS[layout.cluster], True) if slots > 1 else None
    if layout.starts_aligned(dtype):
        ctas = min(max(BULK_SM_THREADS // layout.threads, 1), MAX_CTAS)
        slots = min(BULK_SLOTS, BULK_SM_BYTES // (ctas * slot))
        # Two slots of short rows are too few (rows of 2,048: 200, and 197 with cp.async).
        if ctas > 2 and slots < SLOTS:
            return None
    else:
        # Smaller accesses to shared memory take more threads (rows of 4,097: 204 with two CTAs of 288; of
        # 10,007: 212. Loads of 2 bytes instead: 248 and 406).
        ctas, slots = min(max(SM_THREADS // layout.threads, 1), MAX_CTAS), SLOTS
        slots = min(slots, SM_RING_BYTES // (ctas * slot))
    return BackwardConfig(layout, slots, SMS * ctas, True) if slots > 1 else None


def _pieces_config(n: int, dtype: DType, target: int, wide: bool) -> BackwardConfig | None:
    """With rows that stay in shared memory; None: they are too long for that too."""
    vector = ACCESS_BYTES * 8 // dtype.bits
    if n % vector:
        return None
    steps = PIECE_COLUMNS_BYTES // ACCESS_BYTES
    for cluster in _clusters(RowLayout(n, vector, WARP, 1), dtype, target, wide)[1:]:
        threads = WARP * math.ceil(n // cluster // vector / steps / WARP)
        if threads <= MAX_THREADS_MANY_COLUMNS:
            layout = _cluster_layout(n, vector, threads, cluster)
            slots = PIECES_RING_BYTES // bulk_slot_bytes(layout, dtype, 2, in_pieces=True)
            return BackwardConfig(layout, slots, CLUSTERS[cluster], bulk=True, in_pieces=True)
    return None


def _ring_bytes(layout: RowLayout, target: int) -> int:
    if not has_large_clusters(target):
        return PORTABLE_RING_BYTES
    return CLUSTER_RING_BYTES if layout.cluster > 1 else SM_RING_BYTES


def _backward_layout(n: int, dtype: DType, target: int, wide: bool) -> RowLayout | None:
    """The layout with the fewest CTAs a row."""
    narrow = dtype.bits == 16
    vector = row_layout(n, dtype, max_accesses=1, max_elements=n, cta_threads=WARP).vector
    if narrow and n in THREADS_16_BIT:
        return RowLayout(n, vector, THREADS_16_BIT[n], 1)
    in_warp = EXTREME_COLUMNS_16_BIT if narrow else ROW_COLUMNS
    if n <= WARP * in_warp:
        columns = ROW_COLUMNS if n <= WARP * ROW_COLUMNS else in_warp
        if narrow and n <= SHORTEST:
            columns = FEWEST_COLUMNS
        # So many that their rows of x and dy take 16 KiB.
        cta_threads = BACKWARD_CTA_THREADS * ROW_COLUMNS * 16 // (columns * dtype.bits)
        return row_layout(
            n, dtype, max_accesses=columns, max_elements=columns, cta_threads=cta_threads
        )
    few = ROW_COLUMNS if narrow else COLUMNS_32_BIT
    most = MOST_COLUMNS_16_BIT if narrow else ROW_COLUMNS
    clusters = _clusters(RowLayout(n, vector, WARP, 1), dtype, target, wide)
    choices: list[tuple[int, int, int]] = []
    for portable in (True, False):
        sizes = [c for c in clusters if (c <= PORTABLE_CTAS) is portable]
        for cluster in sizes:
            choices += [(cluster, few, MAX_THREADS_FEW_COLUMNS)]
            choices += [(cluster, most, MAX_THREADS_MANY_COLUMNS)]
        if narrow and sizes:
            choices.append((sizes[-1], EXTREME_COLUMNS_16_BIT, MAX_THREADS_MANY_COLUMNS))
    for cluster, columns, most_threads in choices:
        # As many warps as it takes, no power of two (rows of 18,432: 188 with 576 threads of 16 columns,
        # 193 with 512 of 24; of 3,072: 191 with 192, 202 with 128).
        threads = WARP * math.ceil(n // cluster / vector / (columns // vector) / WARP)
        if threads <= most_threads:
            return _cluster_layout(n, vector, threads, cluster)
    return None


def _cluster_layout(n: int, vector: int, threads: int, cluster: int) -> RowLayout:
    whole = n % (cluster * threads * vector) == 0  # no thread without an access in the last step
    many = n >= cluster * threads * SIDE_BY_SIDE_COLUMNS
    return RowLayout(n, vector, threads, 1, cluster, whole and many and cluster > PORTABLE_CTAS)


def _clusters(layout: RowLayout, dtype: DType, target: int, wide: bool = False) -> list[int]:
    """How many CTAs can share a row, from one up."""
    if not has_large_clusters(target) or dtype.bits > 32:
        return [1]
    runs = [c for c in CLUSTERS if c <= PORTABLE_CTAS or wide]
    return [1, *(c for c in runs if layout.accesses % c == 0)]


def _slots(layout: RowLayout, dtype: DType, n_tensors: int, ring_bytes: int) -> int:
    """Rows that fit in shared memory of that size; 0: fewer than two."""
    slot = slot_bytes(layout, dtype, n_tensors)
    if slot is None:
        return 0
    # In a cluster they also keep a second CTA off the SM; rows within a warp have more to wait for.
    many = layout.cluster > 1 or (layout.cta_threads < BACKWARD_CTA_THREADS and layout.rows > 1)
    slots = min(CLUSTER_SLOTS if many else SLOTS, ring_bytes // slot)
    return slots if slots > 1 else 0
