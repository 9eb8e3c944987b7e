"""Forms of recent targets: atomics on vectors, reductions that an mbarrier hears of, arithmetic with halves
as operands, comparisons of pairs, and floats of eight bits and fewer."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.ffi.emulation import emulate, kernel, map_lanes
from tests.ffi.test_emulator_async import SETUP, STORE, WAIT

F16, BF16 = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
NAMES = {F16: "f16", BF16: "bf16"}
SMALL: dict[str, Any] = {
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "e2m1": ml_dtypes.float4_e2m1fn,
}


def floats(n: int, dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(n) * 10.0 ** rng.integers(-3, 3, n)
    x[:8] = [0.0, -0.0, np.nan, np.inf, -np.inf, 1.0, -1.0, 0.5]
    return x.astype(dtype)


def same(got: np.ndarray, want: np.ndarray) -> None:
    """Equal, the sign of zero included; any NaN is like any other."""
    np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64))
    finite = ~np.isnan(want.astype(np.float64))
    np.testing.assert_array_equal(np.signbit(got)[finite], np.signbit(want)[finite])


def test_vector_atomics_of_float32():
    x = np.arange(128, dtype=np.float32)
    old, total = np.zeros(128, np.float32), np.zeros(4, np.float32)
    body = """
    setp.ne.u32 %p1, %t, 0; mov.f32 %f0, 0f00000000;
    @!%p1 st.global.v4.f32 [%sum], {%f0, %f0, %f0, %f0}; bar.warp.sync -1;
    mad.wide.u32 %rd1, %t, 16, %x; ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1];
    atom.global.add.v4.f32 {%f2, %f1, %f4, %f3}, [%sum], {%f1, %f2, %f3, %f4};
    mad.wide.u32 %rd2, %t, 16, %old; st.global.v4.f32 [%rd2], {%f2, %f1, %f4, %f3};
    """
    emulate(kernel(body, ["x", "old", "sum"]), [x, old, total], 2)
    rows = x.reshape(32, 4)
    np.testing.assert_array_equal(total, rows.sum(0))
    # Lanes come one after the other.
    np.testing.assert_array_equal(old.reshape(32, 4), np.cumsum(rows, 0) - rows)


@pytest.mark.parametrize("operation", ["add", "min", "max"])
@pytest.mark.parametrize("form", ["v2.f16", "v8.bf16", "v4.f16x2", "v2.bf16x2"])
def test_vector_reductions_of_halves(operation: str, form: str):
    vector, name = form.split(".")
    dtype = BF16 if name.startswith("bf") else F16
    width, packed = int(vector[1:]), name.endswith("x2")
    n = width * (2 if packed else 1)
    x, y = floats(16, dtype, 1)[-n:], floats(16, dtype, 2)[:n].copy()
    kind = "b32" if packed else "b16"
    names = ", ".join(f"%q{i}" for i in range(width))
    loads = "".join(f"ld.global.{kind} %q{i}, [%x+{x.nbytes // width * i}];" for i in range(width))
    stores = "".join(
        f"ld.global.{kind} %z, [%y+{offset}]; st.global.{kind} [%out+{offset}], %z;"
        for offset in range(0, x.nbytes, x.nbytes // width)
    )
    body = f"""
    .reg .{kind} {names}, %z; setp.ne.u32 %p1, %t, 0; @%p1 ret; {stores} {loads}
    red.global.{operation}.noftz.{form} [%out], {{{names}}};
    """
    out = np.zeros(n, dtype)
    emulate(kernel(body, ["x", "y", "out"]), [x, y, out])
    wide = (y.astype(np.float64), x.astype(np.float64))
    reference = {"add": np.add, "min": np.fmin, "max": np.fmax}[operation]
    with np.errstate(invalid="ignore"):
        want = reference(*wide)
    finite = ~np.isnan(want)
    np.testing.assert_array_equal(out[finite].astype(np.float64), want[finite].astype(dtype))
    assert np.isnan(out[~finite]).all()


REDUCTIONS = {
    "add.u32": lambda old, x: old + x,
    "min.s32": lambda old, x: np.minimum(old.view(np.int32), x.view(np.int32)).view(np.uint32),
    "max.u32": np.maximum,
    "xor.b32": np.bitwise_xor,
    "inc.u32": lambda old, x: np.where(old >= x, 0, old + 1).astype(np.uint32),
}


@pytest.mark.parametrize("operation", REDUCTIONS)
def test_reductions_that_another_cta_hears_of(operation: str):
    """red.async by word, cp.reduce.async.bulk for all of them at once."""
    for is_bulk in (False, True):
        reduce = (
            "@%p1 cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes."
            f"{operation} [%r14], [%data+512], 128, [%r5];"
            if is_bulk
            else "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes."
            f"{operation} [%r4], %r6, [%r5];"
        )
        body = (
            SETUP
            + f"""
        mov.u32 %r1, %cluster_ctarank; xor.b32 %r2, %r1, 1; mad.lo.u32 %r3, %t, 4, %data;
        mad.lo.u32 %r7, %i, 77, 5; st.shared.u32 [%r3], %r7; mad.lo.u32 %r6, %i, 31, 1;
        st.shared.u32 [%r3+512], %r6;
        @%p1 mbarrier.init.shared.b64 [%bar], 1; @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%bar], 128;
        barrier.cluster.arrive; barrier.cluster.wait;
        mapa.shared::cluster.u32 %r4, %r3, %r2; mapa.shared::cluster.u32 %r5, %bar, %r2;
        mapa.shared::cluster.u32 %r14, %data, %r2; {reduce}
        """
            + WAIT.format(n=0, phase=0)
            + "ld.shared.u32 %r9, [%r3];"
            + STORE
            + "barrier.cluster.arrive; barrier.cluster.wait;"
        )
        y = np.zeros(64, np.uint32)
        emulate(kernel(body, ["y"]), [y], grid=(2, 1, 1), cluster=(2, 1, 1))
        i = np.arange(64, dtype=np.uint32)
        old, given = 77 * i + 5, np.roll(31 * i + 1, 32)
        np.testing.assert_array_equal(y, REDUCTIONS[operation](old, given))


@pytest.mark.parametrize("name", ["f32", "f64", "noftz.f16", "noftz.bf16"])
def test_bulk_sums_in_global_memory(name: str):
    dtype = np.dtype(
        {"f32": np.float32, "f64": np.float64, "noftz.f16": F16, "noftz.bf16": BF16}[name]
    )
    n = 256 // dtype.itemsize
    x = np.random.default_rng(0).standard_normal(n).astype(dtype)
    y = np.zeros(n, dtype)
    body = (
        SETUP
        + f"""
    mad.wide.u32 %rd1, %t, 8, %x; ld.global.b64 %rd2, [%rd1];
    mad.lo.u32 %r1, %t, 8, %data; st.shared.b64 [%r1], %rd2; bar.sync 0;
    mad.wide.u32 %rd3, %t, 8, %y; st.global.b64 [%rd3], 0; bar.sync 0; @!%p1 ret;
    cp.reduce.async.bulk.global.shared::cta.bulk_group.add.{name} [%y], [%data], 256;
    cp.reduce.async.bulk.global.shared::cta.bulk_group.add.{name} [%y], [%data], 256;
    cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
    """
    )
    emulate(kernel(body), [x, y])
    np.testing.assert_array_equal(y.astype(np.float64), 2 * x.astype(np.float64))


def test_bytes_of_a_bulk_copy_and_zeros():
    y = np.zeros(16, np.uint32)
    body = (
        SETUP
        + """
    mad.wide.u32 %rd3, %t, 4, %y; st.global.u32 [%rd3], -2;
    mad.lo.u32 %r1, %t, 4, %data; st.shared.u32 [%r1], 0x04030201; bar.sync 0; @!%p1 ret;
    mov.b16 %h1, 0x0ff1; mov.u64 %rd4, 16; cvta.shared.u64 %rd5, data;
    st.bulk.weak.shared::cta [%data+32], %rd4, 0;
    cp.async.bulk.global.shared::cta.bulk_group.cp_mask [%y], [%data], 64, %h1;
    """
    )
    emulate(kernel(body, ["y"]), [y], block=(16, 1, 1))
    row = [0xFFFFFF01, 0x04030201, 0x04030201, 0xFFFFFFFE]
    zeros = [0xFFFFFF00, 0, 0, 0xFFFFFFFE]
    assert y.tolist() == [*row, *row, *zeros, *row]


@pytest.mark.parametrize("half", [F16, BF16], ids=str)
def test_sums_of_halves_and_float32(half: Any):
    a, b, c = floats(200, half, 1), floats(200, half, 2)[::-1].copy(), floats(200, seed=3)
    name = NAMES[half]
    wide = [x.astype(np.float64) for x in (a, b, c)]
    with np.errstate(invalid="ignore", over="ignore"):
        want = {"add": wide[0] + wide[2], "sub": wide[0] - wide[2]}
        fused = (wide[0] * wide[1] + wide[2]).astype(np.float32)
    for operation, exact in want.items():
        got = map_lanes(f"{operation}.f32.{name} %d, %a0, %a1;", [a, c], np.float32)
        same(got, exact.astype(np.float32))
        up = map_lanes(f"{operation}.rp.f32.{name} %d, %a0, %a1;", [a, c], np.float32)
        finite = np.isfinite(exact)
        assert (up[finite] >= exact[finite]).all()
    same(map_lanes(f"fma.rn.f32.{name} %d, %a0, %a1, %a2;", [a, b, c], np.float32), fused)


@pytest.mark.parametrize("operation", ["min", "max"])
def test_extremes_of_three(operation: str):
    a, b, c = floats(64), np.roll(floats(64), 3), np.roll(floats(64), 7)
    plain, strict = (np.fmin, np.minimum) if operation == "min" else (np.fmax, np.maximum)

    def run(modifiers: str) -> np.ndarray:
        return map_lanes(f"{operation}{modifiers}.f32 %d, %a0, %a1, %a2;", [a, b, c], np.float32)

    np.testing.assert_array_equal(run(""), plain(plain(a, b), c))
    np.testing.assert_array_equal(run(".NaN"), strict(strict(a, b), c))
    a, b, c = np.abs(a), np.abs(b), np.abs(c)
    np.testing.assert_array_equal(run(".abs"), plain(plain(a, b), c))


@pytest.mark.parametrize("half", [F16, BF16], ids=str)
def test_comparisons_of_pairs(half: Any):
    a, b = floats(64, half, 1), floats(64, half, 1)
    b[::3] = floats(64, half, 2)[::3]
    pairs, name = [x.view(np.uint32) for x in (a, b)], NAMES[half]
    holds = a.astype(np.float32) < b.astype(np.float32)
    got = map_lanes(f"set.lt.u32.{name}x2 %d, %a0, %a1;", pairs, np.uint32)
    np.testing.assert_array_equal(got.view(np.uint16), np.where(holds, 0xFFFF, 0))
    got = map_lanes(f"set.lt.{name}x2.{name}x2 %d, %a0, %a1;", pairs, np.uint32)
    np.testing.assert_array_equal(got.view(half).astype(np.float32), holds.astype(np.float32))
    got = map_lanes(
        f"setp.eq.u32 %p1, 0, 0; set.lt.xor.u32.{name}x2 %d, %a0, %a1, %p1;", pairs, np.uint32
    )
    np.testing.assert_array_equal(got.view(np.uint16), np.where(holds, 0, 0xFFFF))


def pack(codes: np.ndarray, bits: int) -> np.ndarray:
    """Neighbours in one 16-bit value, the first in the low part."""
    return (codes[0::2] | codes[1::2].astype(np.uint16) << bits).astype(np.uint16)


def small(operation: str, name: str) -> str:
    """The conversion from %a0 to %d, by way of an 8-bit register for four bits."""
    if "e2m1" not in name:
        return f"{operation} %d, %a0;"
    if operation.endswith("e2m1x2"):
        return f".reg .b8 %c; cvt.u8.u16 %c, %a0; {operation} %d, %c;"
    return f".reg .b8 %c; {operation} %c, %a0; cvt.u16.u8 %d, %c;"


@pytest.mark.parametrize("name", SMALL)
def test_small_floats_to_halves(name: str):
    bits = 4 if name == "e2m1" else 8
    values = int(ml_dtypes.finfo(SMALL[name]).bits)
    every = np.arange(2**values, dtype=np.uint8)
    want = every.view(SMALL[name]).astype(np.float32)
    got = map_lanes(small(f"cvt.rn.f16x2.{name}x2", name), [pack(every, bits)], np.uint32)
    same(got.view(F16), want.astype(F16))
    if bits == 8 and values == 8:
        got = map_lanes(f"cvt.rn.bf16x2.{name}x2 %d, %a0;", [pack(every, 8)], np.uint32)
        same(got.view(BF16), want.astype(BF16))


@pytest.mark.parametrize("name", SMALL)
def test_float32_to_small_floats(name: str):
    dtype = SMALL[name]
    largest = float(ml_dtypes.finfo(dtype).max)
    every = np.arange(2 ** int(ml_dtypes.finfo(dtype).bits), dtype=np.uint8).view(dtype)
    exact = np.unique(every.astype(np.float32)[np.isfinite(every.astype(np.float32))])
    middle = (exact[:-1] + exact[1:]) / 2
    x = np.concatenate(
        [exact, middle, np.nextafter(middle, np.float32(np.inf)), [1e9, -1e9, np.inf]]
    )
    x = np.concatenate([x, [-0.0] * (x.size % 2)]).astype(np.float32)
    low, high = x[0::2].copy(), x[1::2].copy()
    bits = 4 if name == "e2m1" else 8
    body = f"cvt.rn.satfinite.{name}x2.f32 %d, %a1, %a0;"
    if bits == 4:
        body = f".reg .b8 %c; {body.replace('%d', '%c')} cvt.u16.u8 %d, %c;"
    got = map_lanes(body, [low, high], np.uint16)
    want = np.clip(x, -largest, largest).astype(dtype).view(np.uint8)
    np.testing.assert_array_equal(got, pack(want, bits))
    relu = map_lanes(body.replace("satfinite", "satfinite.relu"), [low, high], np.uint16)
    want = np.clip(x, 0, largest).astype(dtype).view(np.uint8) & (
        2 ** (bits - 1) - 1 if bits == 4 else 127
    )
    np.testing.assert_array_equal(relu, pack(want, bits))


@pytest.mark.parametrize("name", ["e4m3", "e5m2"])
def test_bfloat16_to_small_floats(name: str):
    x = np.arange(65536, dtype=np.uint16).view(BF16)
    x = x[np.isfinite(x.astype(np.float32))]
    largest = float(ml_dtypes.finfo(SMALL[name]).max)
    got = map_lanes(f"cvt.rn.satfinite.{name}x2.bf16x2 %d, %a0;", [x.view(np.uint32)], np.uint16)
    want = np.clip(x.astype(np.float32), -largest, largest).astype(SMALL[name]).view(np.uint8)
    np.testing.assert_array_equal(got, pack(want, 8))


def test_powers_of_two_as_scales():
    every = np.arange(256, dtype=np.uint8)
    got = map_lanes("cvt.rn.bf16x2.ue8m0x2 %d, %a0;", [pack(every, 8)], np.uint32).view(BF16)
    same(got, every.view(ml_dtypes.float8_e8m0fnu).astype(np.float32).astype(BF16))
    x = np.array([1.0, 1.5, 2.0, 3.9, 0.3, -6.0, 1e-30, 2.0**-127, 3e38, 0.75], np.float32)
    for mode, rounded in (("rz", math.floor), ("rp", math.ceil)):
        body = f"cvt.{mode}.ue8m0x2.f32 %d, %a0, %a0;"
        got = map_lanes(body, [x], np.uint16)
        want = [rounded(math.log2(abs(float(v)))) + 127 for v in x]
        assert got.tolist() == [w | w << 8 for w in want]
    nan = map_lanes(
        "cvt.rz.satfinite.ue8m0x2.f32 %d, %a0, %a1;",
        [np.array([np.nan], np.float32), np.array([np.inf], np.float32)],
        np.uint16,
    )
    assert nan[0] == 0xFFFE


def test_packing_of_integers():
    a = np.array([0, 1, -1, 300, -300, 70000, -70000, 2**31 - 1], np.int32)
    b, c = a[::-1].copy(), np.arange(8, dtype=np.uint32) * 0x01234567
    for name, low, high, bits in (
        ("u16", 0, 65535, 16),
        ("s16", -32768, 32767, 16),
        ("u8", 0, 255, 8),
        ("s8", -128, 127, 8),
    ):
        mask = 2**bits - 1
        clipped = [x.clip(low, high).astype(np.int64) & mask for x in (a, b)]
        want = clipped[0] << bits | clipped[1]
        if bits == 16:
            got = map_lanes(f"cvt.pack.sat.{name}.s32 %d, %a0, %a1;", [a, b], np.uint32)
        else:
            body = f"cvt.pack.sat.{name}.s32.b32 %d, %a0, %a1, %a2;"
            got = map_lanes(body, [a, b, c], np.uint32)
            want |= c.astype(np.int64) << 16 & 0xFFFFFFFF
        np.testing.assert_array_equal(got, want)


PARAMETERS = """
mov.b64 %rd1, p_y; cvta.param.u64 %rd2, %rd1; cvta.param.u64 %rd3, p_x;
{}
mov.u64 %rd7, 0;
isspacep.param %p1, %rd2; @%p1 add.u64 %rd7, %rd7, 1;
isspacep.param %p1, %y; @%p1 add.u64 %rd7, %rd7, 2;
isspacep.global %p1, %rd2; @%p1 add.u64 %rd7, %rd7, 4;
ld.param.u64 %rd4, [%rd1]; ld.u64 %rd5, [%rd2]; ld.const.u64 %rd6, [c];
st.global.v2.u64 [%rd4], {{%rd7, %rd6}}; ld.u64 %rd4, [%rd3]; st.global.u64 [%rd5+16], %rd4;
"""


def test_the_system_has_shared_memory_of_its_own():
    """As cooperative groups ask for it, and for the launch's, without optimisation."""
    body = """.shared .b32 a; mov.u32 %r1, %reserved_smem_offset_begin;
    mov.u32 %r2, %reserved_smem_offset_end; mov.u32 %r3, %reserved_smem_offset_cap; mov.u32 %r4, a;
    mov.u32 %r5, %reserved_smem_offset_1; cvt.u64.u32 %rd1, %r5; cvta.shared.u64 %rd1, %rd1;
    st.u32 [%rd1], 7; st.shared.u32 [a], 9; ld.u32 %r6, [%rd1]; mov.u32 %r7, %envreg1;
    mov.u32 %r8, %total_smem_size; mov.u32 %r9, %aggr_smem_size;
    st.global.v4.u32 [%y], {%r1, %r2, %r3, %r4}; st.global.v4.u32 [%y+16], {%r6, %r7, %r8, %r9};"""
    y = np.zeros(8, np.uint32)
    emulate(kernel(body, ["y"]), [y], block=(1, 1, 1))
    assert y.tolist() == [0, 1024, 1024, 1024, 7, 0, 16, 1040]


