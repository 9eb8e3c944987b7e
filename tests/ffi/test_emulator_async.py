"""mbarrier, asynchronous copies, and matrix instructions in the emulator."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ffi.emulation import emulate, kernel, line_of
from tests.ffi.test_emulator_diagnosis import fault

SETUP = """
.shared .align 128 .b8 data[1024]; .shared .align 8 .b64 bar;
.reg .b32 %data, %bar;
mov.u32 %data, data; mov.u32 %bar, bar; setp.eq.u32 %p1, %t, 0;
"""
STORE = "mad.wide.u32 %rd9, %i, 4, %y; st.global.b32 [%rd9], %r9;"
WAIT = "W{n}: mbarrier.try_wait.parity.shared.b64 %p2, [%bar], {phase}; @!%p2 bra W{n};"


def test_bulk_copy_with_transaction_bytes():
    x = np.arange(512, dtype=np.uint32)
    y = np.zeros(256, np.uint32)
    body = (
        SETUP
        + """
    @%p1 mbarrier.init.shared.b64 [%bar], 1; fence.mbarrier_init.release.cluster; bar.sync 0;
    @!%p1 bra W0;
    mbarrier.arrive.expect_tx.shared.b64 %rd1, [%bar], 1024;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%data], [%x], 512, [%bar];
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%data+512], [%x+512], 512, [%bar];
    """
        + WAIT.format(n=0, phase=0)
        + "mad.lo.u32 %r1, %t, 4, %data; ld.shared.u32 %r9, [%r1]; bar.sync 0;"
        + """
    @!%p1 bra W1;
    mbarrier.arrive.expect_tx.shared.b64 _, [%bar], 1024;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%data], [%x+1024], 1024, [%bar];
    """
        + WAIT.format(n=1, phase=1)
        + "ld.shared.u32 %r2, [%r1]; mad.lo.u32 %r9, %r2, 1000, %r9;"
        + STORE
    )
    emulate(kernel(body), [x, y], block=(256, 1, 1))
    np.testing.assert_array_equal(y, x[256:] * 1000 + x[:256])


def test_bulk_copy_to_global():
    x, y = np.arange(256, dtype=np.uint32), np.zeros(256, np.uint32)
    body = (
        SETUP
        + """
    mad.wide.u32 %rd1, %t, 4, %x; ld.global.u32 %r1, [%rd1]; add.u32 %r1, %r1, 1;
    mad.lo.u32 %r2, %t, 4, %data; st.shared.u32 [%r2], %r1; fence.proxy.async.shared::cta; bar.sync 0;
    @%p1 cp.async.bulk.global.shared::cta.bulk_group [%y], [%data], 1024;
    cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;
    """
    )
    emulate(kernel(body), [x, y], block=(256, 1, 1))
    np.testing.assert_array_equal(y, x + 1)


def test_cp_async_and_zero_fill():
    x, y = np.arange(64, dtype=np.uint32), np.zeros(128, np.uint32)
    body = (
        SETUP
        + """
    mad.lo.u32 %r1, %t, 16, %data; mad.wide.u32 %rd1, %t, 16, %x; mov.u32 %r2, 16;
    setp.eq.u32 %p3, %t, 3; @%p3 mov.u32 %r2, 4;
    cp.async.cg.shared.global [%r1], [%rd1], 16, %r2; cp.async.commit_group; cp.async.wait_group 0;
    ld.shared.v4.u32 {%r3, %r4, %r5, %r6}, [%r1];
    mad.wide.u32 %rd2, %t, 16, %y; st.global.v4.u32 [%rd2], {%r3, %r4, %r5, %r6};
    """
    )
    emulate(kernel(body), [x, y], block=(16, 1, 1))
    want = x.copy()
    want[13:16] = 0
    np.testing.assert_array_equal(y[:64], want)


def test_arrivals_of_all_threads_and_remote_ones():
    # Every thread of both CTAs arrives at the barrier of CTA 0, which then hands on.
    body = (
        SETUP
        + """
    mov.u32 %r1, %cluster_ctarank; setp.ne.u32 %p4, %r1, 0;
    @%p1 mbarrier.init.shared.b64 [%bar], 128;
    barrier.cluster.arrive; barrier.cluster.wait;
    mapa.shared::cluster.u32 %r2, %bar, 0;
    mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r2];
    mov.u32 %r9, 1;
    @%p4 bra END;
    """
        + WAIT.format(n=0, phase=0)
        + "mov.u32 %r9, 2;\nEND: barrier.cluster.arrive; barrier.cluster.wait;"
        + STORE
    )
    y = np.zeros(128, np.uint32)
    emulate(kernel(body, ["y"]), [y], grid=(2, 1, 1), cluster=(2, 1, 1), block=(64, 1, 1))
    assert y.tolist() == [2] * 64 + [1] * 64


def test_multicast():
    x, y = np.arange(16, dtype=np.uint32), np.zeros(64, np.uint32)
    body = (
        SETUP
        + """
    mov.u32 %r1, %cluster_ctarank; setp.eq.and.u32 %p4, %r1, 0, %p1; mov.b16 %h1, 3;
    @%p1 mbarrier.init.shared.b64 [%bar], 1; @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%bar], 64;
    barrier.cluster.arrive; barrier.cluster.wait;
    @%p4 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster
        [%data], [%x], 64, [%bar], %h1;
    """
        + WAIT.format(n=0, phase=0)
        + "and.b32 %r2, %t, 15; mad.lo.u32 %r2, %r2, 4, %data; ld.shared.u32 %r9, [%r2];"
        + "barrier.cluster.arrive; barrier.cluster.wait;"
        + STORE
    )
    emulate(kernel(body), [x, y], grid=(2, 1, 1), cluster=(2, 1, 1), block=(32, 1, 1))
    np.testing.assert_array_equal(y.reshape(4, 16), np.tile(x, (4, 1)))


def test_faults():
    message, _ = fault(SETUP + "mbarrier.arrive.shared.b64 _, [%bar];")
    assert "there is no mbarrier at shared address 0x400: mbarrier.init has not run" in message
    init = "@%p1 mbarrier.init.shared.b64 [%bar], 1; bar.sync 0;\n"
    message, text = fault(SETUP + init + WAIT.format(n=0, phase=0))
    assert "deadlock, no thread can go on" in message
    assert (
        f"threads 0-31 wait at PTX line {line_of(text, 'try_wait')} `mbarrier.try_wait" in message
    )
    message, _ = fault(SETUP + "mbarrier.init.shared.b64 [%bar], 0;")
    assert "expects from 1 to 1048575 arrivals, not 0" in message
    message, _ = fault(
        SETUP
        + init
        + "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%data], [%x], 24, [%bar];"
    )
    assert "a multiple of 16 bytes, not 24" in message
    message, _ = fault(
        SETUP
        + init
        + "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%data], [%x], 512, [%bar];"
    )
    assert "at byte offset 256 of parameter 0 (`p_x`) with 256 bytes" in message
    message, _ = fault(
        "setp.lt.u32 %p1, %t, 9;\n@!%p1 exit;\nldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [%t];"
    )
    assert "all 32 threads of the warp must take part" in message


@pytest.mark.parametrize("trans", ["", ".trans"])
def test_matrices_to_and_from_shared_memory(trans: str):
    x, y = np.arange(256, dtype=np.uint16), np.zeros(512, np.uint16)
    body = (
        SETUP
        + f"""
    mad.lo.u32 %r1, %t, 16, %data; mad.wide.u32 %rd1, %t, 16, %x;
    ld.global.v4.u32 {{%r2, %r3, %r4, %r5}}, [%rd1];
    st.shared.v4.u32 [%r1], {{%r2, %r3, %r4, %r5}}; bar.sync 0;
    ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {{%r6, %r7, %r8, %r9}}, [%r1];
    mad.wide.u32 %rd2, %t, 16, %y; st.global.v4.u32 [%rd2], {{%r6, %r7, %r8, %r9}};
    stmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 [%r1+512], {{%r6, %r7, %r8, %r9}};
    ld.shared.v4.u32 {{%r2, %r3, %r4, %r5}}, [%r1+512]; st.global.v4.u32 [%rd2+512], {{%r2, %r3, %r4, %r5}};
    """
    )
    emulate(kernel(body), [x, y])
    matrices = x.reshape(4, 8, 8)
    fragments = y[:256].reshape(32, 4, 2)
    for lane in range(32):
        row, column = lane // 4, lane % 4 * 2
        for m in range(4):
            matrix = matrices[m].T if trans else matrices[m]
            assert fragments[lane, m].tolist() == matrix[row, column : column + 2].tolist()
    np.testing.assert_array_equal(y[256:], x)


def test_stores_to_another_cta_that_count_bytes():
    body = (
        SETUP
        + """
    mov.u32 %r1, %cluster_ctarank; xor.b32 %r2, %r1, 1;
    @%p1 mbarrier.init.shared.b64 [%bar], 1; @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%bar], 256;
    barrier.cluster.arrive; barrier.cluster.wait;
    mad.lo.u32 %r3, %t, 8, %data; mapa.shared::cluster.u32 %r4, %r3, %r2;
    mapa.shared::cluster.u32 %r5, %bar, %r2;
    add.u32 %r6, %i, 1000;
    st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%r4], {%i, %r6}, [%r5];
    """
        + WAIT.format(n=0, phase=0)
        + "ld.shared.v2.u32 {%r7, %r8}, [%r3]; add.u32 %r9, %r7, %r8;"
        + STORE
        + "barrier.cluster.arrive; barrier.cluster.wait;"
    )
    y = np.zeros(64, np.uint32)
    emulate(kernel(body, ["y"]), [y], grid=(2, 1, 1), cluster=(2, 1, 1))
    assert y.tolist() == [2 * i + 1000 for i in [*range(32, 64), *range(32)]]
