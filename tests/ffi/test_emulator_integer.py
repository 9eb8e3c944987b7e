"""Integer instructions of the emulator against numpy and Python's integers."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ffi.emulation import map_lanes

TYPES = {
    "u16": np.uint16,
    "s16": np.int16,
    "u32": np.uint32,
    "s32": np.int32,
    "u64": np.uint64,
    "s64": np.int64,
}


def samples(dtype: type, count: int = 400, seed: int = 0) -> np.ndarray:
    """Random values of all magnitudes, and the corners."""
    rng = np.random.default_rng(seed)
    info = np.iinfo(dtype)
    corners = [info.min, info.min + 1, info.max, info.max - 1, 0, 1, 2, 3, 7, 31, 32, 33, 63]
    corners += [info.max // 2] if info.min == 0 else [-1, -2, -7]
    random = rng.integers(info.min, info.max, count, dtype, endpoint=True)
    shifted = random >> rng.integers(0, info.bits, count).astype(dtype)
    values = np.concatenate([np.array(corners, dtype), random, shifted])
    return rng.permutation(values)


def pairs(dtype: type) -> tuple[np.ndarray, np.ndarray]:
    return samples(dtype, seed=1), samples(dtype, seed=2)


def wrap(value: int, dtype: type) -> int:
    bits = np.iinfo(dtype).bits
    value &= (1 << bits) - 1
    return value - (1 << bits) if np.iinfo(dtype).min < 0 and value >> (bits - 1) else value


def divide(a: int, b: int) -> int:
    if b == 0:
        return -1
    quotient = abs(a) // abs(b)
    return -quotient if (a < 0) != (b < 0) else quotient


def high(a: int, b: int, dtype: type) -> int:
    return (a * b) >> np.iinfo(dtype).bits


BINARY = {
    "add": lambda a, b, t: a + b,
    "sub": lambda a, b, t: a - b,
    "mul.lo": lambda a, b, t: a * b,
    "mul.hi": high,
    "div": lambda a, b, t: divide(a, b),
    "rem": lambda a, b, t: a if b == 0 else a - divide(a, b) * b,
    "min": lambda a, b, t: min(a, b),
    "max": lambda a, b, t: max(a, b),
}


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("op", BINARY)
def test_binary(op: str, name: str):
    dtype = TYPES[name]
    a, b = pairs(dtype)
    got = map_lanes(f"{op}.{name} %d, %a0, %a1;", [a, b], dtype)
    want = [wrap(BINARY[op](int(x), int(y), dtype), dtype) for x, y in zip(a, b, strict=True)]
    np.testing.assert_array_equal(got, np.array(want, dtype))


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("half", ["lo", "hi"])
def test_mad(half: str, name: str):
    dtype = TYPES[name]
    (a, b), c = pairs(dtype), samples(dtype, seed=3)
    got = map_lanes(f"mad.{half}.{name} %d, %a0, %a1, %a2;", [a, b, c], dtype)
    product = high if half == "hi" else lambda x, y, t: x * y
    want = [
        wrap(product(int(x), int(y), dtype) + int(z), dtype)
        for x, y, z in zip(a, b, c, strict=True)
    ]
    np.testing.assert_array_equal(got, np.array(want, dtype))


@pytest.mark.parametrize(
    ("name", "wide"),
    [("u16", np.uint32), ("s16", np.int32), ("u32", np.uint64), ("s32", np.int64)],
)
def test_wide_products(name: str, wide: type):
    a, b = pairs(TYPES[name])
    c = samples(wide, seed=3)[: a.size]
    got = map_lanes(f"mul.wide.{name} %d, %a0, %a1;", [a, b], wide)
    np.testing.assert_array_equal(got, a.astype(wide) * b.astype(wide))
    got = map_lanes(f"mad.wide.{name} %d, %a0, %a1, %a2;", [a, b, c], wide)
    np.testing.assert_array_equal(got, a.astype(wide) * b.astype(wide) + c)


@pytest.mark.parametrize("name", ["s16", "s32", "s64"])
def test_abs_and_neg(name: str):
    a = samples(TYPES[name])
    np.testing.assert_array_equal(map_lanes(f"neg.{name} %d, %a0;", [a], a.dtype), -a)
    np.testing.assert_array_equal(map_lanes(f"abs.{name} %d, %a0;", [a], a.dtype), np.abs(a))


@pytest.mark.parametrize("name", TYPES)
def test_sad(name: str):
    dtype = TYPES[name]
    (a, b), c = pairs(dtype), samples(dtype, seed=3)
    got = map_lanes(f"sad.{name} %d, %a0, %a1, %a2;", [a, b, c], dtype)
    want = [wrap(int(z) + abs(int(x) - int(y)), dtype) for x, y, z in zip(a, b, c, strict=True)]
    np.testing.assert_array_equal(got, np.array(want, dtype))


def test_saturation():
    a, b = pairs(np.int32)
    c = samples(np.int32, seed=3)
    clip = lambda x: np.clip(x, -(2**31), 2**31 - 1).astype(np.int32)
    wide_a, wide_b = a.astype(np.int64), b.astype(np.int64)
    np.testing.assert_array_equal(
        map_lanes("add.sat.s32 %d, %a0, %a1;", [a, b], np.int32), clip(wide_a + wide_b)
    )
    np.testing.assert_array_equal(
        map_lanes("sub.sat.s32 %d, %a0, %a1;", [a, b], np.int32), clip(wide_a - wide_b)
    )
    np.testing.assert_array_equal(
        map_lanes("mad.hi.sat.s32 %d, %a0, %a1, %a2;", [a, b, c], np.int32),
        clip((wide_a * wide_b >> 32) + c),
    )


@pytest.mark.parametrize("name", ["b16", "b32", "b64"])
def test_logic(name: str):
    dtype = TYPES["u" + name[1:]]
    a, b = pairs(dtype)
    for op, want in {"and": a & b, "or": a | b, "xor": a ^ b}.items():
        np.testing.assert_array_equal(map_lanes(f"{op}.{name} %d, %a0, %a1;", [a, b], dtype), want)
    np.testing.assert_array_equal(map_lanes(f"not.{name} %d, %a0;", [a], dtype), ~a)
    np.testing.assert_array_equal(
        map_lanes(f"cnot.{name} %d, %a0;", [a], dtype), (a == 0).astype(dtype)
    )


@pytest.mark.parametrize("name", TYPES)
def test_shifts_clamp(name: str):
    dtype = TYPES[name]
    bits = np.iinfo(dtype).bits
    a = samples(dtype)
    n = np.arange(a.size, dtype=np.uint32) % 80
    n[:2] = [2**31, 2**32 - 1]
    left = [wrap(int(x) << min(int(k), bits), dtype) for x, k in zip(a, n, strict=True)]
    right = [int(x) >> min(int(k), bits) for x, k in zip(a, n, strict=True)]
    got = map_lanes(f"shl.b{bits} %d, %a0, %a1;", [a, n], dtype)
    np.testing.assert_array_equal(got, np.array(left, dtype))
    got = map_lanes(f"shr.{name} %d, %a0, %a1;", [a, n], dtype)
    np.testing.assert_array_equal(got, np.array(right, dtype))


@pytest.mark.parametrize("mode", ["clamp", "wrap"])
def test_funnel_shifts(mode: str):
    a, b = pairs(np.uint32)
    n = np.arange(a.size, dtype=np.uint32) % 70
    both = (b.astype(object) << 32) | a.astype(object)
    k = np.where(n > 32, 32, n) if mode == "clamp" else n % 32
    right = np.array(
        [int(x) >> int(s) & 0xFFFFFFFF for x, s in zip(both, k, strict=True)], np.uint32
    )
    left = np.array(
        [(int(x) << int(s)) >> 32 & 0xFFFFFFFF for x, s in zip(both, k, strict=True)], np.uint32
    )
    got = map_lanes(f"shf.r.{mode}.b32 %d, %a0, %a1, %a2;", [a, b, n], np.uint32)
    np.testing.assert_array_equal(got, right)
    got = map_lanes(f"shf.l.{mode}.b32 %d, %a0, %a1, %a2;", [a, b, n], np.uint32)
    np.testing.assert_array_equal(got, left)


@pytest.mark.parametrize("bits", [32, 64])
def test_counting(bits: int):
    a = samples(TYPES[f"u{bits}"])
    popc = [int(x).bit_count() for x in a]
    clz = [bits - int(x).bit_length() for x in a]
    find = [int(x).bit_length() - 1 if x else 2**32 - 1 for x in a]
    brev = [int(f"{int(x):0{bits}b}"[::-1], 2) for x in a]
    np.testing.assert_array_equal(map_lanes(f"popc.b{bits} %d, %a0;", [a], np.uint32), popc)
    np.testing.assert_array_equal(map_lanes(f"clz.b{bits} %d, %a0;", [a], np.uint32), clz)
    np.testing.assert_array_equal(map_lanes(f"bfind.u{bits} %d, %a0;", [a], np.uint32), find)
    np.testing.assert_array_equal(
        map_lanes(f"brev.b{bits} %d, %a0;", [a], a.dtype), np.array(brev, a.dtype)
    )
    s = samples(TYPES[f"s{bits}"])
    find = [(int(x) if x >= 0 else ~int(x)).bit_length() - 1 for x in s]
    np.testing.assert_array_equal(
        map_lanes(f"bfind.s{bits} %d, %a0;", [s], np.int32), np.array(find, np.int32)
    )
    shift = [bits - 1 - k if k >= 0 else -1 for k in find]
    got = map_lanes(f"bfind.shiftamt.s{bits} %d, %a0;", [s], np.int32)
    np.testing.assert_array_equal(got, np.array(shift, np.int32))


def extract(a: int, position: int, length: int, bits: int, signed: bool) -> int:
    """The loop of the ISA's definition of bfe."""
    top = bits - 1
    sign = 0
    if signed and length != 0:
        sign = a >> min(position + length - 1, top) & 1
    result = 0
    for i in range(bits):
        inside = i < length and position + i <= top
        result |= (a >> (position + i) & 1 if inside else sign) << i
    return result


