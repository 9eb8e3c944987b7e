"""What the emulator says of a faulty kernel: kernel, PTX line, instruction, CTA, thread, and the fault."""

from __future__ import annotations

import re
import time

import numpy as np
import pytest

from tests.ffi.emulation import emulate, kernel, line_of


def fault(
    body: str,
    buffers: list[np.ndarray] | None = None,
    parameters: tuple[str, ...] = ("x", "y"),
    error: type[Exception] = ValueError,
    n_results: int = 1,
    **launch,
) -> tuple[str, str]:
    """The error's text, and the PTX."""
    if buffers is None:
        buffers = [np.zeros(64, np.float32) for _ in parameters]
    text = kernel(body, parameters)
    with pytest.raises(error) as caught:
        emulate(text, buffers, n_results, **launch)
    return str(caught.value), text


def test_read_past_the_end():
    body = "mad.wide.u32 %rd1, %i, 4, %x;\nld.global.f32 %f1, [%rd1+8];\n"
    message, text = fault(body, grid=(2, 1, 1), block=(40, 1, 1))
    line = line_of(text, "ld.global.f32 %f1")
    assert "kernel `k`" in message
    assert f"PTX line {line} `ld.global.f32 %f1, [%rd1+8]`" in message
    # Of 64 elements, the 62nd thread reads the first that does not exist.
    assert "CTA (1,0,0), thread (22,0,0)" in message
    assert (
        "read of 4 bytes at byte offset 256 of parameter 0 (`p_x`) with 256 bytes: 4 bytes past its end"
        in message
    )
    body = (
        "mov.u32 %r1, %tid.y; mul.wide.u32 %rd1, %r1, 128; add.s64 %rd1, %rd1, %x; "
        "ld.global.f32 %f1, [%rd1];"
    )
    message, _ = fault(body, grid=(1, 2, 1), block=(8, 4, 1))
    assert "CTA (0,0,0), thread (0,2,0)" in message


def test_write_before_the_beginning():
    message, _ = fault("mov.f32 %f1, 0f00000000; st.global.f32 [%y+-8], %f1;")
    assert (
        "write of 4 bytes at byte offset -8 of parameter 1 (`p_y`) with 256 bytes: 8 bytes "
        "before its beginning" in message
    )
    assert "CTA (0,0,0), thread (0,0,0)" in message


def test_vectors_count_whole():
    message, _ = fault(
        "ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%x+248];", [np.zeros(62, np.float32)] * 2
    )
    assert "read of 16 bytes" in message


def test_every_tensor_ends_on_its_own():
    # The next tensor in memory is no excuse.
    both = np.zeros(128, np.float32)
    message, _ = fault("ld.global.f32 %f1, [%x+256];", [both[:64], both[64:]])
    assert "4 bytes past its end" in message
    assert "parameter 0 (`p_x`)" in message


def test_addresses_of_nothing():
    message, _ = fault("mov.u64 %rd1, 16; ld.global.f32 %f1, [%rd1];")
    assert "address 0x10, which belongs to no operand, result or variable" in message


def test_misaligned():
    message, _ = fault("ld.global.v2.f32 {%f1, %f2}, [%x+4];")
    assert "misaligned access: byte offset 4 of parameter 0 (`p_x`)" in message
    assert "multiple of the access's 8 bytes" in message
    odd = np.zeros(65, np.float32)[1:]
    if odd.ctypes.data % 16 == 4:
        message, _ = fault(
            "ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%x];", [odd, np.zeros(4, np.float32)]
        )
        assert "which itself begins 4 bytes behind such a multiple" in message


def test_operands_are_read_only():
    message, _ = fault("mov.f32 %f1, 0f00000000; st.global.f32 [%x+4], %f1;")
    assert (
        "write at byte offset 4 of parameter 0 (`p_x`) with 256 bytes, which is an operand"
        in message
    )


def test_an_operand_that_is_a_result_may_be_written():
    x = np.arange(64, dtype=np.uint32)
    emulate(
        kernel(
            "mad.wide.u32 %rd1, %i, 4, %x; ld.global.u32 %r1, [%rd1]; add.u32 %r1, %r1, 1; "
            "st.global.u32 [%rd1], %r1;"
        ),
        [x, x],
    )
    assert x.tolist() == [*range(1, 33), *range(32, 64)]


def test_results_start_as_nan():
    y = np.zeros(64, np.float32)
    emulate(kernel("ld.global.f32 %f1, [%y]; st.global.f32 [%y+8], %f1;", ["y"]), [y])
    assert np.isnan(y).all()


