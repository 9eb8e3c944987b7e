"""The race check: what orders two accesses, what does not, and what it says of those that race."""

from __future__ import annotations

import numpy as np
import pytest

import jax_ptx
from jax_ptx import Launch, Tile, ptx_kernel
from jax_ptx.emulate import Settings, observe
from jax_ptx.types import u32
from tests.ffi import test_emulator_nvcc
from tests.ffi.emulation import kernel as text_of
from tests.ffi.emulation import line_of
from tests.test_findings import HEAD, WRITE, found

SHARED = """.shared .align 16 .b32 a[64]; .shared .b32 flag; .shared .b64 m; .shared .b64 m2;
mov.u32 %r20, a; mad.lo.u32 %r21, %t, 4, %r20;              // a, and a[%t]
xor.b32 %r22, %t, 1; mad.lo.u32 %r22, %r22, 4, %r20;        // a[%t ^ 1], in the same warp
xor.b32 %r23, %t, 32; mad.lo.u32 %r23, %r23, 4, %r20;       // a[%t ^ 32], in the other warp
setp.eq.u32 %p9, %t, 0; setp.lt.u32 %p8, %t, 32;            // the first thread, the first warp
"""
INIT = (
    "@%p9 mbarrier.init.shared.b64 [m], 64;\n@%p9 mbarrier.init.shared.b64 [m2], 1;\nbar.sync 1;\n"
)
WAIT = "L{0}: mbarrier.try_wait.parity.shared.b64 %p1, [{1}], 0;\n@!%p1 bra L{0};\n"
RAISE = "@%p9 atom{}.shared.exch.b32 %r2, [flag], 1;\n"
SPIN = "L0: @!%p8 atom{}.shared.or.b32 %r3, [flag], 0; setp.eq.u32 %p2, %r3, 1;\n@!%p2 bra L0;\n"
BULK = (
    "@%p9 mbarrier.arrive.expect_tx.shared.b64 _, [m2], 256;\n"
    "@%p9 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [a], [%x], 256, [m2];\n"
)
CP = "mad.wide.u32 %rd1, %t, 4, %x; cp.async.ca.shared.global [%r21], [%rd1], 4;\n"
OTHER = "ld.shared.u32 %r1, [%r23];\n"
OWN = "ld.shared.u32 %r1, [%r21];\n"
STORE = "st.shared.u32 [%r21], %t;\n"

# Each with what orders the accesses, which the other half of the test leaves out.
ORDERED = {
    "bar.sync": (STORE, "bar.sync 0;\n", OTHER),
    "bar.sync before the next write": (
        STORE + "bar.sync 0;\n" + OTHER,
        "bar.sync 0;\n",
        "st.shared.u32 [%r21], %i;",
    ),
    "bar.arrive and bar.sync": (
        "@%p8 " + STORE,
        "@%p8 bar.arrive 2, 64;\n@!%p8 bar.sync 2, 64;\n",
        "@!%p8 " + OTHER,
    ),
    "bar.red": (STORE, "bar.red.popc.u32 %r4, 0, %p9;\n", OTHER),
    "bar.warp.sync": (STORE, "bar.warp.sync -1;\n", "ld.shared.u32 %r1, [%r22];"),
    "an mbarrier": (
        INIT + STORE,
        "mbarrier.arrive.shared.b64 _, [m];\n" + WAIT.format(0, "m"),
        OTHER,
    ),
    "a barrier, and an mbarrier that ends": (
        INIT + "mbarrier.arrive.shared.b64 _, [m];\n" + WAIT.format(0, "m"),
        "bar.sync 0;\n",
        "@%p9 mbarrier.inval.shared.b64 [m];\n",
    ),
    "a further phase, and an mbarrier that ends": (
        INIT + "mbarrier.arrive.shared.b64 _, [m];\n" + WAIT.format(0, "m"),
        "mbarrier.arrive.shared.b64 _, [m];\n"
        "L1: @%p9 mbarrier.try_wait.parity.shared.b64 %p1, [m], 1;\n@!%p1 bra L1;\n",
        "@%p9 mbarrier.inval.shared.b64 [m];\n",
    ),
    # As pipelines of CUDA C++ end: each thread counts itself out, and the last one ends the mbarrier.
    "a count of those who are through, and an mbarrier that ends": (
        "@%p9 st.shared.u32 [flag], 0;\n"
        + INIT
        + "mbarrier.arrive.shared.b64 _, [m];\n"
        + WAIT.format(0, "m"),
        "fence.acq_rel.cta;\n",
        "atom.acquire.cta.shared.add.u32 %r2, [flag], 1; setp.eq.u32 %p3, %r2, 63;\n"
        "@%p3 mbarrier.inval.shared.b64 [m];\n",
    ),
    "a bulk copy that is waited for": (INIT + BULK, WAIT.format(0, "m2"), OTHER),
    "cp.async that is waited for": (
        CP + "cp.async.commit_group;\n",
        "cp.async.wait_group 0;\n",
        OWN,
    ),
    "cp.async for others": (CP, "cp.async.wait_all;\nbar.sync 0;\n", OTHER),
    "cp.async and an mbarrier": (
        INIT + CP,
        "cp.async.mbarrier.arrive.noinc.shared.b64 [m];\n" + WAIT.format(0, "m"),
        OTHER,
    ),
    "the mbarrier's beginning": (
        "@%p9 mbarrier.init.shared.b64 [m], 64;\n",
        "bar.sync 0;\n",
        "mbarrier.arrive.shared.b64 _, [m];\n",
    ),
    "an atomic before a read": (
        "@%p9 st.shared.u32 [flag], 0;\nbar.sync 1;\natom.shared.add.u32 %r1, [flag], 1;\n",
        "bar.sync 0;\n",
        "ld.shared.u32 %r2, [flag];",
    ),
    "release and acquire": (
        "@%p9 st.shared.u32 [flag], 0;\nbar.sync 1;\nmov.u32 %r3, 1;\n@%p9 " + STORE,
        RAISE.format(".release.cta") + SPIN.format(".acquire.cta"),
        "@!%p8 ld.shared.u32 %r1, [a];\n",
    ),
    "fences and relaxed atomics": (
        "@%p9 st.shared.u32 [flag], 0;\nbar.sync 1;\nmov.u32 %r3, 1;\n@%p9 " + STORE,
        "membar.cta;\n" + RAISE.format("") + SPIN.format("") + "fence.acq_rel.cta;\n",
        "@!%p8 ld.shared.u32 %r1, [a];\n",
    ),
}


