"""How one kernel gives dx and all of dw where rows are few: pure functions of shapes and dtypes.

rstd is an operand, so dw of a column needs no sum along a row. Each CTA takes a slice of the columns, whose
sums over all rows it has to itself, beside whole rows for dx. x and dy are read twice, the second time from
L2; in return no partial sums are written, and no second kernel waits for them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jax_ptx.ops.layout import MAX_THREADS, WARP, RowLayout
from jax_ptx.ops.rms_norm.config_backward import backward_config
from jax_ptx.types import DType

# Backward with the sum of dw in us on an H200, and otherwise: one row of 1,024 1.3, and 2.1; of 4,096 1.6
# either way; 128 of 4,096 2.3, and 4.6; 512 of 1,024 3.3, and 4.3; of 4,096 6.3, and 7.9; of 8,192 8.5, and
# 10.8. 1,024 rows of 1,024 5.7, and 5.1; of 4,096 10.8, and 10.2.
FEW_ROWS = 512  # four rounds of the threads that sum dw
FEW_BYTES = 16 * 1024 * 1024  # x and dy, which are read twice
# Rows that a CTA takes one after the other; each turn waits for memory and for the sum over a row.
FEW_TURNS = 4
MAX_SLICES = 132  # a CTA for each SM of an H200
MIN_LANES = 2  # 32 bytes, what L2 moves at once
# Threads that sum dw: so many rows side by side, and of each thread so many in flight.
ROWS_SIDE_BY_SIDE = 32
ROWS_IN_FLIGHT = 4
MAX_COLUMN_THREADS = 256  # with more, long rows of many threads would have too few registers


@dataclass(frozen=True)
class FewConfig:
    """How a CTA's threads share its slice of the columns; other threads, with `layout`, have its rows.

    Attributes:
        layout: how threads share a row for dx.
        slices: CTAs of a block of rows, each with as many of its columns.
        lanes: neighbouring threads that read one row of a slice, an access each: a power of two.
        threads: threads that sum dw.
        in_flight: rows that each of these has on their way at once.
    """

    layout: RowLayout
    slices: int
    lanes: int
    threads: int
    in_flight: int

    @property
    def columns(self) -> int:
        """Columns of a slice."""
        return self.layout.n // self.slices

    @property
    def side_by_side(self) -> int:
        """Rows of a slice that the threads read together."""
        return self.threads // self.lanes


def few_config(n: int, dtype: DType, target: int) -> FewConfig | None:
    """The configuration for few rows; None: there is none for rows of that length."""
    config = backward_config(n, dtype, target)
    if config is None or config.layout.cluster > 1 or not config.layout.starts_aligned(dtype):
        return None
    if dtype.bits > 32:  # a row and its weight would not fit the registers
        return None
    layout, lanes = config.layout, MIN_LANES
    accesses = layout.n // layout.vector
    while accesses // lanes > MAX_SLICES:
        lanes *= 2
    left = MAX_THREADS - layout.cta_threads
    if accesses % lanes or left < WARP:
        return None
    threads = min(lanes * ROWS_SIDE_BY_SIDE, MAX_COLUMN_THREADS, 1 << left.bit_length() - 1)
    if threads < lanes * layout.vector:  # a thread for each column of the slice, at least
        return None
    return FewConfig(layout, accesses // lanes, lanes, threads, ROWS_IN_FLIGHT)


def few_rows(n: int, dtype: DType, target: int) -> range:
    """How many rows a block may have for one kernel to sum dw of them."""
    config = few_config(n, dtype, target)
    if config is None:
        return range(0)
    by_bytes = FEW_BYTES // (2 * n * dtype.bits // 8)
    most = min(FEW_ROWS, by_bytes, FEW_TURNS * config.slices * config.layout.rows)
    return range(1, most + 1)


def takes_slices(
    lead: Sequence[Any], blocks: Sequence[Any], n: int, dtype: DType, target: int
) -> FewConfig | None:
    """The configuration, if all of dw comes from CTAs that have slices; None: one CTA sums a whole block.

    vmap may have added blocks until there are enough of them for all SMs; every slice would then be a CTA
    more to start.

    Args:
        lead: x's leading dimensions.
        blocks: into how many blocks each of them is cut; dw has one partial for each.
        n: elements of a row.
        dtype: x's.
        target: the GPU's.
    """
    if not all(isinstance(size, int) for size in (*lead, *blocks)):
        return None
    n_blocks = max(math.prod(blocks), 1)
    rows = math.prod(lead) // n_blocks
    if rows not in few_rows(n, dtype, target):
        return None
    config = few_config(n, dtype, target)
    if config is None or n_blocks * (rows + config.slices) > rows * MAX_SLICES:
        return None
    return config