def test_constants_are_no_global_memory():
    body = """mov.u64 %rd1, c; cvta.const.u64 %rd1, %rd1; mov.u64 %rd7, 0;
    isspacep.const %p1, %rd1; @%p1 add.u64 %rd7, %rd7, 1;
    isspacep.global %p1, %rd1; @%p1 add.u64 %rd7, %rd7, 2;
    isspacep.const %p1, %y; @%p1 add.u64 %rd7, %rd7, 4;
    isspacep.global %p1, %y; @%p1 add.u64 %rd7, %rd7, 8;
    st.global.u64 [%y], %rd7;"""
    y = np.zeros(1, np.uint64)
    emulate(kernel(body, ["y"], before=".const .b64 c = 5;\n"), [y], block=(1, 1, 1))
    assert y.tolist() == [9]


def test_a_parameter_has_an_address():
    x, y = np.zeros(1, np.uint64), np.zeros(3, np.uint64)
    text = kernel(PARAMETERS.format(""), before=".const .b64 c = 5;\n")
    emulate(text, [x, y], block=(1, 1, 1))
    base = 1 << 40 | 1 << 39 | x.ctypes.data & 15  # of the first tensor
    assert y.tolist() == [1, 5, base]


@pytest.mark.parametrize(
    ("access", "said"),
    [
        ("st.u64 [%rd2], %rd1;", "write at byte offset 8 of the parameters .*may only be read"),
        ("ld.u64 %rd4, [%rd2+8];", "of the parameters with 16 bytes: 8 bytes past its end"),
    ],
)
def test_an_access_that_leaves_the_parameters(access: str, said: str):
    text = kernel(PARAMETERS.format(access), before=".const .b64 c = 5;\n")
    with pytest.raises(Exception, match=said):
        emulate(text, [np.zeros(1, np.uint64), np.zeros(3, np.uint64)], block=(1, 1, 1))