@pytest.mark.parametrize("name", ORDERED)
def test_what_orders_accesses(name: str) -> None:
    before, between, after = ORDERED[name]
    findings, _ = found(SHARED + before + between + after + WRITE, race_check=True)
    assert findings == ()
    for schedule in ("round_robin", "shuffled", "adversarial"):
        findings, _ = found(SHARED + before + after + WRITE, race_check=True, schedule=schedule)
        # In an unlucky order the reader also comes before there is anything to read.
        assert any(f.kind in ("race", "invalid") for f in findings), schedule


UNORDERED = {
    "shfl": (STORE, "shfl.sync.bfly.b32 %r4, %t, 1, 31, -1;\n", "ld.shared.u32 %r1, [%r22];"),
    "a relaxed arrival": (
        INIT + STORE,
        "mbarrier.arrive.relaxed.cta.shared::cta.b64 _, [m];\n" + WAIT.format(0, "m"),
        OTHER,
    ),
    "atomics without fences": (
        "@%p9 st.shared.u32 [flag], 0;\nbar.sync 1;\nmov.u32 %r3, 1;\n@%p9 " + STORE,
        RAISE.format("") + SPIN.format(""),
        "@!%p8 ld.shared.u32 %r1, [a];\n",
    ),
    "a group that is not waited for": (
        CP + "cp.async.commit_group;\n",
        "cp.async.wait_group 1;\n",
        OWN,
    ),
    "one thread's arrival for its warp": (
        "@%p9 mbarrier.init.shared.b64 [m], 1;\nbar.sync 1;\n" + STORE,
        "@%p9 mbarrier.arrive.shared.b64 _, [m];\n" + WAIT.format(0, "m"),
        "@!%p8 " + OTHER,
    ),
    "a write for a copy to overwrite": (
        INIT + "@!%p9 " + STORE,
        BULK + WAIT.format(0, "m2"),
        OTHER,
    ),
}


@pytest.mark.parametrize("name", UNORDERED)
def test_what_does_not(name: str) -> None:
    findings, _ = found(SHARED + "".join(UNORDERED[name]) + WRITE, race_check=True)
    assert [finding.kind for finding in findings] == ["race"], [str(f) for f in findings]