@pytest.mark.parametrize("name", ["u32", "s32", "u64", "s64"])
def test_bit_fields(name: str):
    dtype = TYPES[name]
    bits = np.iinfo(dtype).bits
    a, b = pairs(dtype)
    rng = np.random.default_rng(4)
    position = rng.integers(0, bits + 8, a.size).astype(np.uint32)
    length = rng.integers(0, bits + 8, a.size).astype(np.uint32)
    got = map_lanes(f"bfe.{name} %d, %a0, %a1, %a2;", [a, position, length], dtype)
    mask = (1 << bits) - 1
    want = [
        wrap(extract(int(x) & mask, int(p), int(n), bits, name[0] == "s"), dtype)
        for x, p, n in zip(a, position, length, strict=True)
    ]
    np.testing.assert_array_equal(got, np.array(want, dtype))
    got = map_lanes(f"bfi.b{bits} %d, %a0, %a1, %a2, %a3;", [a, b, position, length], dtype)
    want = []
    for x, y, p, n in zip(a, b, position, length, strict=True):
        field = ((1 << int(n)) - 1) << int(p) & mask
        want.append(wrap((int(y) & mask & ~field) | (int(x) << int(p) & field), dtype))
    np.testing.assert_array_equal(got, np.array(want, dtype))


def test_lop3_and_prmt():
    (a, b), c = pairs(np.uint32), samples(np.uint32, seed=3)
    for table in (0x96, 0xE8, 0xCA, 0x01, 0x80, 0x00, 0xFF):
        got = map_lanes(f"lop3.b32 %d, %a0, %a1, %a2, {table};", [a, b, c], np.uint32)
        want = np.zeros_like(a)
        for bit in range(8):
            if table >> bit & 1:
                x, y, z = (v if bit >> k & 1 else ~v for v, k in ((a, 2), (b, 1), (c, 0)))
                want |= x & y & z
        np.testing.assert_array_equal(got, want)
    got = map_lanes("prmt.b32 %d, %a0, %a1, %a2;", [a, b, c], np.uint32)
    want = []
    for x, y, z in zip(a, b, c, strict=True):
        source = (int(y) << 32 | int(x)).to_bytes(8, "little")
        out = []
        for k in range(4):
            selector = int(z) >> 4 * k & 15
            byte = source[selector & 7]
            out.append((0xFF if byte & 0x80 else 0) if selector & 8 else byte)
        want.append(int.from_bytes(bytes(out), "little"))
    np.testing.assert_array_equal(got, np.array(want, np.uint32))


