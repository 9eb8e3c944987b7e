"""Pieces of row-wise kernels: reductions over the threads of a row."""

from __future__ import annotations

from jax_ptx.dsl import ptx, smem
from jax_ptx.dsl.reg import Reg

WARP = 32


def row_sum(value: Reg, thread: Reg, threads: int) -> None:
    """Sums `value` over the `threads` threads of a row, in place: every thread ends with the total.

    A row of up to a warp takes `threads` neighbouring lanes; a longer one takes the whole CTA, whose
    threads must all get here. The order of summation depends on `threads` alone.

    Args:
        value: a register of a float type.
        thread: this thread's number in the CTA, read only when the row takes several warps.
        threads: a power of two.
    """
    if threads > 1:
        ptx.warp.reduce_sum(value, width=min(threads, WARP))
    if threads <= WARP:
        return
    warps = threads // WARP
    partials = smem.alloc(value.dtype, (warps,))
    with ptx.if_((thread & (WARP - 1)) == 0):
        partials[thread >> 5] = value
    ptx.bar.sync(0)
    # Each warp sums the partials by itself: cheaper than a second barrier for one warp's result.
    partial = partials[thread & (warps - 1)]
    getattr(ptx.inst.mov, value.dtype.name)(value, partial)
    ptx.warp.reduce_sum(value, width=warps)
