"""How the backward kernel divides rows: pure functions of a row's length and dtype, and of the target."""

from __future__ import annotations

import math
from dataclasses import dataclass

from jax_ptx.ops.layout import (
    ACCESS_BYTES,
    WARP,
    RowLayout,
    bulk_slot_bytes,
    has_large_clusters,
    row_layout,
    slot_bytes,
)
from jax_ptx.ops.rms_norm import config as common
from jax_ptx.types import DType

# Times in us are of 268 MB tensors on an H200, with the sum of dw, where reading two tensors and writing one
# takes 184.

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
CLUSTER_SLOTS = 4
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
        return BackwardConfig(layout, slots, common.CLUSTERS[layout.cluster])
    ctas = min(SM_THREADS // layout.cta_threads, MAX_CTAS)
    if layout.rows > 1:
        ctas = max(ctas, MIN_SHORT_CTAS)
    if slots:
        ctas = min(ctas, SM_RING_BYTES // (slots * (slot_bytes(layout, dtype, 2) or 1)))
    return BackwardConfig(layout, slots, common.SMS * max(ctas, 1))


def _bulk_config(layout: RowLayout, dtype: DType) -> BackwardConfig | None:
    """With bulk copies; None: with others, or none."""
    slot = bulk_slot_bytes(layout, dtype, 2)
    if layout.cluster > 1:
        slots = min(BULK_CLUSTER_SLOTS[layout.cluster], CLUSTER_RING_BYTES // slot)
        return (
            BackwardConfig(layout, slots, common.CLUSTERS[layout.cluster], True)
            if slots > 1
            else None
        )
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
    return BackwardConfig(layout, slots, common.SMS * ctas, True) if slots > 1 else None


def _pieces_config(n: int, dtype: DType, target: int, wide: bool) -> BackwardConfig | None:
    """With rows that stay in shared memory; None: they are too long for that too."""
    vector = ACCESS_BYTES * 8 // dtype.bits
    if n % vector:
        return None
    steps = PIECE_COLUMNS_BYTES // ACCESS_BYTES
    for cluster in common.clusters(RowLayout(n, vector, WARP, 1), dtype, target, wide)[1:]:
        threads = WARP * math.ceil(n // cluster // vector / steps / WARP)
        if threads <= MAX_THREADS_MANY_COLUMNS:
            layout = _cluster_layout(n, vector, threads, cluster)
            slots = PIECES_RING_BYTES // bulk_slot_bytes(layout, dtype, 2, in_pieces=True)
            return BackwardConfig(
                layout, slots, common.CLUSTERS[cluster], bulk=True, in_pieces=True
            )
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
    ctas = common.clusters(RowLayout(n, vector, WARP, 1), dtype, target, wide)
    choices: list[tuple[int, int, int]] = []
    for portable in (True, False):
        sizes = [c for c in ctas if (c <= common.PORTABLE_CTAS) is portable]
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
    return RowLayout(
        n, vector, threads, 1, cluster, whole and many and cluster > common.PORTABLE_CTAS
    )


def _slots(layout: RowLayout, dtype: DType, n_tensors: int, ring_bytes: int) -> int:
    """Rows that fit in shared memory of that size; 0: fewer than two."""
    slot = slot_bytes(layout, dtype, n_tensors)
    if slot is None:
        return 0
    # In a cluster they also keep a second CTA off the SM; rows within a warp have more to wait for.
    many = layout.cluster > 1 or (layout.cta_threads < BACKWARD_CTA_THREADS and layout.rows > 1)
    slots = min(CLUSTER_SLOTS if many else SLOTS, ring_bytes // slot)
    return slots if slots > 1 else 0
