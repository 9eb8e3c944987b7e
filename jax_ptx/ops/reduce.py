"""Pieces of row-wise kernels: reductions over the threads of a row."""

from __future__ import annotations

from collections.abc import Sequence

from jax_ptx.dsl import ptx, reg, smem
from jax_ptx.dsl.reg import Reg
from jax_ptx.ops.layout import ACCESS_BYTES, WARP
from jax_ptx.types import u32

# Parts that a thread adds up itself: three shfl take longer (128 rows of 4,096: 1.50 us, and 1.47).
MOST_ALONE = 8


def row_sum(
    value: Reg,
    thread: Reg,
    threads: int,
    parity: Reg | None = None,
    barrier: int = 0,
    *,
    alone: bool = False,
) -> None:
    """Sums `value` over the `threads` threads of a row, in place: every thread ends with the total.

    A row of up to a warp takes `threads` neighbouring lanes; a longer one takes the whole CTA, or its first
    warps, which must all get here. The order of summation depends on `threads` alone.

    Args:
        value: a register of a float type.
        thread: this thread's number in the CTA, read only when the row takes several warps.
        threads: a power of two up to 32, or a multiple of 32.
        parity: in a loop, a 32-bit register that is 0 and 1 by turns, the same in all threads: the
            partials of one pass must not overwrite those that a slower warp still reads.
        barrier: which one is waited at; other than 0, the CTA has more threads than the row.
        alone: whether each thread adds up the parts of up to eight warps itself, in the same order, which
            takes less time and a register for each.
    """
    if threads > 1:
        ptx.warp.reduce_sum(value, width=min(threads, WARP))
    if threads <= WARP:
        return
    warps = threads // WARP
    width = lanes_for(warps)
    partials = smem.alloc(value.dtype, (1 if parity is None else 2, warps))
    slot = 0 if parity is None else parity
    with ptx.if_((thread & (WARP - 1)) == 0):
        partials[slot, thread >> 5] = value
    ptx.bar.sync(barrier, threads if barrier else None)
    # Each warp sums the partials by itself: cheaper than a second barrier for one warp's result.
    if alone and parity is None and warps <= MOST_ALONE:
        value.assign(_sum_of(_all_of(partials, warps), width))
        return
    lane = thread & (width - 1)
    if width == warps:
        getattr(ptx.inst.mov, value.dtype.name)(value, partials[slot, lane])
    else:
        partial = partials[slot, lane.min(warps - 1)]
        getattr(ptx.inst.selp, value.dtype.name)(value, partial, 0.0, lane < warps)
    ptx.warp.reduce_sum(value, width=width)


def _all_of(partials: smem.SharedArray, warps: int) -> list[Reg]:
    """The partials of all warps, read together."""
    dtype = partials.dtype
    width = min(warps & -warps, ACCESS_BYTES * 8 // dtype.bits)
    values = [reg.scalar(dtype) for _ in range(warps)]
    load = {1: ptx.inst.ld.shared, 2: ptx.inst.ld.shared.v2, 4: ptx.inst.ld.shared.v4}[width]
    at = reg.from_(partials, u32)
    for first in range(0, warps, width):
        part = values[first : first + width]
        getattr(load, dtype.name)(
            part if width > 1 else part[0], ptx.addr(at, first * dtype.bits // 8)
        )
    return values


def _sum_of(values: Sequence[Reg], width: int) -> Reg:
    """Their sum in the order of `ptx.warp.reduce_sum`, whose lanes behind the last value have zeros."""
    zeros = [reg.scalar(values[0].dtype, init=0.0) for _ in range(width - len(values))]
    sums = [*values, *zeros]
    while width > 1:
        width //= 2
        sums = [a + b for a, b in zip(sums[:width], sums[width:], strict=True)]
    return sums[0]


def lanes_for(n_partials: int) -> int:
    """Lanes that sum so many partials: a power of two, at most a warp."""
    return min(WARP, 1 << (n_partials - 1).bit_length())
