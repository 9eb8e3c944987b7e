"""Every finding of the emulator, with the text that a user sees."""

from __future__ import annotations

import copy
import pickle
import time
from typing import Any

import numpy as np
import pytest

import jax_ptx
from jax_ptx import Tile, ptx_kernel
from jax_ptx.types import u32
from tests.ffi.emulation import kernel as text_of
from tests.ffi.emulation import line_of, with_lines

# %o is the address of y[%i], and every thread writes there unless the case says otherwise.
HEAD = "mad.wide.u32 %rd30, %i, 4, %y; .reg .b64 %o; mov.b64 %o, %rd30;\n"
WRITE = "\nst.global.u32 [%o], %t;\n"


def found(
    body: str, *, n: int = 64, block: int = 64, grid: int = 1, cluster: int = 1, **settings: Any
) -> tuple[tuple[Any, ...], str]:
    """The findings of a kernel that takes x and gives y, of n words, and its text."""
    text = text_of(HEAD + body)
    kernel = ptx_kernel(
        text,
        in_specs=(Tile(64, u32),),
        out_specs=(Tile(n, u32),),
        grid=(grid, 1, 1),
        block=(block, 1, 1),
        cluster=(cluster, 1, 1),
    )
    x = np.arange(64, dtype=np.uint32)
    return jax_ptx.emulate(kernel, x, raise_on_finding=False, **settings).findings, text