def test_what_it_says_of_two_warps() -> None:
    findings, text = found(SHARED + STORE + OTHER + WRITE, race_check=True, schedule="shuffled")
    (finding,) = (finding for finding in findings if finding.kind == "race")
    store, load = line_of(text, "st.shared.u32"), line_of(text, "ld.shared.u32")
    assert finding.message.startswith("emulator: kernel `k`, PTX line ")
    assert finding.site is not None
    assert finding.other is not None
    assert {finding.site.line, finding.other.line} == {store, load}
    assert "of byte offset" in finding.message
    assert "of `a` in shared memory\n  and" in finding.message
    assert finding.message.endswith(
        "with nothing that orders the two; a barrier such as bar.sync would order them"
    )


def test_what_it_says_of_two_threads_of_a_warp() -> None:
    (finding,), text = found(SHARED + STORE + "ld.shared.u32 %r1, [%r22];" + WRITE, race_check=True)
    store, load = line_of(text, "st.shared.u32"), line_of(text, "[%r22];")
    assert finding.message == (
        f"emulator: kernel `k`, PTX line {load} `ld.shared.u32 %r1, [%r22]`, CTA (0,0,0), thread (0,0,0): "
        "data race: read of byte offset 4 of `a` in shared memory\n"
        f"  and write of it at PTX line {store} `st.shared.u32 [%r21], %t`, CTA (0,0,0), thread (1,0,0), "
        "with nothing that orders the two; bar.warp.sync would order the threads of a warp"
    )
    assert (finding.memory, finding.offset, finding.count) == ("`a` in shared memory", 4, 64)


def test_what_it_says_of_a_copy() -> None:
    (finding,), text = found(SHARED + CP + OWN + WRITE, race_check=True)
    assert (
        f"and copy into it at PTX line {line_of(text, 'cp.async.ca')} `cp.async.ca.shared.global [%r21], "
        "[%rd1], 4`, CTA (0,0,0), thread (0,0,0), with nothing that orders the two; the copy has not been "
        "waited for"
    ) in finding.message


def test_what_it_says_of_a_copy_that_only_its_thread_waited_for() -> None:
    (finding,), _ = found(
        SHARED + CP + "cp.async.wait_all;\n@!%p8 " + OTHER + WRITE, race_check=True
    )
    assert "nothing that orders the two; the thread that copied has waited" in finding.message
    assert "a barrier such as bar.sync behind the wait would" in finding.message


def test_what_it_says_of_a_wait_on_an_mbarrier() -> None:
    body = "mbarrier.init.shared.b64 [m], 1;\nmbarrier.test_wait.parity.shared.b64 %p1, [m], 0;"
    (finding, *_), _ = found(SHARED + "@%p9 " + body + WRITE, race_check=True)
    assert "data race: mbarrier operation on byte offset 0 of `m`" in finding.message
    assert "\n  and mbarrier operation on it at PTX line" in finding.message


def test_writes_of_one_value_are_let_pass() -> None:
    same = "mov.u32 %r1, 7; st.shared.u32 [a], %r1;" + WRITE
    assert found(SHARED + same, race_check=True)[0] == ()
    (finding,), _ = found(SHARED + "st.shared.u32 [a], %t;" + WRITE, race_check=True)
    assert finding.site is not None
    assert finding.other is not None
    assert finding.site.line == finding.other.line
    assert (finding.site.thread, finding.other.thread) == ((1, 0, 0), (0, 0, 0))


def test_neighbours_in_a_word_do_not_race() -> None:
    body = SHARED + "add.u32 %r1, %r20, %t; cvt.u16.u32 %h1, %t; st.shared.u8 [%r1], %h1;" + WRITE
    assert found(body, race_check=True)[0] == ()


def test_many_readers_are_all_remembered() -> None:
    """The last readers are ordered before the write, the first are not."""
    body = (
        INIT.replace("[m], 64", "[m], 32") + STORE + "bar.sync 0;\nld.shared.u32 %r1, [a];\n"
        "@!%p8 mbarrier.arrive.shared.b64 _, [m];\n@!%p9 ret;\n"
        + WAIT.format(0, "m")
        + "st.shared.u32 [a], 5;"
    )
    (finding,), _ = found(SHARED + WRITE + body, race_check=True)
    assert finding.other is not None
    assert finding.other.thread == (1, 0, 0)


