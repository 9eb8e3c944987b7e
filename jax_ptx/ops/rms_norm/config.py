"""How the kernels divide rows: pure functions of the row's length and dtype.

The number of rows takes no part, so the order in which a row is summed, and with it every bit of the
result, is the same whatever batch the row arrives in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jax_ptx.ops.layout import MAX_THREADS, WARP, RowLayout, row_layout, slot_bytes
from jax_ptx.types import DType

CTA_THREADS = 128  # threads that short rows share
# Four accesses a thread keep enough bytes in flight and leave enough CTAs for every SM.
STEPS = 4
# Longer rows: eight, since 512 threads with eight let two CTAs share an SM (268 MB of bfloat16 rows of 32,768
# on an H200: 134 us, and 139 with 1,024 threads and four), up to 1,024 threads (rows of 65,536: 132 us, and
# 140 with each row read twice).
MAX_STEPS = 8
MANY_THREADS = 512
# A row that is too long for registers is read twice, the second time from L2 as far as that reaches.
LOOP_THREADS = 1024  # one CTA an SM leaves each the most of it: 140 us, and 193 with two of 512
LOOP_STEPS = 4

# Columns of a thread in the backward kernel: for each it keeps a float32 sum of dw.
BACKWARD_COLUMNS = 16
# 16-bit elements may be twice as many: where one warp can then hold a row, which needs no barrier, and
# where the row would be too long otherwise.
BACKWARD_COLUMNS_16_BIT = 32
BACKWARD_MAX_THREADS = 512
BACKWARD_CTA_THREADS = 256  # threads that short rows share
# Rows in shared memory: one that is read, two on their way. Every target has 99 KiB for a CTA.
BACKWARD_SLOTS = 3
MAX_SLOT_BYTES = 96 * 1024 // BACKWARD_SLOTS
# CTAs, and partial sums of dw: two for each of an H200's 132 SMs. Each reads a row while it reduces one.
BACKWARD_CTAS = 264
MIN_ROWS_PER_PARTIAL = 4  # fewer would save a CTA little time and cost memory under vmap
# A dimension may be sharded into any number of parts that divides one of these and itself.
SPLITS = math.lcm(*range(1, 9))
MAX_BLOCKS = 4096


@dataclass(frozen=True)
class ForwardConfig:
    """Attributes:
    layout: how the threads share a row.
    pass_steps: accesses of one thread in one pass of the loop; 0: the row is held in registers.
    """

    layout: RowLayout
    pass_steps: int


def forward_config(n: int, dtype: DType) -> ForwardConfig:
    """The configuration for rows of `n` elements of `dtype`."""
    layout = row_layout(n, dtype, max_accesses=STEPS, max_elements=n, cta_threads=CTA_THREADS)
    if layout.threads >= MANY_THREADS:
        threads = MANY_THREADS if layout.accesses <= MANY_THREADS * MAX_STEPS else MAX_THREADS
        layout = RowLayout(n, layout.vector, threads, 1)
    if layout.steps <= MAX_STEPS:
        return ForwardConfig(layout, 0)
    return ForwardConfig(RowLayout(n, layout.vector, LOOP_THREADS, 1), LOOP_STEPS)


@dataclass(frozen=True)
class BackwardConfig:
    """Attributes:
    layout: how the threads share a row.
    slots: rows that shared memory holds; 0: none, a row is loaded when its turn comes.
    """

    layout: RowLayout
    slots: int


def backward_config(n: int, dtype: DType) -> BackwardConfig | None:
    """The configuration of the backward kernel; None: the row is too long for its registers."""
    layout, twice = (
        row_layout(
            n, dtype, max_accesses=columns, max_elements=columns, cta_threads=BACKWARD_CTA_THREADS
        )
        for columns in (BACKWARD_COLUMNS, BACKWARD_COLUMNS_16_BIT)
    )
    if dtype.bits == 16 and (
        layout.threads > WARP >= twice.threads or layout.threads > BACKWARD_MAX_THREADS
    ):
        layout = twice
    if layout.threads > BACKWARD_MAX_THREADS:
        return None
    slot = slot_bytes(layout, dtype, 2)
    fits = slot is not None and slot <= MAX_SLOT_BYTES
    return BackwardConfig(layout, BACKWARD_SLOTS if fits else 0)


@dataclass(frozen=True)
class Parts:
    """The partial sums of dw for x of `[*lead, n]`: one for each run of consecutive rows.

    Attributes:
        blocks: into how many blocks each of x's leading dimensions is cut; a sharded one is cut where
            it is sharded.
        runs: runs of each block, which fill the GPU and are never apart.
    """

    blocks: tuple[Any, ...]
    runs: int

    @property
    def shape(self) -> tuple[Any, ...]:
        """The partials' leading dimensions, as many as x's: XLA's partitioner wants it so."""
        return (*self.blocks[:-1], self.blocks[-1] * self.runs)

    def insert(self, position: int, size: int) -> Parts:
        """With one more leading dimension, which is not summed over."""
        return Parts((*self.blocks[:position], size, *self.blocks[position:]), self.runs)


def backward_parts(
    lead: Sequence[Any], shards: Sequence[int], n_grouped: int, n_devices: int
) -> Parts:
    """How the rows of x, `[*lead, n]`, are cut for dw.

    XLA cuts x and the partials alike, so every dimension of x that it might shard needs as many blocks
    as there could be shards; with automatic sharding nobody knows yet which those are.

    Args:
        lead: x's leading dimensions; a symbolic one is not cut.
        shards: into how many parts each is known to be sharded.
        n_grouped: how many of them the weight has too: those are not summed over.
        n_devices: how many devices there are.
    """
    blocks: list[Any] = list(lead[:n_grouped])
    left = MAX_BLOCKS
    for size, known in zip(lead[n_grouped:], shards[n_grouped:], strict=True):
        count = known
        if isinstance(size, int) and size > 0:
            count = math.lcm(known, math.gcd(size, math.lcm(SPLITS, n_devices)))
            count = count if count <= left else known
        blocks.append(count)
        left = max(1, left // count)
    if not all(isinstance(size, int) for size in lead):
        return Parts(tuple(blocks), BACKWARD_CTAS)
    n_blocks = max(math.prod(blocks), 1)
    rows = math.prod(lead) // n_blocks
    runs = min(-(-BACKWARD_CTAS // n_blocks), rows // MIN_ROWS_PER_PARTIAL)
    # Where the last dimension is the weight's, a run is one of its elements.
    return Parts(tuple(blocks), 1 if n_grouped == len(lead) else max(1, runs))
