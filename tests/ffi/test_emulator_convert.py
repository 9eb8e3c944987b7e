"""cvt in the emulator: every 16-bit and 8-bit pattern against ml_dtypes, the rest against numpy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.ffi.emulation import map_lanes
from tests.ffi.test_emulator_float import samples
from tests.ffi.test_emulator_integer import TYPES
from tests.ffi.test_emulator_integer import samples as integers

# numpy warns of the NaN and the overflows that these tests are about.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

F16, BF16 = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
ALL_16 = np.arange(2**16, dtype=np.uint16)
NAMES = {F16: "f16", BF16: "bf16", np.dtype(np.float32): "f32", np.dtype(np.float64): "f64"}


def bits_of(array: np.ndarray) -> np.ndarray:
    return array.view({2: np.uint16, 4: np.uint32, 8: np.uint64}[array.dtype.itemsize])


def assert_same(got: np.ndarray, want: np.ndarray) -> None:
    nan = np.isnan(want.astype(np.float64))
    np.testing.assert_array_equal(np.isnan(got.astype(np.float64)), nan)
    np.testing.assert_array_equal(bits_of(got)[~nan], bits_of(want)[~nan])


@pytest.mark.parametrize("half", [F16, BF16], ids=str)
def test_every_half_widens(half: Any):
    a = ALL_16.view(half)
    got = map_lanes(f"cvt.f32.{NAMES[half]} %d, %a0;", [a], np.float32)
    assert_same(got, a.astype(np.float32))


@pytest.mark.parametrize("half", [F16, BF16], ids=str)
def test_every_half_and_the_values_between_round(half: Any):
    exact = ALL_16.view(half).astype(np.float32)
    exact = exact[np.isfinite(exact)]
    with np.errstate(over="ignore"):
        middle = (exact[:-1].astype(np.float64) + exact[1:]) / 2
    near = [np.nextafter(middle.astype(np.float32), np.float32(s)) for s in (np.inf, -np.inf)]
    values = np.concatenate([exact, middle.astype(np.float32), *near, samples(np.float32)])
    with np.errstate(over="ignore"):
        want = values.astype(half)
    got = map_lanes(f"cvt.rn.{NAMES[half]}.f32 %d, %a0;", [values], half)
    assert_same(got, want)
    pairs = values[: values.size // 2 * 2].reshape(-1, 2)
    low, high = np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1])
    packed = map_lanes(f"cvt.rn.{NAMES[half]}x2.f32 %d, %a1, %a0;", [low, high], np.uint32)
    assert_same(packed.view(half), want[: pairs.size])


@pytest.mark.parametrize("half", [F16, BF16], ids=str)
def test_halves_round_towards_zero(half: Any):
    a = samples(np.float32)
    got = map_lanes(f"cvt.rz.{NAMES[half]}.f32 %d, %a0;", [a], half).astype(np.float64)
    with np.errstate(over="ignore"):
        nearest = a.astype(half)
    finite = np.isfinite(a)
    assert (np.abs(got[finite]) <= np.abs(a[finite].astype(np.float64))).all()
    kept = finite & (nearest.astype(np.float64) == a)
    np.testing.assert_array_equal(got[kept], a[kept])


@pytest.mark.parametrize(
    ("name", "dtype"), [("e4m3", ml_dtypes.float8_e4m3fn), ("e5m2", ml_dtypes.float8_e5m2)]
)
def test_fp8(name: str, dtype: Any):
    every = np.arange(256, dtype=np.uint8)
    pairs = every.view(np.uint16)
    got = map_lanes(f"cvt.rn.f16x2.{name}x2 %d, %a0;", [pairs], np.uint32).view(F16)
    assert_same(got, every.view(dtype).astype(np.float32).astype(F16))
    exact = every.view(dtype).astype(np.float32)
    exact = np.sort(exact[np.isfinite(exact)])
    middle = (exact[:-1] + exact[1:]) / 2
    values = np.concatenate(
        [exact, middle, np.nextafter(middle, np.float32(np.inf)), [1e9, -1e9, 500, np.inf]]
    )
    values = values.astype(np.float32)[: values.size // 2 * 2].copy()
    low, high = values[0::2].copy(), values[1::2].copy()
    got = map_lanes(f"cvt.rn.satfinite.{name}x2.f32 %d, %a1, %a0;", [low, high], np.uint16)
    largest = float(ml_dtypes.finfo(dtype).max)
    want = np.clip(values, -largest, largest).astype(dtype)
    np.testing.assert_array_equal(got.view(np.uint8), want.view(np.uint8))
    nan = map_lanes(
        f"cvt.rn.satfinite.{name}x2.f32 %d, %a0, %a0;", [np.array([np.nan], np.float32)], np.uint16
    )
    assert nan[0] == 0x7F7F


def test_tf32():
    a = samples(np.float32)
    finite = a[np.isfinite(a) & (np.abs(a) < 1e38)]
    got = map_lanes("cvt.rna.tf32.f32 %d, %a0;", [finite], np.uint32)
    want = (finite.view(np.uint32) + 0x1000) & 0xFFFFE000
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("to", TYPES)
@pytest.mark.parametrize("source", TYPES)
def test_between_integers(source: str, to: str):
    a = integers(TYPES[source])
    got = map_lanes(f"cvt.{to}.{source} %d, %a0;", [a], TYPES[to])
    np.testing.assert_array_equal(got, a.astype(TYPES[to]))
    info = np.iinfo(TYPES[to])
    got = map_lanes(f"cvt.sat.{to}.{source} %d, %a0;", [a], TYPES[to])
    want = [min(max(int(x), int(info.min)), int(info.max)) for x in a]
    np.testing.assert_array_equal(got, np.array(want, TYPES[to]))


def test_bytes_extend():
    a = np.arange(256, dtype=np.uint8)
    np.testing.assert_array_equal(map_lanes("cvt.u32.u8 %d, %a0;", [a], np.uint32), a)
    np.testing.assert_array_equal(
        map_lanes("cvt.s32.s8 %d, %a0;", [a], np.int32), a.view(np.int8).astype(np.int32)
    )
    np.testing.assert_array_equal(
        map_lanes("cvt.s64.s8 %d, %a0;", [a], np.int64), a.view(np.int8).astype(np.int64)
    )
    wide = integers(np.uint64)
    # A register wider than the type, at either end.
    np.testing.assert_array_equal(
        map_lanes("cvt.s64.s8 %d, %a0;", [wide], np.int64), wide.astype(np.int8).astype(np.int64)
    )
    np.testing.assert_array_equal(
        map_lanes("cvt.u32.u16 %d, %a0;", [wide], np.uint32), wide.astype(np.uint16)
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64, F16, BF16], ids=str)
@pytest.mark.parametrize("to", TYPES)
def test_float_to_integer_saturates(to: str, dtype: Any):
    dtype = np.dtype(dtype)
    a = np.concatenate(
        [
            samples(dtype, 500),
            np.array([0.5, 1.5, 2.5, -0.5, -1.5, 1e9, -1e9], np.float64).astype(dtype),
        ]
    )
    info = np.iinfo(TYPES[to])
    # A NaN gives 0, or the highest bit alone where either type has 64 bits.
    highest = int(info.min) or int(info.max) // 2 + 1
    of_nan = highest if 64 in (info.bits, 8 * dtype.itemsize) else 0
    rounding = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
    for name, reference in rounding.items():
        got = map_lanes(f"cvt.{name}.{to}.{NAMES[dtype]} %d, %a0;", [a], TYPES[to])
        want = []
        for x in reference(a.astype(np.float64)):
            if np.isnan(x):
                want.append(of_nan)
            elif np.isinf(x):
                want.append(int(info.max if x > 0 else info.min))
            else:
                want.append(min(max(int(x), int(info.min)), int(info.max)))
        np.testing.assert_array_equal(got, np.array(want, TYPES[to]), name)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, F16, BF16], ids=str)
@pytest.mark.parametrize("source", TYPES)
def test_integer_to_float_rounds_once(source: str, dtype: Any):
    a = integers(TYPES[source])
    got = map_lanes(f"cvt.rn.{NAMES[np.dtype(dtype)]}.{source} %d, %a0;", [a], dtype)
    if np.dtype(dtype) in (F16, BF16):
        # The nearest of the representable values, by exact distance.
        for x, y in zip(a, got, strict=True):
            if np.isinf(y):
                assert abs(int(x)) >= 65520
                continue
            error = abs(int(x) - int(float(y)))
            for direction in (np.inf, -np.inf):
                other = float(np.nextafter(y, np.dtype(dtype).type(direction)))
                assert np.isinf(other) or error <= abs(int(x) - other)
    else:
        np.testing.assert_array_equal(got, a.astype(dtype))


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_float64_to_float32(mode: str):
    a = np.random.default_rng(0).standard_normal(500) * 10.0 ** np.random.default_rng(1).integers(
        -44, 38, 500
    )
    got = map_lanes(f"cvt.{mode}.f32.f64 %d, %a0;", [a], np.float32)
    nearest = a.astype(np.float32)
    if mode == "rn":
        return np.testing.assert_array_equal(got, nearest)
    wide = got.astype(np.float64)
    if mode == "rz":
        assert (np.abs(wide) <= np.abs(a)).all()
    elif mode == "rm":
        assert (wide <= a).all()
    else:
        assert (wide >= a).all()
    assert (np.abs(wide - a) <= 2 * np.abs(nearest - a) + np.spacing(np.abs(nearest))).all()
    return None


def test_rounding_to_integral_floats():
    a = samples(np.float32)
    for mode, reference in {
        "rni": np.rint,
        "rzi": np.trunc,
        "rmi": np.floor,
        "rpi": np.ceil,
    }.items():
        assert_same(map_lanes(f"cvt.{mode}.f32.f32 %d, %a0;", [a], np.float32), reference(a))
    got = map_lanes("cvt.sat.f32.f32 %d, %a0;", [a], np.float32)
    np.testing.assert_array_equal(got, np.where(np.isnan(a), 0, np.clip(a, 0, 1)))