def test_between_ctas() -> None:
    body = "mul.wide.u32 %rd1, %t, 4; add.s64 %rd1, %rd1, %y;\nst.global.u32 [%rd1], %i;"
    (finding,), _ = found(body, block=32, n=32, grid=2, race_check=True)
    assert finding.site is not None
    assert finding.other is not None
    assert (finding.site.cta, finding.other.cta) == ((1, 0, 0), (0, 0, 0))
    assert finding.message.endswith(
        "between CTAs only atomics and fences order accesses: a release or fence behind that one, and an "
        "acquire or fence in front of this one"
    )
    atomic = "mul.wide.u32 %rd1, %t, 4; add.s64 %rd1, %rd1, %y;\nred.global.max.u32 [%rd1], %i;"
    findings, _ = found(atomic, block=32, n=32, grid=2, race_check=True)
    assert [finding.kind for finding in findings] == ["uninitialised"]
    own_scope = atomic.replace("red.global", "red.relaxed.cta.global")
    findings, _ = found(own_scope, block=32, n=32, grid=2, race_check=True)
    (message,) = [finding.message for finding in findings if finding.kind == "race"]
    assert "a scope of .cta (or .cluster) leaves the other thread out" in message


LAST = """
.shared .b32 ticket; setp.eq.u32 %p9, %t, 0; mov.u32 %r5, %nctaid.x; sub.u32 %r5, %r5, 1;
st.global.u32 [%o], %t;
{fence}
bar.sync 0;
@%p9 atom.global.inc.u32 %r1, [arrived], %r5;
@%p9 st.shared.u32 [ticket], %r1;
bar.sync 0;
ld.shared.u32 %r1, [ticket];
setp.ne.u32 %p1, %r1, %r5; @%p1 ret;
{fence}
xor.b32 %r2, %i, 32; mad.wide.u32 %rd1, %r2, 4, %y;
ld.global.u32 %r3, [%rd1];
"""


@pytest.mark.parametrize(("fence", "n_races"), [("membar.gl;", 0), ("membar.cta;", 1), ("", 1)])
def test_the_last_cta_reads_what_all_wrote(fence: str, n_races: int) -> None:
    text = text_of(HEAD + LAST.format(fence=fence), before="\n.global .u32 arrived = 0;")
    kernel = ptx_kernel(
        text, in_specs=(Tile(1, u32),), out_specs=(Tile(128, u32),), grid=(4, 1, 1), block=32
    )
    for schedule in ("round_robin", "adversarial"):
        report = jax_ptx.emulate(
            kernel,
            np.zeros(1, np.uint32),
            race_check=True,
            schedule=schedule,
            raise_on_finding=False,
        )
        assert [finding.kind for finding in report.findings] == ["race"] * n_races


def test_whose_fence_is_missing() -> None:
    reader = LAST.replace("{fence}", "membar.gl;", 1).format(fence="")
    writer = LAST.replace("{fence}", "", 1).format(fence="membar.gl;")
    for body, end in {
        reader: "saw what the other one released behind that; a fence behind it, such as "
        "__threadfence(), would order them",
        writer: "a release or fence behind that one, and an acquire or fence in front of this one",
    }.items():
        text = text_of(HEAD + body, before="\n.global .u32 arrived = 0;")
        kernel = ptx_kernel(
            text, in_specs=(Tile(1, u32),), out_specs=(Tile(128, u32),), grid=4, block=32
        )
        x = np.zeros(1, np.uint32)
        (finding,) = jax_ptx.emulate(kernel, x, race_check=True, raise_on_finding=False).findings
        assert finding.message.endswith(end)


@pytest.mark.parametrize(
    "program",
    [
        *("block_reduce", "scan", "transpose", "matmul", "histogram", "warp_sort", "softmax"),
        "cluster_reduce",
    ],
)
def test_programs_of_nvcc_do_not_race(program: str, monkeypatch) -> None:
    kinds = []

    def observed(text: str, buffers: list[np.ndarray], n_results: int = 1, **launch) -> None:
        launch = {"entry": "k", "grid": (1, 1, 1), "block": (32, 1, 1), **launch}
        launch = {"cluster": (1, 1, 1), "smem_bytes": 0, **launch}
        record = Launch(
            ptx=text,
            unit_bytes=tuple(buffer.nbytes for buffer in buffers),
            dims=(0,) * len(buffers),
            **launch,
        )
        roles = "i" * (len(buffers) - n_results) + "o" * n_results
        report = observe(record, buffers, roles, Settings(race_check=True), outputs=None)
        kinds.extend(finding.kind for finding in report.findings)

    monkeypatch.setattr(test_emulator_nvcc, "emulate", observed)
    text = (test_emulator_nvcc.FOLDER / "sm_90_O3.ptx").read_text()
    getattr(test_emulator_nvcc, f"test_{program}")(text)
    # Its bins are results, which start without a value.
    assert kinds == (["uninitialised"] if program == "histogram" else [])