def test_shared_memory():
    body = ".shared .b32 a[8]; mov.u32 %r1, a; mad.lo.u32 %r1, %t, 4, %r1; st.shared.u32 [%r1], %t;"
    message, _ = fault(body)
    assert (
        "write of 4 bytes at shared address 0x40, outside the CTA's 64 bytes of shared memory, 4 bytes past"
        in message.replace("0x20, outside the CTA's 32 bytes", "0x40, outside the CTA's 64 bytes")
    )
    assert re.search(r"thread \((8),0,0\)", message)
    message, _ = fault(".shared .b32 a[8]; mov.u32 %r1, a; ld.shared.v2.u32 {%r2, %r3}, [%r1+4];")
    assert (
        "misaligned access: byte offset 4 of `a` in shared memory is not at a multiple" in message
    )
    text = kernel("mov.u32 %r1, a; ld.shared.u32 %r2, [%r1];", before=".extern .shared .b32 a[];\n")
    with pytest.raises(
        ValueError, match=r"0 bytes of .*; the launch gave no dynamic shared memory"
    ):
        emulate(text, [np.zeros(1, np.float32)] * 2)
    body = (
        ".shared .b32 a[8]; mov.u32 %r1, a; mapa.shared::cluster.u32 %r2, %r1, 2; "
        "ld.shared::cluster.u32 %r3, [%r2];"
    )
    message, _ = fault(body, cluster=(2, 1, 1), grid=(2, 1, 1))
    assert "shared memory of CTA 2 of the cluster, which has 2 CTA(s)" in message


def test_shared_memory_starts_as_nan():
    y = np.zeros(32, np.float32)
    body = (
        ".shared .f32 a[32]; ld.shared.f32 %f1, [a]; mad.wide.u32 %rd1, %i, 4, %y; "
        "st.global.f32 [%rd1], %f1;"
    )
    emulate(kernel(body, ["y"]), [y])
    assert np.isnan(y).all()


def test_local_memory():
    message, _ = fault(".local .b32 a[4]; mov.u64 %rd1, a; st.local.u32 [%rd1+16], %t;")
    assert "at local address 0x10, outside the thread's 16 bytes of local memory" in message


def test_registers_that_nobody_wrote():
    message, text = fault("add.f32 %f1, %f2, %f2;\nst.global.f32 [%y], %f1;")
    assert f"PTX line {line_of(text, '[%y]')} `st.global.f32 [%y], %f1`" in message
    assert (
        f"stores %f1, which comes from %f2, read at PTX line {line_of(text, 'add.f32')}" in message
    )
    message, _ = fault("setp.gt.u32 %p1, %t, 3; @%p1 mov.u32 %r1, 5; st.global.u32 [%y], %r1;")
    assert "stores %r1, which this thread has never written" in message
    assert "thread (0,0,0)" in message
    message, _ = fault("@%p7 mov.u32 %r1, 5;")
    assert "has the guard %p7, which this thread has never written" in message


def test_a_barrier_that_only_some_threads_reach():
    body = "setp.lt.u32 %p1, %t, 40;\n@%p1 bar.sync 0;\n"
    start = time.perf_counter()
    message, text = fault(body, block=(96, 1, 1), grid=(3, 1, 1))
    assert time.perf_counter() - start < 1
    assert "kernel `k`: deadlock, no thread can go on" in message
    line = line_of(text, "bar.sync 0")
    assert (
        f"CTA (0,0,0): threads 0-39 wait at PTX line {line} `bar.sync 0`; threads 40-95 have exited"
        in message
    )


def test_threads_that_wait_for_each_other():
    body = "setp.lt.u32 %p1, %t, 32;\n@%p1 bar.sync 1;\n@!%p1 bar.sync 2;\n"
    message, text = fault(body, block=(64, 1, 1))
    one, two = line_of(text, "bar.sync 1"), line_of(text, "bar.sync 2")
    assert (
        f"threads 0-31 wait at PTX line {one} `bar.sync 1`; threads 32-63 wait at PTX line {two} `bar.sync 2`"
        in message
    )


def test_different_barriers_within_a_warp():
    message, _ = fault(
        "setp.lt.u32 %p1, %t, 16;\n@%p1 bra A;\nbar.sync 0;\nbra B;\nA: bar.sync 0, 32;\nB:\n"
    )
    assert "all threads of a warp must reach the same barrier instruction" in message
    assert "barrier.sync without .aligned" in message


def test_cluster_barriers_that_do_not_complete():
    body = """mov.u32 %r1, %cluster_ctarank; setp.eq.u32 %p1, %r1, 1; setp.lt.u32 %p2, %t, 32;
    @%p1 bra OTHER;
    barrier.cluster.arrive;
    barrier.cluster.wait;
    OTHER: @%p2 bar.sync 1;
    """
    message, text = fault(body, grid=(4, 1, 1), cluster=(2, 1, 1), block=(64, 1, 1))
    wait, bar = line_of(text, "cluster.wait"), line_of(text, "bar.sync 1")
    assert f"CTA (0,0,0): threads 0-63 wait at PTX line {wait} `barrier.cluster.wait`" in message
    assert (
        f"CTA (1,0,0): threads 0-31 wait at PTX line {bar} `bar.sync 1`; threads 32-63 have exited"
        in message
    )


