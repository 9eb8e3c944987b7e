"""How the rows of x are cut into runs, each of which has a partial sum of dw."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

MIN_ROWS_PER_PARTIAL = 2  # fewer would cost memory under vmap
# A dimension may be sharded into any number of parts up to this that divides it, or as many as devices.
MAX_SPLITS = 8
MAX_BLOCKS = 4096


@dataclass(frozen=True)
class Parts:
    """The partial sums of dw for x of `[*lead, n]`: one for each run of rows.

    Attributes:
        blocks: into how many blocks each of x's leading dimensions is cut; a sharded one is cut where
            it is sharded.
        runs: runs of each block, which fill the GPU and are never apart.
        final: whether there is no other partial to add: it then has the weight's dtype.
        n_whole: if no dimension that is summed over is cut, how many of the last ones are these: XLA must
            not then cut x along them, since it would cut the runs, which take their rows by turns.
    """

    blocks: tuple[Any, ...]
    runs: int
    final: bool = False
    n_whole: int = 0

    @property
    def shape(self) -> tuple[Any, ...]:
        """The partials' leading dimensions, as many as x's: XLA's partitioner wants it so."""
        return (*self.blocks[:-1], self.blocks[-1] * self.runs)

    def insert(self, position: int, size: int) -> Parts:
        """With one more leading dimension, which is not summed over."""
        blocks = (*self.blocks[:position], size, *self.blocks[position:])
        return Parts(blocks, self.runs, self.final, self.n_whole)


def backward_parts(
    lead: Sequence[Any],
    shards: Sequence[int],
    n_grouped: int,
    n_devices: int,
    n_runs: int,
    few_rows: range = range(0),
) -> Parts:
    """How the rows of x, `[*lead, n]`, are cut for dw.

    XLA cuts x and the partials alike, so every dimension of x that it might shard needs as many blocks
    as there could be shards; with automatic sharding nobody knows yet which those are. With one device
    there is one block, whose rows the runs take by turns: they then read what lies together, which DRAM
    serves faster than places far apart (bfloat16 rows of 4,096: 191 us, 201 with eight blocks).

    Args:
        lead: x's leading dimensions; a symbolic one is not cut.
        shards: into how many parts each is known to be sharded.
        n_grouped: how many of them the weight has too: those are not summed over.
        n_devices: how many devices there are.
        n_runs: runs that fill a device.
        few_rows: how many rows of a block one kernel sums without runs (see `config_few.py`).
    """
    splits = 1 if n_devices == 1 else math.lcm(*range(1, MAX_SPLITS + 1), n_devices)
    blocks: list[Any] = list(lead[:n_grouped])
    left = MAX_BLOCKS
    for size, known in zip(lead[n_grouped:], shards[n_grouped:], strict=True):
        count = known
        if isinstance(size, int) and size > 0:
            count = math.lcm(known, math.gcd(size, splits))
            count = count if count <= left else known
        blocks.append(count)
        left = max(1, left // count)
    whole = all(count == 1 for count in blocks[n_grouped:])
    n_whole = len(lead) - n_grouped if whole else 0
    if not all(isinstance(size, int) for size in lead):
        return Parts(tuple(blocks), n_runs, n_whole=n_whole)
    n_blocks = max(math.prod(blocks), 1)
    rows = math.prod(lead) // n_blocks
    runs = run_count(rows, -(-n_runs // n_blocks))
    # If the last dimension is the weight's, a run is one of its elements.
    if n_grouped == len(lead) or (whole and not n_grouped and rows in few_rows):
        runs = 1
    return Parts(tuple(blocks), runs, whole and runs == 1, n_whole)


def run_count(rows: int, most: int) -> int:
    """Into how many runs so many rows are divided, at most.

    The kernel's text holds their number: where there are few rows it is a power of two, for few texts.
    """
    if most * MIN_ROWS_PER_PARTIAL <= rows:
        return most
    return 1 << max(rows // MIN_ROWS_PER_PARTIAL, 1).bit_length() - 1
