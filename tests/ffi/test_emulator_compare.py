"""Comparisons, selections, predicates and moves in the emulator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ffi.emulation import map_lanes
from tests.ffi.test_emulator_float import BF16, F16, samples
from tests.ffi.test_emulator_integer import TYPES
from tests.ffi.test_emulator_integer import samples as integers

# numpy warns of the NaN and the overflows that these tests are about.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

ORDERED = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
COUNT = "selp.u32 %d, 1, 0, %p1;"


def neighbours(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two columns in which every third pair is equal."""
    other = np.roll(values, 1)
    other[::3] = values[::3]
    return values, other


@pytest.mark.parametrize("name", TYPES)
def test_integer_comparisons(name: str):
    a, b = neighbours(integers(TYPES[name]))
    for compare, reference in ORDERED.items():
        got = map_lanes(f"setp.{compare}.{name} %p1, %a0, %a1; {COUNT}", [a, b], np.uint32)
        np.testing.assert_array_equal(got, reference(a, b), compare)
    if name[0] == "u":
        for compare, reference in {
            "lo": np.less,
            "ls": np.less_equal,
            "hi": np.greater,
            "hs": np.greater_equal,
        }.items():
            got = map_lanes(f"setp.{compare}.{name} %p1, %a0, %a1; {COUNT}", [a, b], np.uint32)
            np.testing.assert_array_equal(got, reference(a, b), compare)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, F16, BF16], ids=str)
def test_float_comparisons(dtype: Any):
    dtype = np.dtype(dtype)
    name = {"float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16"}[str(dtype)]
    a, b = neighbours(samples(dtype, 600))
    nan = np.isnan(a) | np.isnan(b)
    for compare, reference in ORDERED.items():
        holds = reference(a, b)
        got = map_lanes(f"setp.{compare}.{name} %p1, %a0, %a1; {COUNT}", [a, b], np.uint32)
        np.testing.assert_array_equal(got, holds & ~nan, compare)
        got = map_lanes(f"setp.{compare}u.{name} %p1, %a0, %a1; {COUNT}", [a, b], np.uint32)
        np.testing.assert_array_equal(got, holds | nan, compare)
    got = map_lanes(f"setp.num.{name} %p1, %a0, %a1; {COUNT}", [a, b], np.uint32)
    np.testing.assert_array_equal(got, ~nan)
    got = map_lanes(f"setp.nan.{name} %p1, %a0, %a1; {COUNT}", [a, b], np.uint32)
    np.testing.assert_array_equal(got, nan)


@pytest.mark.parametrize(
    ("op", "reference"), [("and", np.logical_and), ("or", np.logical_or), ("xor", np.logical_xor)]
)
def test_combined_comparisons(op: str, reference: Any):
    a, b = neighbours(integers(np.int32))
    for sign in ("", "!"):
        body = (
            f"setp.lt.s32 %p2, %a0, 5; setp.gt.{op}.s32 %p1|%p3, %a0, %a1, {sign}%p2;"
            "selp.u32 %r1, 1, 0, %p1; selp.u32 %r2, 2, 0, %p3; or.b32 %d, %r1, %r2;"
        )
        c = (a < 5) ^ (sign == "!")
        want = reference(a > b, c).astype(np.uint32) + 2 * reference(a <= b, c)
        np.testing.assert_array_equal(map_lanes(body, [a, b], np.uint32), want)


def test_predicate_logic_and_set():
    a, b = neighbours(integers(np.int32))
    body = (
        "setp.lt.s32 %p1, %a0, 0; setp.lt.s32 %p2, %a1, 0; and.pred %p3, %p1, !%p2; xor.pred %p4, %p3, %p1;"
        "not.pred %p5, %p4; or.pred %p6, %p5, %p1; mov.pred %p7, %p6; selp.s32 %d, 7, -7, %p7;"
    )
    p, q = a < 0, b < 0
    want = np.where(~((p & ~q) ^ p) | p, 7, -7)
    np.testing.assert_array_equal(map_lanes(body, [a, b], np.int32), want)
    got = map_lanes("set.gt.u32.s32 %d, %a0, %a1;", [a, b], np.uint32)
    np.testing.assert_array_equal(got, np.where(a > b, 0xFFFFFFFF, 0))
    got = map_lanes("set.gt.f32.s32 %d, %a0, %a1;", [a, b], np.float32)
    np.testing.assert_array_equal(got, np.where(a > b, 1.0, 0.0))


def test_selections():
    a, b = neighbours(integers(np.uint64))
    c = integers(np.int32)[: a.size]
    got = map_lanes("slct.u64.s32 %d, %a0, %a1, %a2;", [a, b, c], np.uint64)
    np.testing.assert_array_equal(got, np.where(c >= 0, a, b))
    f = np.resize(np.array([-0.0, 0.0, -1, 1, np.nan], np.float32), a.size)
    got = map_lanes("slct.u64.f32 %d, %a0, %a1, %a2;", [a, b, f], np.uint64)
    np.testing.assert_array_equal(got, np.where(f >= 0, a, b))


def test_packing():
    a, b = neighbours(integers(np.uint32))
    got = map_lanes("mov.b64 %d, {%a0, %a1};", [a, b], np.uint64)
    np.testing.assert_array_equal(got, a.astype(np.uint64) | b.astype(np.uint64) << np.uint64(32))
    got = map_lanes("mov.b64 {%r1, %d}, %a0;", [got], np.uint32)
    np.testing.assert_array_equal(got, b)
    got = map_lanes("mov.b32 {%h1, %h2}, %a0; mov.b32 %d, {%h2, %h1};", [a], np.uint32)
    np.testing.assert_array_equal(got, a >> 16 | a << 16)
    wide = a.astype(np.uint64) << np.uint64(32) | b
    body = "mov.b64 {%h1, %h2, %h3, %h4}, %a0; mov.b64 %d, {%h4, %h3, %h2, %h1};"
    got = map_lanes(body, [wide], np.uint64)
    np.testing.assert_array_equal(
        got.view(np.uint16).reshape(-1, 4), wide.view(np.uint16).reshape(-1, 4)[:, ::-1]
    )
    got = map_lanes("mov.b32 {_, %h2}, %a0; mov.b32 %d, {%h2, %h2};", [a], np.uint32)
    np.testing.assert_array_equal(got, (a >> 16) * 0x10001)


def test_immediates():
    zero = np.zeros(3, np.uint32)
    for text, want in {
        "-1": 2**32 - 1,
        "0x1F": 31,
        "017": 15,
        "0b101": 5,
        "4294967295U": 2**32 - 1,
    }.items():
        assert map_lanes(f"mov.u32 %d, {text};", [zero], np.uint32).tolist() == [want] * 3
    for text, want in {
        "0f3FC00000": 1.5,
        "0.1": np.float32(0.1),
        "-2.5e-3": np.float32(-2.5e-3),
    }.items():
        assert map_lanes(f"mov.f32 %d, {text};", [zero], np.float32).tolist() == [want] * 3
    for text, want in {"0d3FF8000000000000": 1.5, "0.1": 0.1, "1e300": 1e300}.items():
        assert map_lanes(f"mov.f64 %d, {text};", [zero], np.float64).tolist() == [want] * 3
