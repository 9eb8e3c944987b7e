"""The type table: three spellings, NumPy names, and the exact bits of floats."""

from __future__ import annotations

import copy
import pickle

import jax.numpy as jnp
import numpy as np
import pytest

from jax_ptx import types
from jax_ptx.dsl.operands import float_text

NAMES = [
    "pred",
    "b8",
    "b16",
    "b32",
    "b64",
    "u8",
    "u16",
    "u32",
    "u64",
    "s8",
    "s16",
    "s32",
    "s64",
    "f16",
    "f16x2",
    "bf16",
    "bf16x2",
    "f32",
    "f64",
    "e4m3",
    "e5m2",
]


def test_every_type_of_the_language_exists():
    assert [t.name for t in types.ALL] == NAMES
    assert all(getattr(types, name).name == name for name in NAMES)


@pytest.mark.parametrize(
    ("name", "register", "memory", "move", "conversion"),
    [
        ("bf16", "b16", "b16", "b16", "bf16"),
        ("f16", "b16", "b16", "b16", "f16"),
        ("bf16x2", "b32", "b32", "b32", "bf16x2"),
        ("f32", "f32", "f32", "f32", "f32"),
        ("f64", "f64", "f64", "f64", "f64"),
        ("u32", "b32", "u32", "u32", "u32"),
        ("s64", "b64", "s64", "s64", "s64"),
        ("u8", "b16", "u8", "b16", "u8"),
        ("e4m3", "b16", "b8", "b16", "e4m3"),
        ("pred", "pred", "pred", "pred", "pred"),
    ],
)
def test_the_spellings(name, register, memory, move, conversion):
    dtype = types.BY_NAME[name]
    assert (dtype.register, dtype.memory, dtype.move, dtype.conversion) == (
        register,
        memory,
        move,
        conversion,
    )


def test_types_keep_their_identity():
    for dtype in types.ALL:
        assert copy.deepcopy(dtype) is dtype
        assert pickle.loads(pickle.dumps(dtype)) is dtype


def test_numpy_names():
    for dtype in types.ALL:
        if dtype.numpy_name is not None:
            assert jnp.dtype(dtype.numpy_name).itemsize * 8 == dtype.bits
    assert types.by_numpy_name("bfloat16") is types.bf16
    assert types.by_numpy_name("uint32") is types.u32
    with pytest.raises(TypeError, match="no PTX type holds elements of dtype complex64"):
        types.by_numpy_name("complex64")


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (1.0, types.f32, "0f3F800000"),
        (-0.0, types.f32, "0f80000000"),
        (float("inf"), types.f32, "0f7F800000"),
        (float("-inf"), types.f32, "0fFF800000"),
        (float("nan"), types.f32, "0f7FC00000"),
        (0.1, types.f32, "0f3DCCCCCD"),
        (1e-45, types.f32, "0f00000001"),
        (1e39, types.f32, "0f7F800000"),
        (0.1, types.f64, "0d3FB999999999999A"),
        (-0.0, types.f64, "0d8000000000000000"),
        (1.5, types.f16, "0x3E00"),
        (1.0, types.bf16, "0x3F80"),
        (1.0, types.bf16x2, "0x3F803F80"),
    ],
)
def test_floats_as_exact_bits(value, dtype, text):
    assert float_text(value, dtype) == text


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
def test_rounding_is_once_and_to_nearest_even(name):
    dtype, numpy_dtype = types.by_numpy_name(name), jnp.dtype(name)
    bits = {16: np.uint16, 32: np.uint32}[dtype.bits]
    rng = np.random.default_rng(0)
    values = rng.standard_normal(2000) * 2.0 ** rng.integers(-160, 140, 2000)
    # Halfway between two neighbours, and a hair off: where rounding twice goes wrong.
    with np.errstate(over="ignore", invalid="ignore"):
        near = values[:500].astype(numpy_dtype)
        after = (near.view(bits) + 1).astype(bits).view(numpy_dtype)
        halves = (near.astype(np.float64) + after.astype(np.float64)) / 2
    halves = halves[np.isfinite(halves)]
    values = np.concatenate([values, halves, halves * (1 + 2.0**-50), halves * (1 - 2.0**-50)])
    for value in values:
        want = _round_exactly(float(value), near_type=numpy_dtype, bits=bits)
        assert types.float_bits(float(value), dtype) == want, value


def _round_exactly(value, near_type, bits):
    """The nearest of the three candidates around a first guess, by exact comparison."""
    with np.errstate(over="ignore"):
        guess = np.array(value, np.float64).astype(near_type)
    magnitude = int(guess.view(bits)) & ~(1 << (guess.itemsize * 8 - 1))
    sign = int(guess.view(bits)) - magnitude
    infinity = int(np.array(np.inf, near_type).view(bits))
    largest = float(np.array(infinity - 1, bits).view(near_type))
    step = largest - float(np.array(infinity - 2, bits).view(near_type))

    def error(pattern):
        number = float(np.array(pattern, bits).view(near_type))
        return abs((largest + step if np.isinf(number) else number) - abs(value))

    candidates = [m for m in (magnitude - 1, magnitude, magnitude + 1) if 0 <= m <= infinity]
    return sign | min(candidates, key=lambda m: (error(m), m & 1))