# name: kind, body, what the text says behind the kernel's name, launch. `<fragment>` stands for the number
# of the one line that holds the fragment.
FAULTS = {
    "a read past the end": (
        "out_of_bounds",
        "mad.wide.u32 %rd1, %i, 4, %x;\nld.global.u32 %r1, [%rd1+8];" + WRITE,
        "PTX line <ld.global.u32 %r1> `ld.global.u32 %r1, [%rd1+8]`, CTA (0,0,0), thread (62,0,0): "
        "read of 4 bytes at byte offset 256 of parameter 0 (`p_x`) with 256 bytes: 4 bytes past its end",
        {},
    ),
    "a write before the beginning": (
        "out_of_bounds",
        "st.global.u32 [%y+-4], %t;" + WRITE,
        "PTX line <[%y+-4]> `st.global.u32 [%y+-4], %t`, CTA (0,0,0), thread (0,0,0): write of 4 bytes "
        "at byte offset -4 of parameter 1 (`p_y`) with 256 bytes: 4 bytes before its beginning",
        {},
    ),
    "misaligned": (
        "misaligned",
        "ld.global.v2.u32 {%r1, %r2}, [%x+4];" + WRITE,
        "PTX line <ld.global.v2> `ld.global.v2.u32 {%r1, %r2}, [%x+4]`, CTA (0,0,0), thread (0,0,0): "
        "misaligned access: byte offset 4 of parameter 0 (`p_x`) with 256 bytes is not at a multiple "
        "of the access's 8 bytes",
        {},
    ),
    "a write to an input": (
        "read_only",
        "st.global.u32 [%x+4], %t;" + WRITE,
        "PTX line <[%x+4]> `st.global.u32 [%x+4], %t`, CTA (0,0,0), thread (0,0,0): write at byte "
        "offset 4 of parameter 0 (`p_x`) with 256 bytes, which is an operand or constant and may only "
        "be read",
        {},
    ),
    "a register without a value": (
        "uninitialised",
        "add.u32 %r1, %r2, 1;\nst.global.u32 [%o], %r1;" + WRITE,
        "PTX line <%r1;> `st.global.u32 [%o], %r1`, CTA (0,0,0), thread (0,0,0): stores %r1, which "
        "comes from %r2, read at PTX line <add.u32 %r1> before it was written",
        {},
    ),
    "shared memory without a value": (
        "uninitialised",
        ".shared .b32 first[4]; .shared .b32 second[4];\nld.shared.u32 %r1, [second+8];" + WRITE,
        "PTX line <ld.shared> `ld.shared.u32 %r1, [second+8]`, CTA (0,0,0), thread (0,0,0): reads byte "
        "offset 8 of `second` in shared memory, which nothing has written before",
        {"block": 1, "n": 1},
    ),
    "an output read before it is written": (
        "uninitialised",
        "ld.global.u32 %r1, [%o];" + WRITE,
        "PTX line <ld.global> `ld.global.u32 %r1, [%o]`, CTA (0,0,0), thread (0,0,0): reads byte "
        "offset 0 of parameter 1 (`p_y`) with 4 bytes, which nothing has written before",
        {"block": 1, "n": 1},
    ),
    "an output that is left out": (
        "unwritten_output",
        "setp.eq.u32 %p1, %t, 7; @%p1 ret;" + WRITE,
        ": 4 of the 256 bytes of parameter 1 (`p_y`) were never written; the first is at byte offset 28",
        {},
    ),
    "a barrier that some threads miss": (
        "barrier",
        WRITE + "setp.lt.u32 %p1, %t, 40;\n@%p1 bar.sync 0;",
        ": deadlock, no thread can go on:\n  CTA (0,0,0): threads 0-39 wait at PTX line <bar.sync> `bar.sync "
        "0`; threads 40-63 have exited\n  A barrier must be reached by every thread that it counts.",
        {},
    ),
    "a wait for nobody": (
        "deadlock",
        ".shared .b64 m;" + WRITE + "mbarrier.init.shared.b64 [m], 2;\n"
        "L: mbarrier.try_wait.parity.shared.b64 %p1, [m], 0;\n@!%p1 bra L;",
        ": deadlock, no thread can go on:\n  CTA (0,0,0): threads 0 wait at PTX line <try_wait> "
        "`mbarrier.try_wait.parity.shared.b64 %p1, [m], 0`\n  The mbarrier "
        "at byte offset 0 of `m` in shared memory is in a phase of parity 0, with 2 of 2 arrivals and 0 "
        "bytes pending.",
        {"block": 1, "n": 1},
    ),
    "a copy of fewer bytes than were announced": (
        "deadlock",
        ".shared .align 16 .b32 a[32]; .shared .b64 m;"
        + WRITE
        + "mbarrier.init.shared.b64 [m], 1;\nmbarrier.arrive.expect_tx.shared.b64 _, [m], 256;\n"
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [a], [%x], 128, [m];\n"
        "L: mbarrier.test_wait.parity.shared.b64 %p1, [m], 0;\n@!%p1 bra L;",
        "`mbarrier.test_wait.parity.shared.b64 %p1, [m], 0`\n  The mbarrier at byte offset 0 of `m` in "
        "shared memory is in a phase of parity 0, with 0 of 1 arrivals and 128 bytes pending: expect_tx "
        "announced 128 bytes more than copies brought.",
        {"block": 1, "n": 1},
    ),
    "a loop that waits for what nobody does": (
        "deadlock",
        ".shared .b32 flag;" + WRITE + "st.shared.u32 [flag], 0;\nbar.sync 0;\n"
        "L: ld.volatile.shared.u32 %r1, [flag];\nsetp.eq.u32 %p1, %r1, 0; @%p1 bra L;",
        ": deadlock, no thread can go on:\n  CTA (0,0,0): threads 0-63 spin at PTX line <ld.volatile> "
        "`ld.volatile.shared.u32 %r1, [flag]`\n  Who spins reads what no thread is left to change.",
        {},
    ),
    "a loop that waits for a CTA that comes later": (
        "waits_for_cta",
        "mov.u32 %r2, %ctaid.x; setp.eq.u32 %p1, %r2, 0;"
        + WRITE
        + "@!%p1 st.global.u32 [%y+124], 9;\n"
        "L: ld.volatile.global.u32 %r1, [%y+124];\nsetp.ne.u32 %p1, %r1, 9; @%p1 bra L;",
        ": no thread can go on:\n  CTA (0,0,0): threads 0-31 spin at PTX line <ld.volatile> "
        "`ld.volatile.global.u32 %r1, [%y+124]`\n  Who spins reads what no thread of these CTAs is left "
        "to change. The emulator runs CTAs one after the other, and 1 have not begun: a kernel whose CTAs "
        "wait for later ones cannot be run here.",
        {"block": 32, "grid": 2},
    ),
    "a loop that waits on both sides of a branch": (
        "deadlock",
        WRITE + "setp.lt.u32 %p1, %t, 40;\n@%p1 bra A;\nbar.sync 0;\nret;\nA: bra A;",
        ": deadlock, no thread can go on:\n  CTA (0,0,0): threads 40-63 wait at PTX line <bar.sync> "
        "`bar.sync 0`; threads 0-39 spin at ",
        {},
    ),
    "a CTA of the cluster that has exited": (
        "exited_peer",
        ".shared .b32 a; st.shared.u32 [a], %t;" + WRITE + "mov.u32 %r1, %cluster_ctarank;\n"
        "setp.eq.u32 %p1, %r1, 0; @%p1 ret; mov.u32 %r2, a; mapa.shared::cluster.u32 %r3, %r2, 0;\n"
        "ld.shared::cluster.u32 %r4, [%r3];",
        "PTX line <ld.shared::cl> `ld.shared::cluster.u32 %r4, [%r3]`, CTA (1,0,0), thread (0,0,0): "
        "access to the shared memory of CTA 0 of the cluster, which has exited; a barrier.cluster at "
        "its end would keep it",
        {"block": 1, "n": 2, "cluster": 2, "grid": 2},
    ),
    "an exchange with a lane that has left": (
        "inactive_lane",
        WRITE + "setp.ge.u32 %p1, %t, 16; @%p1 ret;\nshfl.sync.bfly.b32 %r1, %t, 16, 31, -1;",
        "PTX line <shfl> `shfl.sync.bfly.b32 %r1, %t, 16, 31, -1`, CTA (0,0,0), thread (0,0,0): reads "
        "the register of lane 16, which does not take part (active lanes 0xffff)",
        {"block": 32, "n": 32},
    ),
    "a store to another row": (
        "foreign_row",
        "xor.b32 %r1, %t, 32; mad.wide.u32 %rd1, %r1, 4, %y;\nst.global.u32 [%rd1], %t;",
        "PTX line <[%rd1]> `st.global.u32 [%rd1], %t`, CTA (0,0,0), thread (0,0,0): write of 4 bytes at "
        "byte offset 128 of parameter 1 (`p_y`) with 256 bytes, outside the CTA's own rows, which are "
        "byte offsets 0 to 127",
        {"own_rows": 32},
    ),
    "trap": (
        "stopped",
        WRITE + "setp.eq.u32 %p1, %t, 3;\n@%p1 trap;",
        "PTX line <trap> `trap`, CTA (0,0,0), thread (3,0,0): the kernel stopped itself",
        {},
    ),
    "too many steps": (
        "step_limit",
        WRITE + "mov.u32 %r1, 0;\nL: add.u32 %r1, %r1, 1;\nbra L;",
        "the step limit is used up: the cluster has run 10000 warp instructions without ending; an "
        "endless loop, or a limit that is too small",
        {"step_limit": 10_000},
    ),
    "an operand that means nothing": (
        "barrier",
        WRITE + "bar.sync 16;",
        "PTX line <bar.sync> `bar.sync 16`, CTA (0,0,0), thread (0,0,0): barrier 16 does not exist: "
        "there are 16, from 0 to 15",
        {},
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_fault(name: str) -> None:
    kind, body, expected, launch = FAULTS[name]
    start = time.perf_counter()
    findings, text = found(body, **launch)
    assert time.perf_counter() - start < 5
    assert [finding.kind for finding in findings] == [kind], [str(f) for f in findings]
    message = findings[0].message
    assert message.startswith("emulator: kernel `k`")
    assert with_lines(expected, text) in message


def test_a_failed_assertion() -> None:
    strings = (
        ".global .b8 what[6] = {120, 32, 62, 32, 48, 0}; .global .b8 file[5] = {97, 46, 99, 117, 0};\n"
        ".extern .func __assertfail (.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, "
        ".param .b64 e);\n"
    )
    call = """mov.u64 %rd1, what; cvta.global.u64 %rd1, %rd1; mov.u64 %rd2, file;
    cvta.global.u64 %rd2, %rd2; .param .b64 a; .param .b64 b; .param .b32 c; .param .b64 d; .param .b64 e;
    st.param.b64 [a], %rd1; st.param.b64 [b], %rd2; st.param.b32 [c], 17; st.param.b64 [d], %rd1;
    st.param.b64 [e], 1; call __assertfail, (a, b, c, d, e);"""
    made = ptx_kernel(
        text_of(call, ["y"], before=strings), in_specs=(), out_specs=(Tile(1, u32),), block=1
    )
    with pytest.raises(jax_ptx.EmulationError, match=r"kernel failed: `x > 0`, a\.cu:17"):
        jax_ptx.emulate(made)


def test_what_happens_often_is_said_once() -> None:
    (finding,), _ = found(".shared .b32 a[64]; ld.shared.u32 %r1, [a];" + WRITE)
    assert finding.count == 64
    assert str(finding) == finding.message + " (64 times)"


def test_several_findings_in_one_error() -> None:
    body = ".shared .b32 a; ld.shared.u32 %r1, [a]; setp.eq.u32 %p1, %t, 7; @%p1 ret;" + WRITE
    findings, text = found(body)
    assert [finding.kind for finding in findings] == ["uninitialised", "unwritten_output"]
    kernel = ptx_kernel(text, in_specs=(Tile(64, u32),), out_specs=(Tile(64, u32),), block=64)
    with pytest.raises(jax_ptx.EmulationError) as caught:
        jax_ptx.emulate(kernel, np.zeros(64, np.uint32))
    assert str(caught.value).splitlines() == [str(finding) for finding in findings]


def test_an_error_that_another_process_raised() -> None:
    kernel = ptx_kernel(text_of("trap;"), in_specs=(Tile(64, u32),), out_specs=(Tile(64, u32),))
    with pytest.raises(jax_ptx.EmulationError) as caught:
        jax_ptx.emulate(kernel, np.zeros(64, np.uint32))
    caught.value.add_note("in worker 3")
    for again in (pickle.loads(pickle.dumps(caught.value)), copy.deepcopy(caught.value)):
        assert type(again) is jax_ptx.EmulationError
        assert str(again) == str(caught.value)
        assert again.report.findings == caught.value.report.findings
        assert again.__notes__ == ["in worker 3"]


def test_a_peer_that_may_exit_first() -> None:
    """In this order it does not, but nothing makes it wait."""
    body = """.shared .b32 a; st.shared.u32 [a], %t; mov.u32 %r1, %cluster_ctarank; mov.u32 %r2, a;
    barrier.cluster.arrive; barrier.cluster.wait; setp.eq.u32 %p1, %r1, 0; @%p1 bra END;
    mapa.shared::cluster.u32 %r3, %r2, 0; ld.shared::cluster.u32 %r4, [%r3];\nEND:
    """
    launch = {"block": 1, "n": 2, "cluster": 2, "grid": 2}
    assert found(body + WRITE, **launch)[0] == ()
    (finding,), text = found(body + WRITE, race_check=True, **launch)
    assert finding.kind == "exited_peer"
    assert finding.message == (
        f"emulator: kernel `k`, PTX line {line_of(text, 'ld.shared::cl')} `ld.shared::cluster.u32 %r4, "
        "[%r3]`, CTA (1,0,0), thread (0,0,0): access to the shared memory of CTA 0 of the cluster, which "
        "nothing keeps from exiting before; a barrier.cluster at its end would"
    )
    waits = body + WRITE + "barrier.cluster.arrive; barrier.cluster.wait;"
    assert found(waits, race_check=True, **launch)[0] == ()