def test_carries_make_128_bits():
    a, b, c, d = (samples(np.uint64, seed=s) for s in range(4))
    low = map_lanes("add.cc.u64 %d, %a0, %a2; addc.u64 %rd1, %a1, %a3;", [a, b, c, d], np.uint64)
    high_word = map_lanes(
        "add.cc.u64 %rd1, %a0, %a2; addc.u64 %d, %a1, %a3;", [a, b, c, d], np.uint64
    )
    for i in range(a.size):
        total = (int(b[i]) << 64) + int(a[i]) + (int(d[i]) << 64) + int(c[i])
        assert int(low[i]) == total & (2**64 - 1)
        assert int(high_word[i]) == total >> 64 & (2**64 - 1)
    high_word = map_lanes(
        "sub.cc.u64 %rd1, %a0, %a2; subc.u64 %d, %a1, %a3;", [a, b, c, d], np.uint64
    )
    for i in range(a.size):
        total = (int(b[i]) << 64) + int(a[i]) - (int(d[i]) << 64) - int(c[i])
        assert int(high_word[i]) == total >> 64 & (2**64 - 1)


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("second", ["addc", "subc"])
@pytest.mark.parametrize("first", ["add", "sub"])
def test_the_carry_of_a_subtraction_is_that_of_adding_the_complement(
    first: str, second: str, bits: int
):
    dtype = np.uint32 if bits == 32 else np.uint64
    a, b, c, d = (samples(dtype, seed=s) for s in range(4))
    b[::7] = a[::7]
    ignored, got = ("%r1", "%d") if bits == 32 else ("%rd1", "%d")
    begin = f"{first}.cc.u{bits} {ignored}, %a0, %a1; "
    high = map_lanes(f"{begin}{second}.u{bits} {got}, %a2, %a3;", [a, b, c, d], dtype)
    chained = f"{begin}{second}.cc.u{bits} {ignored}, %a2, %a3; addc.u{bits} {got}, 0, 0;"
    carries = map_lanes(chained, [a, b, c, d], dtype)
    ones = 2**bits - 1
    for i in range(a.size):
        low = int(a[i]) + (int(b[i]) if first == "add" else (int(b[i]) ^ ones) + 1)
        sum_ = int(c[i]) + (int(d[i]) if second == "addc" else int(d[i]) ^ ones) + (low >> bits)
        assert (int(high[i]), int(carries[i])) == (sum_ & ones, sum_ >> bits)


