"""Float instructions of the emulator against exact references, bit for bit unless approximate."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.ffi.emulation import map_lanes

# numpy warns of the NaN and the overflows that these tests are about.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

BF16 = np.dtype(ml_dtypes.bfloat16)
F16 = np.dtype(np.float16)


def samples(dtype: Any, count: int = 1500, seed: int = 0) -> np.ndarray:
    """Random bit patterns (so all exponents, subnormals, infinities and NaN) and small values."""
    rng = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    bits = {2: np.uint16, 4: np.uint32, 8: np.uint64}[dtype.itemsize]
    patterns = rng.integers(0, np.iinfo(bits).max, count, bits, endpoint=True).view(dtype)
    small = rng.standard_normal(count).astype(dtype)
    corners = np.array([0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 0.5, 2, 3], np.float64)
    return rng.permutation(np.concatenate([patterns, small, corners.astype(dtype)]))


def assert_same(got: np.ndarray, want: np.ndarray) -> None:
    """Equal bits, any NaN for a NaN."""
    bits = {2: np.uint16, 4: np.uint32, 8: np.uint64}[got.dtype.itemsize]
    nan = np.isnan(want.astype(np.float64))
    np.testing.assert_array_equal(np.isnan(got.astype(np.float64)), nan)
    np.testing.assert_array_equal(got.view(bits)[~nan], want.astype(got.dtype).view(bits)[~nan])


def quiet(operation: Any) -> Any:
    with np.errstate(all="ignore"):
        return operation()


OPERATIONS = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div.rn": np.divide}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("op", OPERATIONS)
def test_arithmetic_is_ieee(op: str, dtype: type):
    a, b = samples(dtype, seed=1), samples(dtype, seed=2)
    name = f"f{8 * np.dtype(dtype).itemsize}"
    got = map_lanes(f"{op}.{name} %d, %a0, %a1;", [a, b], dtype)
    assert_same(got, quiet(lambda: OPERATIONS[op](a, b)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_unary_functions_are_ieee(dtype: type):
    a = samples(dtype)
    name = f"f{8 * np.dtype(dtype).itemsize}"
    assert_same(map_lanes(f"sqrt.rn.{name} %d, %a0;", [a], dtype), quiet(lambda: np.sqrt(a)))
    assert_same(map_lanes(f"rcp.rn.{name} %d, %a0;", [a], dtype), quiet(lambda: 1 / a))
    assert_same(map_lanes(f"neg.{name} %d, %a0;", [a], dtype), -a)
    assert_same(map_lanes(f"abs.{name} %d, %a0;", [a], dtype), np.abs(a))


def test_nan_of_float32_is_canonical():
    a = np.array([np.nan, np.inf, -np.inf, 0.0], np.float32)
    got = map_lanes("sub.f32 %d, %a0, %a0;", [a], np.float32).view(np.uint32)
    np.testing.assert_array_equal(got, [0x7FFFFFFF, 0x7FFFFFFF, 0x7FFFFFFF, 0])


def exact(x: float) -> Fraction:
    return Fraction(float(x))


def round_float32(value: Fraction, mode: str) -> np.float32:
    """`value` rounded to float32, for values that neither overflow nor are zero."""
    nearest = np.float32(float(value))
    below = nearest if exact(nearest) <= value else np.nextafter(nearest, np.float32(-np.inf))
    above = nearest if exact(nearest) >= value else np.nextafter(nearest, np.float32(np.inf))
    down = mode == "rm" or (mode == "rz" and value > 0)
    return below if down else above


@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
def test_directed_rounding(mode: str):
    rng = np.random.default_rng(3)
    a, b, c = (rng.standard_normal(300).astype(np.float32) for _ in range(3))
    c *= np.float32(2.0) ** rng.integers(-30, 30, 300).astype(np.float32)
    cases = {
        "add": lambda x, y, z: exact(x) + exact(z),
        "sub": lambda x, y, z: exact(x) - exact(z),
        "mul": lambda x, y, z: exact(x) * exact(z),
        "fma": lambda x, y, z: exact(x) * exact(y) + exact(z),
        "div": lambda x, y, z: exact(x) / exact(z),
    }
    for op, value in cases.items():
        operands = "%a0, %a1, %a2" if op == "fma" else "%a0, %a2"
        got = map_lanes(f"{op}.{mode}.f32 %d, {operands};", [a, b, c], np.float32)
        want = [round_float32(value(*row), mode) for row in zip(a, b, c, strict=True)]
        np.testing.assert_array_equal(got, np.array(want, np.float32), op)
    # Behind it, other instructions round to nearest again.
    got = map_lanes(f"add.{mode}.f32 %f1, %a0, %a1; add.f32 %d, %a0, %a1;", [a, b], np.float32)
    np.testing.assert_array_equal(got, a + b)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, F16, BF16], ids=str)
def test_fma_rounds_once(dtype: Any):
    dtype = np.dtype(dtype)
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal(500).astype(dtype) for _ in range(2))
    # Close to -a * b, where a product that is rounded first shows.
    c = -(a.astype(np.float64) * b.astype(np.float64)).astype(dtype)
    c[::2] += (rng.standard_normal(250) * 1e-3).astype(dtype)
    name = {"float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16"}[str(dtype)]
    got = map_lanes(f"fma.rn.{name} %d, %a0, %a1, %a2;", [a, b, c], dtype)
    want = [exact(x) * exact(y) + exact(z) for x, y, z in zip(a, b, c, strict=True)]
    if dtype == np.float64:
        assert [float(w) for w in want] == got.tolist()
        return
    for g, w in zip(got, want, strict=True):
        error = abs(exact(g) - w)
        for neighbour in (
            np.nextafter(g, dtype.type(np.inf)),
            np.nextafter(g, dtype.type(-np.inf)),
        ):
            assert error <= abs(exact(neighbour) - w)


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
@pytest.mark.parametrize("op", ["add", "sub", "mul"])
def test_half_arithmetic(op: str, dtype: Any):
    name = "f16" if dtype == F16 else "bf16"
    a, b = samples(dtype, seed=1), samples(dtype, seed=2)
    wide = {"add": np.add, "sub": np.subtract, "mul": np.multiply}[op]
    # float64 holds products and, for these exponents, all but the last bit of sums; longdouble holds both.
    want = quiet(lambda: wide(a.astype(np.longdouble), b.astype(np.longdouble)))
    want = quiet(lambda: want.astype(np.float64).astype(dtype))
    got = map_lanes(f"{op}.{name} %d, %a0, %a1;", [a, b], dtype)
    assert_same(got, want)
    packed_a = np.ascontiguousarray(a[: a.size // 2 * 2]).view(np.uint32)
    packed_b = np.ascontiguousarray(b[: b.size // 2 * 2]).view(np.uint32)
    packed = map_lanes(f"{op}.{name}x2 %d, %a0, %a1;", [packed_a, packed_b], np.uint32)
    np.testing.assert_array_equal(packed.view(np.uint16), got[: 2 * packed.size].view(np.uint16))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, F16, BF16], ids=str)
def test_minimum_and_maximum(dtype: Any):
    dtype = np.dtype(dtype)
    name = {"float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16"}[str(dtype)]
    a, b = samples(dtype, seed=1), samples(dtype, seed=2)
    zeros = np.array([0.0, -0.0, 0.0, np.nan], dtype), np.array([-0.0, 0.0, np.nan, np.nan], dtype)
    a, b = np.concatenate([a, zeros[0]]), np.concatenate([b, zeros[1]])
    lower = map_lanes(f"min.{name} %d, %a0, %a1;", [a, b], dtype)
    upper = map_lanes(f"max.{name} %d, %a0, %a1;", [a, b], dtype)
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    assert_same(np.abs(lower), np.abs(quiet(lambda: np.fmin(wide_a, wide_b)).astype(dtype)))
    assert_same(np.abs(upper), np.abs(quiet(lambda: np.fmax(wide_a, wide_b)).astype(dtype)))
    assert np.signbit(lower[-4:-2]).tolist() == [True, True]
    assert np.signbit(upper[-4:-2]).tolist() == [False, False]
    if dtype != np.float64:
        got = map_lanes(f"max.NaN.{name} %d, %a0, %a1;", [a, b], dtype)
        np.testing.assert_array_equal(np.isnan(got), np.isnan(a) | np.isnan(b))


def test_flushing_and_saturation():
    tiny = np.float32(1e-40)
    a = np.array([tiny, -tiny, 1e-30, 2.0, -3.0, np.nan, 0.25], np.float32)
    ones = np.ones_like(a)
    kept = map_lanes("mul.f32 %d, %a0, %a1;", [a, ones], np.float32)
    np.testing.assert_array_equal(kept, a)
    flushed = map_lanes("mul.ftz.f32 %d, %a0, %a1;", [a, ones], np.float32)
    np.testing.assert_array_equal(flushed[:3], np.array([0.0, -0.0, 1e-30], np.float32))
    assert np.signbit(flushed[1])
    half = np.full_like(a, 1e-8)
    assert_same(map_lanes("mul.f32 %d, %a0, %a1;", [a, half], np.float32), a * half)
    got = map_lanes("add.sat.f32 %d, %a0, %a0;", [a], np.float32)
    np.testing.assert_allclose(got, [2 * tiny, 0, 2e-30, 1, 0, 0, 0.5], rtol=1e-6)


APPROXIMATIONS = {
    # name: reference, relative error that is allowed, domain
    "rsqrt.approx.f32": (lambda x: 1 / np.sqrt(x), 2.0**-22, (1e-30, 1e30)),
    "rcp.approx.f32": (lambda x: 1 / x, 2.0**-22, (-1e30, 1e30)),
    "sqrt.approx.f32": (np.sqrt, 2.0**-22, (0, 1e30)),
    "ex2.approx.f32": (np.exp2, 2.0**-22, (-120, 120)),
    "lg2.approx.f32": (np.log2, 2.0**-22, (1e-30, 1e30)),
    "sin.approx.f32": (np.sin, 2.0**-20, (-3, 3)),
    "cos.approx.f32": (np.cos, 2.0**-20, (-3, 3)),
    "tanh.approx.f32": (np.tanh, 2.0**-10, (-5, 5)),
    "ex2.approx.ftz.f32": (np.exp2, 2.0**-22, (-120, 120)),
}


@pytest.mark.parametrize("name", APPROXIMATIONS)
def test_approximations(name: str):
    reference, bound, (low, high) = APPROXIMATIONS[name]
    a = np.random.default_rng(6).uniform(low, high, 2000).astype(np.float32)
    got = map_lanes(f"{name} %d, %a0;", [a], np.float32)
    np.testing.assert_allclose(got, reference(a.astype(np.float64)), rtol=bound, atol=1e-7)


def test_approximations_at_their_limits():
    a = np.array([0.0, -0.0, np.inf, -np.inf, -1.0, np.nan], np.float32)
    got = map_lanes("rsqrt.approx.f32 %d, %a0;", [a], np.float32)
    np.testing.assert_array_equal(
        got, np.array([np.inf, -np.inf, 0, np.nan, np.nan, np.nan], np.float32)
    )
    got = map_lanes("ex2.approx.f32 %d, %a0;", [a], np.float32)
    np.testing.assert_array_equal(got, np.array([1, 1, np.inf, 0, 0.5, np.nan], np.float32))
    got = map_lanes("lg2.approx.f32 %d, %a0;", [a], np.float32)
    np.testing.assert_array_equal(
        got, np.array([-np.inf, -np.inf, np.inf, np.nan, np.nan, np.nan], np.float32)
    )
    b = np.array([4.0, 2.0], np.float64)
    got = map_lanes("rsqrt.approx.f64 %d, %a0;", [b], np.float64)
    np.testing.assert_allclose(got, 1 / np.sqrt(b), rtol=1e-15)
    got = map_lanes("div.approx.f32 %d, %a0, %a1;", [a[:2], a[2:4]], np.float32)
    np.testing.assert_array_equal(got, np.array([0, 0], np.float32))


def test_copysign_and_testp():
    a, b = samples(np.float32, seed=1), samples(np.float32, seed=2)
    got = map_lanes("copysign.f32 %d, %a0, %a1;", [a, b], np.float32)
    np.testing.assert_array_equal(got.view(np.uint32), np.copysign(b, a).view(np.uint32))
    tests = {
        "finite": np.isfinite(a),
        "infinite": np.isinf(a),
        "number": ~np.isnan(a),
        "notanumber": np.isnan(a),
        "normal": np.isfinite(a) & ((np.abs(a) >= np.finfo(np.float32).tiny) | (a == 0)),
        "subnormal": (a != 0) & (np.abs(a) < np.finfo(np.float32).tiny),
    }
    for name, want in tests.items():
        body = f"testp.{name}.f32 %p1, %a0; selp.u32 %d, 1, 0, %p1;"
        np.testing.assert_array_equal(map_lanes(body, [a], np.uint32), want, name)


def test_pairs_of_float32():
    a, b = samples(np.float32, 1500, seed=1)[:3000], samples(np.float32, 1500, seed=2)[:3000]
    got = map_lanes("add.f32x2 %d, %a0, %a1;", [a.view(np.uint64), b.view(np.uint64)], np.uint64)
    assert_same(got.view(np.float32), a + b)
    got = map_lanes("mul.rz.f32x2 %d, %a0, %a1;", [a.view(np.uint64), b.view(np.uint64)], np.uint64)
    lower = map_lanes("mul.rz.f32 %d, %a0, %a1;", [a, b], np.float32)
    assert_same(got.view(np.float32), lower)
