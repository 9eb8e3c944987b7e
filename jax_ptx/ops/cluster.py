"""Pieces of row-wise kernels: reductions over the CTAs of a cluster that share a row (sm_90)."""

from __future__ import annotations

from jax_ptx.dsl import ptx, reg, smem
from jax_ptx.dsl.reg import Reg
from jax_ptx.ops.layout import WARP, RowLayout
from jax_ptx.ops.reduce import lanes_for, row_sum
from jax_ptx.types import DType, b64, pred, u32

# In clusters of up to so many CTAs each warp sends its own part; in larger ones a CTA sends its sum, since an
# mbarrier would count what 128 or 256 warps send (on an H200, backward with eight: 195 us, and 191 by CTAs;
# with 16: 225, and 206). With two the CTA's sum first costs more than it saves (193, and 197).
FEW_CTAS = 4


class ClusterSum:
    """Sums over all threads of a cluster.

    What has a part of the sum, a warp or a CTA, sends it to every CTA (`st.async`), whose mbarrier counts
    the bytes that arrived, and arrives there itself: no barrier of the whole cluster is in the way. Two
    sets of parts take turns: one gets a turn ahead only when all have sent theirs, and so have read those
    before.
    """

    def __init__(self, layout: RowLayout, in_cta: Reg, rank: Reg, dtype: DType) -> None:
        """Declares the parts; `ready` must come before the first sum.

        Args:
            layout: how the cluster's threads share a row.
            in_cta: this thread's number in its CTA.
            rank: the CTA's number in the cluster.
            dtype: the type of the sums.
        """
        self._dtype, self._bytes = dtype, dtype.bits // 8
        self._in_cta, self._threads = in_cta, layout.threads
        self._by_warp = layout.cluster <= FEW_CTAS
        per_cta = layout.threads // WARP if self._by_warp else 1
        self._count = layout.cluster * per_cta
        parts = smem.alloc(dtype, (2, self._count))
        barriers = smem.alloc(b64, (2,))
        self._leads = in_cta == 0
        with ptx.if_(self._leads):
            for turn in range(2):
                ptx.inst.mbarrier.init.shared__cta.b64(
                    ptx.addr(barriers, 8 * turn), 1 + self._count
                )
            ptx.inst.fence.mbarrier_init.release.cluster()
        ptx.cluster.arrive()
        lane = in_cta & (WARP - 1)
        self._lane = lane & (lanes_for(self._count) - 1)
        # Thread k, of a CTA or of each warp, sends to CTA k.
        self._sends = (lane if self._by_warp else in_cta) < layout.cluster
        self._barrier, at, own = reg.from_(barriers, u32), reg.from_(parts, u32), reg.scalar(u32)
        self._read_at = reg.from_(at, u32)
        ptx.inst.mad.lo.u32(self._read_at, self._lane, self._bytes, self._read_at)
        if self._by_warp:
            ptx.inst.mad.lo.u32(own, rank, per_cta, in_cta >> 5)
        else:
            own.assign(rank)
        ptx.inst.mad.lo.u32(at, own, self._bytes, at)
        peer = lane & (layout.cluster - 1)
        self._peer_at, self._peer_barrier = reg.scalar(u32), reg.scalar(u32)
        ptx.inst.mapa.shared__cluster.u32(self._peer_at, at, peer)
        ptx.inst.mapa.shared__cluster.u32(self._peer_barrier, self._barrier, peer)
        self._turn = reg.scalar(u32, init=0)

    def ready(self) -> None:
        """Waits until the barriers of all CTAs are there. Loads may be issued before."""
        ptx.cluster.wait()

    def __call__(self, value: Reg) -> None:
        """Sums `value`, in place; every thread of the cluster must get here, and waits for those of its CTA.

        The order of summation depends on the layout alone.
        """
        odd, parity = self._turn & 1, (self._turn >> 1) & 1
        if self._by_warp:
            ptx.warp.reduce_sum(value)
        else:
            row_sum(value, self._in_cta, self._threads, odd)
        set_bytes = self._count * self._bytes
        barrier = _of_turn(self._barrier, odd, 8)
        ptx.inst.mbarrier.arrive.expect_tx.shared__cta.b64(
            "_", ptx.addr(barrier), set_bytes, pred=self._leads
        )
        if self._by_warp:
            ptx.inst.bar.warp.sync(0xFFFFFFFF)
        peer_barrier = ptx.addr(_of_turn(self._peer_barrier, odd, 8))
        send = ptx.inst.st.async_.shared__cluster.mbarrier__complete_tx__bytes
        getattr(send, value.dtype.name)(
            ptx.addr(_of_turn(self._peer_at, odd, set_bytes)),
            value,
            peer_barrier,
            pred=self._sends,
        )
        # Its release covers what was read a turn ago, before the barrier of the warp or the CTA; that of
        # st.async covers its own bytes alone.
        ptx.inst.mbarrier.arrive.shared__cluster.b64("_", peer_barrier, pred=self._sends)
        with ptx.while_(lambda: ~_is_complete(barrier, parity)):
            pass
        self._add_parts(value, _of_turn(self._read_at, odd, set_bytes))
        if self._by_warp:
            ptx.bar.sync(0)
        self._turn += 1

    def _add_parts(self, value: Reg, at: Reg) -> None:
        width = lanes_for(self._count)
        for first in range(0, self._count, WARP):
            left = self._count - first
            part = reg.scalar(self._dtype, init=0.0 if left < width else None)
            getattr(ptx.inst.ld.shared, self._dtype.name)(
                part,
                ptx.addr(at, first * self._bytes),
                pred=self._lane < left if left < width else None,
            )
            value.assign(value + part if first else part)
        ptx.warp.reduce_sum(value, width=width)


def _of_turn(first: Reg, odd: Reg, stride: int) -> Reg:
    """The address of the turn's one of two."""
    address = reg.scalar(u32)
    ptx.inst.mad.lo.u32(address, odd, stride, first)
    return address


def _is_complete(barrier: Reg, parity: Reg) -> Reg:
    """Whether the phase of that parity is complete; the thread sleeps a while if not.

    Without a scope: ptxas makes an acquire of the cluster's throw all of L1 away.
    """
    done = reg.scalar(pred)
    wait = ptx.inst.mbarrier.try_wait.parity.shared__cta.b64
    wait(done, ptx.addr(barrier), parity)
    return done
