"""Operands: special values crossed with each other, then random bits and values of a usual size."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np

# A kind names what a register's bits stand for; a packed one is two of the kind it begins with.
BITS = {
    "pred": 8,
    **dict.fromkeys(("i16", "f16", "bf16"), 16),
    **dict.fromkeys(("i32", "f32", "f16x2", "bf16x2"), 32),
    **dict.fromkeys(("i64", "f64"), 64),
}
FLOATS = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
}
_EXPONENT = {"f16": 5, "bf16": 8, "f32": 8, "f64": 11}


def unsigned(kind: str) -> np.dtype:
    """The dtype of an array that holds a register of this kind as bits."""
    return np.dtype(f"uint{BITS[kind]}")


def specials(kind: str) -> np.ndarray:
    """The values at which an instruction is most likely to go wrong, as bits."""
    if kind == "pred":
        return np.array([0, 1], np.uint8)
    bits = BITS[kind]
    if kind.startswith("i"):
        top = 1 << (bits - 1)
        small = (0, 1, 2, 3, 7, 8, 15, 16, 31, 32, 33, 63, 64, 65, 127, 128, 255)
        edges = (top - 1, top, top + 1, 2 * top - 1, 2 * top - 2, 2 * top - 128, 0x5A5A)
        return np.array([*small, *edges], unsigned(kind))
    if kind.endswith("x2"):
        half = specials(kind[:-2]).astype(np.uint32)
        return np.concatenate([half << 16 | np.roll(half, shift) for shift in (0, 3)])
    fraction = bits - 1 - _EXPONENT[kind]
    infinity = (1 << _EXPONENT[kind]) - 1 << fraction
    values = (
        1,
        1.5,
        2,
        0.5,
        1 / 3,
        3.1415927,
        10,
        127.5,
        255.5,
        448,
        65504,
        65520,
        2.0**31,
        2.0**63,
    )
    with np.errstate(over="ignore"):
        usual = np.array(values).astype(FLOATS[kind]).view(unsigned(kind)).tolist()
    # Zero, the subnormals' ends, the least normal, the largest, infinity, a quiet and a signalling NaN.
    edges = [0, 1, (1 << fraction) - 1, 1 << fraction, infinity - 1, infinity]
    edges += [infinity | 1 << (fraction - 1) | 5, infinity | 1]
    sign = 1 << (bits - 1)
    positive = dict.fromkeys([*edges, *usual])
    return np.array([b | s for b in positive for s in (0, sign)], unsigned(kind))


def _usual(kind: str, n: int, rng: np.random.Generator) -> np.ndarray:
    """Random values of a usual size, as bits."""
    if kind == "pred":
        return rng.integers(0, 2, n, np.uint8)
    if kind.startswith("i"):
        # Every number of significant bits alike, so that small shift counts and fields are met.
        shift = rng.integers(0, BITS[kind], n).astype(np.uint64)
        sign = np.where(rng.integers(0, 2, n) == 1, np.uint64(2**64 - 1), np.uint64(0))
        return (_random("i64", n, rng) >> np.uint64(64 - BITS[kind]) >> shift ^ sign).astype(
            unsigned(kind)
        )
    if kind.endswith("x2"):
        half = _usual(kind[:-2], 2 * n, rng)
        return half.view(np.uint32)
    scale = 2.0 ** rng.integers(-3, 9, n)
    return (rng.standard_normal(n) * scale).astype(FLOATS[kind]).view(unsigned(kind))


def _towards_least(kind: str, first: np.ndarray, near: np.ndarray) -> np.ndarray:
    """By turns close to the first operand, to what makes the product, and the quotient, the least normal."""
    dtype = FLOATS[kind]
    least = 2.0 ** (2 - 2 ** (_EXPONENT[kind] - 1))
    with np.errstate(all="ignore"):
        value = first.view(dtype).astype(np.float64)
        factor, divisor = (
            x.astype(dtype).view(first.dtype) for x in (least / value, value / least)
        )
    step = (near % 5).astype(first.dtype) - first.dtype.type(2)
    return np.choose(np.arange(first.size) % 3, [first, factor, divisor]) + step


def _random(kind: str, n: int, rng: np.random.Generator) -> np.ndarray:
    if kind == "pred":
        return rng.integers(0, 2, n, np.uint8)
    return np.frombuffer(rng.bytes(n * BITS[kind] // 8), unsigned(kind))


def tuples(kinds: tuple[str, ...], n: int, seed: int) -> list[np.ndarray]:
    """`n` tuples of operands of these kinds, one array of bits for each operand.

    One operand of 16 bits, or a pair of them, takes every pattern. Otherwise special values are
    crossed; the rest is in three parts: random bits, values of a usual size, and operands that lie
    close to the first.
    """
    rng = np.random.default_rng(seed)
    if not kinds:
        return []
    if len(kinds) == 1 and kinds[0] in ("f16", "bf16", "i16", "f16x2", "bf16x2"):
        low = np.arange(n, dtype=np.uint64).astype(np.uint16)
        if BITS[kinds[0]] == 16:
            return [low]
        return [(low[::-1].astype(np.uint32) ^ 0x8000) << 16 | low]
    lists = [specials(kind) for kind in kinds]
    crossed = np.prod([len(values) for values in lists], dtype=float)
    if crossed <= n // 2:
        columns = np.array(list(itertools.product(*(range(len(v)) for v in lists))), int).T
    else:
        columns = np.array([rng.integers(0, len(values), n // 4) for values in lists])
    columns = columns.reshape(len(kinds), -1)
    start, result = columns.shape[1], []
    third = (n - start) // 3
    for kind, values, column in zip(kinds, lists, columns, strict=True):
        near = _usual(kind, n - start - 2 * third, rng)
        if len(result) == 1 and kind == kinds[0] and kind in FLOATS:
            near = _towards_least(kind, result[0][start + 2 * third :], near)
        elif result and kind == kinds[0] and kind != "pred":
            near = result[0][start + 2 * third :] + rng.integers(-2, 3, near.size).astype(
                near.dtype
            )
        parts = (values[column], _random(kind, third, rng), _usual(kind, third, rng), near)
        result.append(np.concatenate(parts))
    return result


def gentle(kinds: tuple[str, ...], n: int, seed: int) -> list[np.ndarray]:
    """Operands of a sum of products: small integers, whose sums are exact, then a normal distribution.

    The last eighth has a special value here and there.
    """
    rng = np.random.default_rng(seed)
    result = []
    for kind in kinds:
        if kind.startswith("i"):
            result.append(_random(kind, n, rng))
            continue
        scalar, count = (kind[:-2], 2) if kind.endswith("x2") else (kind, 1)
        values = np.where(
            np.arange(count * n) < count * n // 2,
            rng.integers(-8, 9, count * n).astype(np.float64),
            rng.standard_normal(count * n),
        )
        bits = values.astype(FLOATS[scalar]).view(unsigned(scalar))
        list_ = specials(scalar)
        rare = (rng.random(count * n) < 1 / 64) & (np.arange(count * n) >= count * n * 7 // 8)
        bits[rare] = list_[rng.integers(0, len(list_), rare.sum())]
        result.append(bits.view(unsigned(kind)))
    return result