def test_wrong_barriers():
    message, _ = fault("bar.sync 16;")
    assert "barrier 16 does not exist: there are 16" in message
    message, _ = fault("bar.sync 0, 48;")
    assert "waits for 48 threads; a count must be a multiple of 32" in message


def test_shuffles_with_absent_lanes():
    message, _ = fault(
        "setp.lt.u32 %p1, %t, 16;\n@!%p1 exit;\nshfl.sync.bfly.b32 %r1, %t, 16, 31, -1;"
    )
    assert (
        "reads the register of lane 16, which does not take part (active lanes 0xffff)" in message
    )
    message, _ = fault("shfl.sync.bfly.b32 %r1, %t, 1, 31, 0xff;")
    assert "thread (8,0,0): the thread is not in its own member mask 0xff" in message
    message, _ = fault(
        "setp.lt.u32 %p1, %t, 16;\n@%p1 bra A;\nbar.warp.sync -1;\nbra.uni B;\nA: bar.sync 0;\nB:\n"
    )
    assert "threads 0-15 wait at" in message
    assert "threads 16-31 wait at" in message


def test_step_limit():
    message, text = fault(
        "mov.u32 %r1, 0;\nLOOP: add.u32 %r1, %r1, 1; bra LOOP;", step_limit=10_000
    )
    assert f"PTX line {line_of(text, 'LOOP:')} `" in message
    assert "the step limit is used up: the cluster has run 10000 warp instructions" in message


def test_the_first_failing_cta_is_reported():
    body = "setp.ge.u32 %p1, %i, 1600;\n@%p1 trap;"
    for _ in range(5):
        message, _ = fault(body, grid=(200, 1, 1))
        assert "CTA (50,0,0), thread (0,0,0): the kernel stopped itself" in message


def test_launches_that_do_not_fit():
    message, _ = fault("", [np.zeros(4, np.float32)], block=(32, 1, 1))
    assert "has 2 parameters, the launch has 1 tensors" in message
    text = kernel("").replace("{", ".maxntid 64\n{", 1)
    with pytest.raises(ValueError, match="maxntid allows 64 threads, the block has 128"):
        emulate(text, [np.zeros(4, np.float32)] * 2, block=(128, 1, 1))
    with pytest.raises(ValueError, match="no kernel `other`; it has `k`"):
        emulate(kernel(""), [np.zeros(4, np.float32)] * 2, entry="other")
    message, _ = fault(
        ".shared .b8 a[40000]; mov.u32 %r1, a;", smem_bytes=200_000, error=RuntimeError
    )
    assert "240000 bytes of shared memory, static and dynamic; at most 232448" in message


def test_a_call_of_what_is_not_there():
    text = kernel("call fail;").replace(".visible .entry", ".extern .func fail;\n.visible .entry")
    with pytest.raises(
        ValueError, match=r"`call fail`.*the kernel calls `fail`, which has no body"
    ):
        emulate(text, [np.zeros(4, np.float32)] * 2)


PRINTF = """.extern .func (.param .b32 result) vprintf (.param .b64 format, .param .b64 values);
.extern .func __assertfail (.param .b64 message);
.extern .func (.param .b64 result) malloc (.param .b64 size);
"""


def test_functions_without_a_body():
    """printf prints nothing, and returns 0."""
    body = """.param .b32 result; .param .b64 a; .param .b64 b;
    st.param.b64 [a], 0; st.param.b64 [b], 0; mov.u32 %r1, 9;
    setp.ne.u32 %p1, %t, 3; @%p1 bra END;
    call.uni (result), vprintf, (a, b); ld.param.b32 %r1, [result];
    END: mad.wide.u32 %rd1, %t, 4, %y; st.global.u32 [%rd1], %r1;"""
    y = np.zeros(32, np.uint32)
    emulate(kernel(body, ["y"], before=PRINTF), [y])
    assert y.tolist() == [9] * 3 + [0] + [9] * 28
    body = ".param .b64 a; st.param.b64 [a], 0; call {}, (a);"
    with pytest.raises(ValueError, match="an assertion of the kernel failed"):
        emulate(kernel(body.format("__assertfail"), ["y"], before=PRINTF), [y])
    body = ".param .b64 r; .param .b64 a; st.param.b64 [a], 8; call (r), malloc, (a);"
    with pytest.raises(ValueError, match="the kernel calls `malloc`, which has no body here"):
        emulate(kernel(body, ["y"], before=PRINTF), [y])