def test_mul24_and_dp4a():
    a, b = pairs(np.uint32)
    c = samples(np.uint32, seed=3)
    product = (a & 0xFFFFFF).astype(np.uint64) * (b & 0xFFFFFF)
    got = map_lanes("mul24.lo.u32 %d, %a0, %a1;", [a, b], np.uint32)
    np.testing.assert_array_equal(got, product.astype(np.uint32))
    got = map_lanes("mul24.hi.u32 %d, %a0, %a1;", [a, b], np.uint32)
    np.testing.assert_array_equal(got, (product >> 16).astype(np.uint32))
    got = map_lanes("dp4a.s32.u32 %d, %a0, %a1, %a2;", [a, b, c], np.uint32)
    left = a.view(np.int8).reshape(-1, 4).astype(np.int64)
    right = b.view(np.uint8).reshape(-1, 4).astype(np.int64)
    np.testing.assert_array_equal(got, ((left * right).sum(1) + c).astype(np.uint32))


def test_masks_and_extensions():
    a, b = (np.arange(64 * 40, dtype=np.uint32) // 40, np.arange(64 * 40, dtype=np.uint32) % 40)
    ones = [((1 << int(n)) - 1) << int(p) & 0xFFFFFFFF for p, n in zip(a, b, strict=True)]
    got = map_lanes("bmsk.clamp.b32 %d, %a0, %a1;", [a, b], np.uint32)
    np.testing.assert_array_equal(got, np.array(ones, np.uint32))
    x = samples(np.uint32)
    n = np.arange(x.size, dtype=np.uint32) % 36
    for name, sign in (("u32", 0), ("s32", 1)):
        want = []
        for value, bits in zip(x, n, strict=True):
            bits = min(int(bits), 32)
            field = int(value) & (1 << bits) - 1
            if sign and bits and field >> (bits - 1):
                field -= 1 << bits
            want.append(field & 0xFFFFFFFF)
        got = map_lanes(f"szext.clamp.{name} %d, %a0, %a1;", [x, n], np.uint32)
        np.testing.assert_array_equal(got, np.array(want, np.uint32))
    position = [31 - k if k < 32 else 2**32 - 1 for k in range(40)]
    base = np.zeros(40, np.uint32) + 31
    which = -(np.arange(40, dtype=np.int32) + 1)
    got = map_lanes("mov.b32 %r1, -1; fns.b32 %d, %r1, %a0, %a1;", [base, which], np.uint32)
    np.testing.assert_array_equal(got, np.array(position, np.uint32))


def test_lop3_with_a_predicate():
    a, b = pairs(np.uint32)
    c = np.where(np.arange(a.size) % 3 == 0, a ^ b, a).astype(np.uint32)
    body = """setp.gt.u32 %p2, %a0, 100; lop3.or.b32 %r1|%p1, %a0, %a1, %a2, 0x96, %p2;
    selp.u32 %d, %r1, 7, %p1;"""
    xor = a ^ b ^ c
    got = map_lanes(body, [a, b, c], np.uint32)
    np.testing.assert_array_equal(got, np.where((xor != 0) | (a > 100), xor, 7))
