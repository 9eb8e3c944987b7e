"""The kernel that sums the rows of a matrix: the second stage of what CTAs have each a part of.

XLA's own sum is as fast, and would be the only kernel that XLA has to compile in a gradient: it takes
longer to compile than all the rest of the program (on an H200 the first call of a gradient took 296 ms with
it, 117 without). This one's text is the same for most rows' lengths, so the driver compiles it once.
"""

from __future__ import annotations

import functools
from typing import Any

from jax_ptx import types
from jax_ptx.dsl import ptx, reg, smem
from jax_ptx.dsl.reg import Reg
from jax_ptx.dsl.tile import RunTime, Tensor, Tile
from jax_ptx.launch import Launch
from jax_ptx.ops import vectors
from jax_ptx.ops.declare import MAX_GRID, launch_of
from jax_ptx.ops.layout import ACCESS_BYTES, WARP
from jax_ptx.ops.vectors import elements_of
from jax_ptx.types import f32, f64, u32, u64

MAX_WARPS = 32  # of a CTA, which has a column for each lane
# 4,096 columns then fill 128 SMs, and fewer warps suffice (132 rows of 8,192 on an H200: 1.81 us, and 2.02;
# 264 of 4,096: 1.86, and 1.95).
MANY, MANY_WARPS = 4096, 8
LOADS = 16  # at once in flight, in registers of which a thread of so many has 64
# Rows so long have enough columns for every SM with a vector of them for each lane, and four warps.
LONG = 32768
LONG_WARPS = 4


def column_sum_launch(rows: int, n: Any, dtype: str, out_dtype: str) -> Launch:
    """The launch for a matrix `[rows, n]` to the sums of its columns, `[n]`.

    Args:
        rows: the matrix's; it is part of the text.
        n: columns, or a symbolic dimension; only whether there are many is part of the text.
        dtype: name of the dtype of its elements and of the additions, float32 or float64.
        out_dtype: name of the dtype that a sum is rounded to.
    """
    vector = ACCESS_BYTES * 8 // types.by_numpy_name(dtype).bits
    if not isinstance(n, int) or n < LONG or n % vector:
        warps = MANY_WARPS if isinstance(n, int) and n >= MANY else MAX_WARPS
        return _launch(rows, 1, warps, dtype, out_dtype)
    return _launch(rows, vector, LONG_WARPS, dtype, out_dtype)


@functools.cache
def _launch(rows: int, vector: int, most_warps: int, dtype: str, out_dtype: str) -> Launch:
    warps = min(rows, most_warps)
    return launch_of(
        "column_sum",
        # As many elements for each column, whatever their order: the grid follows the columns.
        {"parts": Tile(RunTime("columns"), rows, types.by_numpy_name(dtype))},
        {"sums": Tile(RunTime("columns"), types.by_numpy_name(out_dtype))},
        functools.partial(_column_sum, rows, vector, warps),
        grid=(MAX_GRID, 1, 1),
        block=(WARP * warps, 1, 1),
        rows_per_cta=WARP * vector,
        grid_dim="columns",
    )


def _column_sum(rows: int, vector: int, warps: int, *, parts: Tensor, sums: Tensor) -> None:
    """The kernel's body: warp k of w adds up rows k, k + w, k + 2 * w and so on, the first one the rest."""
    n = ptx.run_time_dim("columns")
    in_cta = reg.from_(ptx.special.tid.x(), u32)
    lane, warp = in_cta & (WARP - 1), in_cta >> 5
    column, row = reg.scalar(u64), reg.scalar(u64)
    ptx.inst.cvt.u64.u32(column, reg.from_(ptx.special.ctaid.x(), u32))
    ptx.inst.cvt.u64.u32(row, lane)
    column *= WARP
    column += row
    column *= vector
    ptx.inst.cvt.u64.u32(row, warp)
    inside = column < n
    source = elements_of(parts)
    source.skip(column)
    source.skip(row * n)
    totals = [reg.scalar(source.dtype, init=0.0) for _ in range(vector)]
    add = getattr(ptx.inst.add.rn, source.dtype.name)
    turns = range(0, rows, warps)
    for first in range(0, len(turns), LOADS):
        loaded: list[list[Reg]] = []
        for start in turns[first : first + LOADS]:
            exists = inside if start + warps <= rows else inside & (warp < rows - start)
            loaded.append(source.load(0, vector, exists))
            source.skip(n, warps)
        for values in loaded:
            for total, value in zip(totals, values, strict=True):
                add(total, total, value)
    of_warps = smem.alloc(source.dtype, (warps, vector, WARP))
    for i, total in enumerate(totals):
        of_warps[warp, i, lane] = total
    ptx.bar.sync(0)
    with ptx.if_(inside & (warp == 0)):
        for other in range(1, warps):
            for i, total in enumerate(totals):
                add(total, total, of_warps[other, i, lane])
        out = elements_of(sums)
        out.skip(column)
        wide = f64 if out.dtype is f64 else f32
        out.store(0, [vectors.convert(total, wide) for total in totals])
    ptx.ret()
