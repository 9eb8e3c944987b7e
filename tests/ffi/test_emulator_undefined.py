"""Registers that no instruction wrote: carried along as compilers expect, found where the value matters."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ffi.emulation import emulate, kernel, with_lines

WRITE = "\nmad.wide.u32 %rd9, %i, 4, %y; st.global.b32 [%rd9], %r9;"
FIRST = "setp.eq.u32 %p1, %t, %t; setp.ne.u32 %p2, %t, %t;"  # true, false
LANES = np.arange(32, dtype=np.uint32)
T = LANES  # %t of each thread

# What leaves the undefined %r1, %r2, %f1, %rd1 or %h1 out of the %r9 that is stored; and %r9.
HARMLESS = {
    "the choice of a selp": (FIRST + "selp.b32 %r9, %t, %r1, %p1;", T),
    "the other choice": (FIRST + "selp.b32 %r9, %r1, %t, %p2;", T),
    "the choice of a slct": ("mov.b32 %r3, -1; slct.u32.s32 %r9, %r1, %t, %r3;", T),
    "copies": (FIRST + "mov.b32 %r2, %r1; mov.b32 %r3, %r2; selp.b32 %r9, %r3, %t, %p2;", T),
    "or.pred, where the other holds": (
        FIRST + "setp.gt.f32 %p3, %f2, %f1; or.pred %p4, %p1, %p3; selp.b32 %r9, %t, 7, %p4;",
        T,
    ),
    "and.pred, where the other does not": (
        FIRST + "setp.lt.u32 %p3, %r1, 3; and.pred %p4, %p3, !%p1; selp.b32 %r9, 7, %t, %p4;",
        T,
    ),
    "setp.and, where the predicate does not hold": (
        FIRST + "setp.lt.and.u32 %p3, %r1, 3, %p2; selp.b32 %r9, 7, %t, %p3;",
        T,
    ),
    "a difference before the choice": (
        "cvt.rn.f32.u32 %f2, %t; sub.f32 %f3, %f2, %f1; setp.eq.u32 %p1, %t, 99;\n"
        "selp.f32 %f4, %f3, %f2, %p1; cvt.rzi.u32.f32 %r9, %f4;",
        T,
    ),
    "a half of a pair": (
        "cvt.u16.u32 %h2, %t; mov.b32 %r1, {%h2, %h1}; add.u16x2 %r2, %r1, %r1;\n"
        "mov.b32 {%h3, %h4}, %r2; cvt.u32.u16 %r9, %h3;",
        2 * T,
    ),
    "bits that a mask leaves out": (
        "shl.b32 %r1, %r2, 8; or.b32 %r3, %r1, %t; and.b32 %r9, %r3, 255;",
        T,
    ),
    "an or with ones": (
        "or.b32 %r3, %r1, 0xFFFFFFFF; setp.eq.u32 %p3, %r3, -1; mov.b32 %r9, 0; @%p3 mov.b32 %r9, %t;",
        T,
    ),
    "bits that are shifted out": ("prmt.b32 %r3, %t, %r1, 0x7610; shl.b32 %r9, %r3, 16;", T << 16),
    "a byte of a word": (
        "prmt.b32 %r3, %t, %r1, 0x7610; mad.wide.u32 %rd9, %i, 4, %y; st.global.u8 [%rd9], %r3;\n"
        "mov.b32 %r9, %t;",
        T,
    ),
    "the high half of 64 bits": (
        "mov.b64 %rd2, {%t, %r1}; cvt.u32.u64 %r9, %rd2;",
        T,
    ),
    "what other lanes have": (
        "setp.lt.u32 %p1, %t, 8; @%p1 mov.b32 %r1, %t;\n"
        "shfl.sync.idx.b32 %r9, %r1, 5, 31, 0xFFFFFFFF;",
        0 * T + 5,
    ),
    "a lane that nobody needs": (
        "setp.lt.u32 %p1, %t, 31; @%p1 mov.b32 %r1, %t;\n"
        "shfl.sync.down.b32 %r2, %r1, 1, 31, 0xFFFFFFFF; setp.lt.u32 %p2, %t, 30;\n"
        "selp.b32 %r9, %r2, %t, %p2;",
        np.where(T < 30, T + 1, T),
    ),
    "local memory": (
        ".local .b32 a[2]; st.local.v2.b32 [a], {%t, %r1}; ld.local.b32 %r9, [a];",
        T,
    ),
    "local memory by its generic address": (
        ".local .b32 a[2]; mov.b64 %rd2, a; cvta.local.u64 %rd3, %rd2; st.b32 [%rd3+4], %r1;\n"
        "st.b32 [%rd3], %t; ld.b32 %r9, [%rd3];",
        T,
    ),
    "a guard that leaves the instruction out": (
        FIRST + "mov.b32 %r9, %t; @%p2 st.b32 [%rd1], 1;",
        T,
    ),
    "a register that is xor'ed with itself": ("xor.b32 %r9, %r1, %r1;", 0 * T),
    "a register that is written later": ("add.u32 %r9, %r9, 1; mov.b32 %r9, %t;", T),
    "a carry": (
        "add.cc.u32 %r2, %r1, 1; addc.u32 %r3, 0, 0; add.cc.u32 %r2, %t, -1; addc.u32 %r9, 0, 0;",
        np.minimum(T, 1),
    ),
}


@pytest.mark.parametrize("case", HARMLESS)
def test_what_does_not_matter(case: str) -> None:
    body, want = HARMLESS[case]
    y = np.zeros(32, np.uint32)
    emulate(kernel(body + WRITE, ["y"]), [y])
    np.testing.assert_array_equal(y, want)


BEGIN = "add.u32 %r2, %r1, 1;\n"
FROM_R1 = "%r2, which comes from %r1, read at PTX line <add.u32 %r2> before it was written"
PREDICATE = BEGIN + "setp.eq.u32 %p3, %r2, 1;\n"
FROM_PREDICATE = FROM_R1.replace("%r2,", "%p3,", 1)
SHARED = ".shared .b64 m[8]; mov.b32 %r8, m;\n"

# What makes it matter: the text, and what is said of it.
DECISIVE = {
    "a guard": (PREDICATE + "@%p3 mov.b32 %r4, 1;", "has the guard " + FROM_PREDICATE),
    "a branch": (PREDICATE + "@!%p3 bra L; L:", "has the guard " + FROM_PREDICATE),
    "an exit": (PREDICATE + "@%p3 exit;", "has the guard " + FROM_PREDICATE),
    "a store": (BEGIN + "st.global.b32 [%y], %r2;", "stores " + FROM_R1),
    "a store of what nothing wrote": (
        "st.global.b32 [%y], %r1;",
        "stores %r1, which this thread has never written",
    ),
    "a vector's element": (
        BEGIN + "st.global.v2.b32 [%y], {%t, %r2};",
        "stores " + FROM_R1,
    ),
    "a 64-bit register for a word": (
        "st.global.b32 [%y], %rd1;",
        "stores a value, which comes from %rd1, read at PTX line <[%y]> before it was written",
    ),
    "a store to shared memory": (SHARED + BEGIN + "st.shared.b32 [m], %r2;", "stores " + FROM_R1),
    "an address": (BEGIN + "ld.shared.b32 %r3, [%r2];", "has the address " + FROM_R1),
    "a store's address": (BEGIN + "st.local.b32 [%r2], 1;", "has the address " + FROM_R1),
    "an atomic": (BEGIN + "atom.global.add.u32 %r3, [%y], %r2;", "reads " + FROM_R1),
    "a reduction": (BEGIN + "red.global.add.u32 [%y], %r2;", "reads " + FROM_R1),
    "st.async": (
        SHARED
        + BEGIN
        + "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r8+8], %r2, [%r8];",
        "reads " + FROM_R1,
    ),
    "a copy's size": (
        SHARED + BEGIN + "cp.async.ca.shared.global [m], [%y], 4, %r2;",
        "reads " + FROM_R1,
    ),
    "a barrier's number": (BEGIN + "bar.sync %r2, 32;", "reads " + FROM_R1),
    "a vote": (
        PREDICATE + "vote.sync.any.pred %p4, %p3, 0xFFFFFFFF;",
        "reads " + FROM_PREDICATE,
    ),
    "a match": (BEGIN + "match.any.sync.b32 %r3, %r2, 0xFFFFFFFF;", "reads " + FROM_R1),
    "a member mask": (BEGIN + "bar.warp.sync %r2;", "reads " + FROM_R1),
    "a lane's number": (BEGIN + "shfl.sync.idx.b32 %r3, %t, %r2, 31, -1;", "reads " + FROM_R1),
    "the mask of shfl": (BEGIN + "shfl.sync.idx.b32 %r3, %t, 0, 31, %r2;", "reads " + FROM_R1),
    "an index of branches": (
        BEGIN + "ts: .branchtargets L; brx.idx %r2, ts; L:",
        "reads " + FROM_R1,
    ),
    "the choice of a selp": (
        PREDICATE + "selp.b32 %r3, 1, 2, %p3; st.global.b32 [%y], %r3;",
        "stores " + FROM_R1.replace("%r2", "%r3", 1),
    ),
    "what a selp chose": (
        FIRST
        + "mov.b32 %r4, %r3;\n"
        + BEGIN
        + "selp.b32 %r5, %r4, %r2, %p2;\nst.global.b32 [%y], %r5;",
        "stores " + FROM_R1.replace("%r2", "%r5", 1),
    ),
    "what another lane had": (
        "setp.ne.u32 %p1, %t, 3; @%p1 mov.b32 %r1, %t;\n"
        + BEGIN
        + "shfl.sync.idx.b32 %r3, %r2, 3, 31, -1;\n"
        "st.global.b32 [%y], %r3;",
        "stores " + FROM_R1.replace("%r2", "%r3", 1),
    ),
    "a sum over lanes": (
        BEGIN + "redux.sync.add.u32 %r3, %r2, -1; st.global.b32 [%y], %r3;",
        "stores " + FROM_R1.replace("%r2", "%r3", 1),
    ),
    "or.pred, where the other does not hold": (
        PREDICATE + FIRST + "or.pred %p4, %p3, %p2; @%p4 mov.b32 %r4, 1;",
        "has the guard " + FROM_PREDICATE.replace("%p3", "%p4", 1),
    ),
    "a half of a pair": (
        "mov.b32 %r2, {%h1, %h2};\nst.global.b32 [%y], %r2;",
        "stores %r2, which comes from %h1, read at PTX line <mov.b32 %r2> before it was written",
    ),
    "a carry": (
        "add.cc.u32 %r2, %r1, 1;\naddc.u32 %r3, 0, 0; st.global.b32 [%y], %r3;",
        "stores %r3, which comes from %r1, read at PTX line <add.cc.u32> before it was written",
    ),
    "a matrix": (
        "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%fd1, %fd2}, {%fd3}, {%fd3}, {%fd3, %fd3};\n"
        "st.global.f64 [%y], %fd2;",
        "stores %fd2, which comes from %fd3, read at PTX line <mma.sync> before it was written",
    ),
}


@pytest.mark.parametrize("case", DECISIVE)
def test_what_matters(case: str) -> None:
    body, said = DECISIVE[case]
    text = kernel(body, ["y"])
    with pytest.raises(ValueError, match="kernel `k`, PTX line") as caught:
        emulate(text, [np.zeros(32, np.uint32)])
    assert str(caught.value).endswith("thread (0,0,0): " + with_lines(said, text))
