"""Results that an H200 gave and a reading of the ISA alone would not: benchmarks/exactness found them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ffi.emulation import emulate, kernel, map_lanes

U16, U32, U64 = np.uint16, np.uint32, np.uint64
# Instruction on %a0, %a1, …; operands; result: all as bits.
UNARY: list[tuple[str, Any, int, Any, int]] = [
    # The NaN of abs and neg is canonical, but a float64 stays as it is.
    ("abs.f32 %d, %a0;", U32, 0xFFD72583, U32, 0x7FFFFFFF),
    ("neg.ftz.f32 %d, %a0;", U32, 0x7FC00005, U32, 0x7FFFFFFF),
    ("neg.f16 %d, %a0;", U16, 0x7C01, U16, 0x7FFF),
    ("abs.bf16 %d, %a0;", U16, 0xFF81, U16, 0x7FFF),
    ("neg.f64 %d, %a0;", U64, 0x7FFE90E3B48E02E5, U64, 0x7FFE90E3B48E02E5),
    ("abs.f64 %d, %a0;", U64, 0xFFF10BF2AC5EA662, U64, 0xFFF90BF2AC5EA662),
    # Only the high 32 bits are looked at.
    ("rcp.approx.ftz.f64 %d, %a0;", U64, 0xFFF0000000000001, U64, 0x8000000000000000),
    ("rcp.approx.ftz.f64 %d, %a0;", U64, 0x7FF8000000000005, U64, 0x7FFFFFFF00000000),
    ("rsqrt.approx.ftz.f64 %d, %a0;", U64, 0xC007F53068076325, U64, 0x7FFFFFFF00000000),
    # .relu leaves no negative zero.
    ("cvt.rn.relu.f16.f32 %d, %a0;", U32, 0x80000000, U16, 0),
    ("cvt.rn.relu.tf32.f32 %d, %a0;", U32, 0x80000000, U32, 0),
    ("cvt.rz.relu.bf16x2.f32 %d, %a0, %a0;", U32, 0x80000000, U32, 0),
    ("cvt.rn.satfinite.relu.e4m3x2.f32 %d, %a0, %a0;", U32, 0x80000000, U16, 0),
    ("cvt.rn.relu.f16x2.e5m2x2 %d, %a0;", U16, 0x8080, U32, 0),
    # .tf32 keeps its own NaN.
    ("cvt.rn.tf32.f32 %d, %a0;", U32, 0x7FC00005, U32, 0x7FFFE000),
    ("cvt.rna.tf32.f32 %d, %a0;", U32, 0xFFD72583, U32, 0xFFD72000),
    ("cvt.rna.satfinite.tf32.f32 %d, %a0;", U32, 0x7F7FFFFF, U32, 0x7F7FE000),
    # A NaN that is moved keeps its payload, and one that was a float64 what fits of it.
    ("cvt.f32.f32 %d, %a0;", U32, 0x7FC00005, U32, 0x7FC00005),
    ("cvt.ftz.f64.f32 %d, %a0;", U32, 0x7FC00005, U64, 0x7FFFFFFFE0000000),
    ("cvt.rn.f32.f64 %d, %a0;", U64, 0x7FFE90E3B48E02E5, U32, 0x7FF4871D),
    ("cvt.rz.f16.f64 %d, %a0;", U64, 0x7FF09F4D7A43A33C, U16, 0x7E27),
    ("cvt.rn.bf16.f64 %d, %a0;", U64, 0x7FFE90E3B48E02E5, U16, 0x7FF4),
    ("cvt.f64.f16 %d, %a0;", U16, 0xFD56, U64, 0xFFFD580000000000),
    ("cvt.rzi.f64.f64 %d, %a0;", U64, 0xFFF10BF2AC5EA662, U64, 0xFFF90BF2AC5EA662),
    # A subnormal that becomes an f16 is not flushed.
    ("cvt.rp.ftz.f16.f32 %d, %a0;", U32, 1, U16, 1),
    ("cvt.rp.ftz.bf16.f32 %d, %a0;", U32, 1, U16, 0),
]


@pytest.mark.parametrize(("line", "source", "a", "result", "want"), UNARY, ids=lambda x: str(x))
def test_one_operand(line: str, source: Any, a: int, result: Any, want: int):
    got = map_lanes(line, [np.array([a], source)], result)
    assert hex(got[0]) == hex(want)


def test_flushed_halves_compare_equal():
    subnormal, zero = np.array([1], U16), np.array([0x8000], U16)
    body = "setp.eq.ftz.f16 %p1, %a0, %a1; selp.u32 %d, 1, 0, %p1;"
    assert map_lanes(body, [subnormal, zero], U32) == 1
    body = "setp.lt.ftz.f16x2 %p1|%p2, %a0, %a1; selp.u32 %d, 1, 0, %p1;"
    pairs = [np.array([x], U32) for x in (0x80010001, 0x00000002)]
    assert map_lanes(body, pairs, U32) == 0


# .ftz flushes what would round to less than the least normal number if exponents had no end. These
# products are a little less, and round to it or not.
@pytest.mark.parametrize(
    ("line", "a", "b", "want"),
    [
        ("mul.ftz.f16 %d, %a0, %a1;", 0xB012, 0x8FDC, 0),
        ("mul.f16 %d, %a0, %a1;", 0xB012, 0x8FDC, 0x0400),
        ("mul.ftz.f16 %d, %a0, %a1;", 0x1E83, 0xA0EA, 0x8400),
        ("fma.rn.ftz.f16 %d, %a0, %a0, %a1;", 0x0400, 0x8400, 0x8400),
        ("mul.rn.ftz.f32 %d, %a0, %a1;", 0xBE8B9FDC, 0x816AAFCA, 0),
        ("mul.rn.f32 %d, %a0, %a1;", 0xBE8B9FDC, 0x816AAFCA, 0x00800000),
        ("mul.rp.ftz.f32 %d, %a0, %a1;", 0xBE813FBA, 0x817D86B8, 0),
        ("mul.rp.f32 %d, %a0, %a1;", 0xBE813FBA, 0x817D86B8, 0x00800000),
        ("fma.rp.ftz.f32 %d, %a0, %a1, 0f80000000;", 0xBE813FBA, 0x817D86B8, 0),
        ("div.rp.ftz.f32 %d, %a0, %a1;", 0x3F800000, 0x7E800001, 0),
        ("div.rp.f32 %d, %a0, %a1;", 0x3F800000, 0x7E800001, 0x00800000),
    ],
)
def test_what_is_flushed_depends_on_the_rounded_result(line: str, a: int, b: int, want: int):
    dtype = U16 if "f16" in line else U32
    got = map_lanes(line, [np.array([a], dtype), np.array([b], dtype)], dtype)
    assert hex(got[0]) == hex(want)


@pytest.mark.parametrize(
    ("line", "a", "want"),
    [
        ("rcp.rp.ftz.f32 %d, %a0;", 0x7E800001, 0),
        ("rcp.rp.f32 %d, %a0;", 0x7E800001, 0x00800000),
        ("rcp.rm.ftz.f32 %d, %a0;", 0xFE800001, 0x80000000),
        ("rcp.rm.ftz.f32 %d, %a0;", 0xFE800000, 0x80800000),
        ("rcp.rp.ftz.f32 %d, %a0;", 0x7E800000, 0x00800000),
        ("rcp.rn.ftz.f32 %d, %a0;", 0x7E800001, 0),
        ("sqrt.rp.ftz.f32 %d, %a0;", 0x00800000, 0x20000000),
    ],
)
def test_a_reciprocal_is_flushed_by_the_same_rule(line: str, a: int, want: int):
    assert hex(map_lanes(line, [np.array([a], U32)], U32)[0]) == hex(want)


def test_slct_flushes_what_it_tests():
    a, b, c = (np.array([x], U32) for x in (7, 8, 0x80000001))
    assert map_lanes("slct.ftz.b32.f32 %d, %a0, %a1, %a2;", [a, b, c], U32) == 7
    assert map_lanes("slct.b32.f32 %d, %a0, %a1, %a2;", [a, b, c], U32) == 8


def test_an_approximate_quotient_by_a_huge_divisor_is_zero():
    a, b = np.array([0x7F000000, 0x7F800000], U32), np.array([0xFF000000, 0x7F000000], U32)
    got = map_lanes("div.approx.f32 %d, %a0, %a1;", [a, b], U32)
    assert [hex(x) for x in got] == ["0x80000000", "0x7fffffff"]
    assert map_lanes("div.full.f32 %d, %a0, %a1;", [a[:1], b[:1]], U32) == 0xBF800000


def test_minimum_of_two_nans_is_quiet():
    a, b = np.array([0x7FF8000000000005], U64), np.array([0x7FF0000000000001], U64)
    assert map_lanes("min.f64 %d, %a0, %a1;", [a, b], U64) == 0x7FF8000000000001


@pytest.mark.parametrize("space", ["global", "shared"])
@pytest.mark.parametrize("is_generic", [False, True])
def test_atomic_addition_flushes_in_global_memory_alone(space: str, is_generic: bool):
    address = {"global": "%y", "shared": "%rd1"}[space]
    named = "" if is_generic else f".{space}"
    text = kernel(
        f"""
        .shared .b32 word;
        mov.u64 %rd1, word; mov.b32 %r1, 0x80000001;
        st.{space}.b32 [{address}], %r1;
        {"cvta.shared.u64 %rd1, %rd1;" if is_generic else ""}
        atom{named}.add.f32 %f1, [{address}], 0f80000000;
        {"cvta.to.shared.u64 %rd1, %rd1;" if is_generic else ""}
        ld.{space}.b32 %r2, [{address}];
        st.global.b32 [%y], %r2;
        """,
        ["y"],
    )
    y = np.zeros(1, U32)
    emulate(text, [y], block=(1, 1, 1))
    assert y[0] == (0x80000000 if space == "global" else 0x80000001)


@pytest.mark.parametrize(
    ("small", "want"),
    [
        (0x0800, 0x3F800000),  # 2^-26 lies below what is kept, be there fifteen of them
        (0x0C00, 0x3F800003),  # fifteen times 2^-25 are 3.75 ulp, cut to 3
    ],
)
def test_a_tensor_core_cuts_products_and_their_sum(small: int, want: int):
    # Every row of A and column of B is one 1, then fifteen small numbers.
    text = kernel(
        f"""
        and.b32 %r1, %t, 3; setp.eq.u32 %p1, %r1, 0;
        mov.b32 %r2, {small << 16 | small:#x}; mov.b32 %r4, 0x08000800;
        selp.b32 %r3, {small << 16 | 0x3C00:#x}, %r2, %p1;
        selp.b32 %r5, 0x08003C00, %r4, %p1;
        mov.f32 %f1, 0f00000000;
        mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32
            {{%f2, %f3, %f4, %f5}}, {{%r3, %r3, %r2, %r2}}, {{%r5, %r4}}, {{%f1, %f1, %f1, %f1}};
        mad.wide.u32 %rd1, %t, 16, %y; st.global.v4.f32 [%rd1], {{%f2, %f3, %f4, %f5}};
        """,
        ["y"],
    )
    y = np.zeros(128, U32)
    emulate(text, [y])
    assert {hex(x) for x in y} == {hex(want)}


@pytest.mark.parametrize("shape", ["m16n16k16", "m32n8k16", "m8n32k16"])
def test_wmma_adds_as_the_mma_that_it_is_made_of(shape: str):
    m, n, k = map(int, shape[1:].replace("n", "k").split("k"))
    a, b, y = np.zeros((m, k), U16), np.zeros((k, n), U16), np.zeros((m, n), U32)
    a[:, 0], a[:, 1:], b[0], b[1:] = (
        0x3C00,
        0x0C00,
        0x3C00,
        0x0800,
    )  # as above: 1, and 15 times 2^-25
    registers = [", ".join(f"%r{i}" for i in range(at, at + 8)) for at in (0, 8)]
    sums = ", ".join(f"%f{i}" for i in range(8))
    text = kernel(
        f"""
        wmma.load.a.sync.aligned.row.{shape}.f16 {{{registers[0]}}}, [%a], {k};
        wmma.load.b.sync.aligned.row.{shape}.f16 {{{registers[1]}}}, [%b], {n};
        {" ".join(f"mov.f32 %f{i}, 0f00000000;" for i in range(8))}
        wmma.mma.sync.aligned.row.row.{shape}.f32.f32
            {{{sums}}}, {{{registers[0]}}}, {{{registers[1]}}}, {{{sums}}};
        wmma.store.d.sync.aligned.row.{shape}.f32 [%y], {{{sums}}}, {n};
        """,
        ["a", "b", "y"],
    )
    emulate(text, [a, b, y])
    assert {hex(x) for x in y.flat} == {"0x3f800003"}


ALONE = """
.shared .align 128 .b8 data[256]; .shared .align 8 .b64 bar; .reg .b32 %data, %bar;
mov.u32 %data, data; mov.u32 %bar, bar; setp.ne.u32 %p1, %t, 0; @%p1 bra END; mov.u32 %r1, 7;
mbarrier.init.shared.b64 [%bar], 1; mbarrier.arrive.expect_tx.shared.b64 _, [%bar], {bytes};
st.shared.v4.u32 [%data], {{%r1, %r1, %r1, %r1}}; {instruction}
W: mbarrier.try_wait.parity.shared.b64 %p2, [%bar], 0; @!%p2 bra W;
ld.shared.u32 %r2, [%data+64]; st.global.u32 [%y], %r2; END:
"""
SENT = {
    "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%data+64], %r1, [%bar];": 4,
    "st.shared.u32 [%data+64], 1; red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes"
    ".add.u32 [%data+64], 6, [%bar];": 4,
    "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
    " [%data+64], [%data], 16, [%bar];": 16,
}


@pytest.mark.parametrize("instruction", SENT)
def test_a_cta_without_a_cluster_sends_nothing_to_itself(instruction: str):
    text = kernel(ALONE.format(bytes=SENT[instruction], instruction=instruction), ["y"])
    y = np.zeros(1, np.uint32)
    with pytest.raises(ValueError, match="illegal instruction in a launch without a cluster"):
        emulate(text, [y])
    # An explicit cluster may have one CTA.
    emulate(text.replace("\n{", "\n.reqnctapercluster 1, 1, 1\n{", 1), [y])
    assert y[0] == 7


def test_a_cta_without_a_cluster_is_one_by_itself():
    """All of this ran on an H200 without a cluster, and gave these values."""
    body = """
    .shared .align 16 .b8 data[16]; .reg .b64 %generic;
    barrier.cluster.arrive; barrier.cluster.wait; mov.u32 %r1, data; setp.ne.u32 %p1, %t, 0; @%p1 bra END;
    mapa.shared::cluster.u32 %r2, %r1, 0; st.shared::cluster.u32 [%r2], 5; ld.shared.u32 %r3, [%r1];
    atom.shared::cluster.add.u32 %r4, [%r1], 1; getctarank.shared::cluster.u32 %r5, %r1;
    mov.u32 %r6, %cluster_nctarank; mov.pred %p2, %is_explicit_cluster; selp.u32 %r7, 1, 0, %p2;
    st.global.v4.u32 [%y], {%r3, %r4, %r5, %r6}; st.global.u32 [%y+16], %r7; END:
    """
    y = np.full(5, 9, np.uint32)
    emulate(kernel(body, ["y"]), [y])
    assert y.tolist() == [5, 5, 0, 1, 0]
    explicit = kernel(body, ["y"]).replace("\n{", "\n.reqnctapercluster 1, 1, 1\n{", 1)
    emulate(explicit, [y])
    assert y.tolist() == [5, 5, 0, 1, 1]
