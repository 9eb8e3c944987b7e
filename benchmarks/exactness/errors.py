"""Approximations: the exact value in float64, the error of a result, and what the ISA promises."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Bound(NamedTuple):
    """What the ISA says of the error of some forms.

    Attributes:
        pattern: the forms' names.
        measure: "ulp", "relative" or "absolute".
        low: the least magnitude of the operand (of a division, the divisor) that it is said of.
        high: the largest.
        inside: whether it is said of operands within these limits, or of all others.
        limit: the bound, None where there is none.
    """

    pattern: str
    measure: str
    low: float = 0.0
    high: float = math.inf
    inside: bool = True
    limit: float | None = None

    @property
    def domain(self) -> str:
        """The limits in words."""
        if (self.low, self.high) == (0.0, math.inf):
            return "all"
        what = f"{_power(self.low)} … {_power(self.high)}"
        return what if self.inside else f"not {what}"


def _power(x: float) -> str:
    if x == 0:
        return "0"
    for unit, name in ((math.pi, "π"), (1.0, "")):
        if x / unit == int(x / unit) and x / unit < 1000:
            return f"{int(x / unit)}{name}"
    return f"2^{math.log2(x):g}"


_F32, _ANY = r"(\.ftz)?\.f32$", r"\b.*"
BOUNDS = (
    Bound(r"rcp\.approx" + _F32, "ulp", limit=1),
    Bound(r"sqrt\.approx" + _F32, "relative", limit=2**-23),
    Bound(r"rsqrt\.approx" + _F32, "relative", limit=2**-22.9),
    Bound(r"(sin|cos)\.approx" + _F32, "absolute", 0, 2 * math.pi, limit=2**-20.5),
    Bound(r"(sin|cos)\.approx" + _F32, "absolute", 0, 100 * math.pi, limit=2**-14.7),
    Bound(r"lg2\.approx" + _F32, "absolute", 0.5, 2, limit=2**-22),
    Bound(r"lg2\.approx" + _F32, "relative", 0.5, 2, inside=False, limit=2**-22),
    Bound(r"ex2\.approx" + _F32, "ulp", limit=2),
    Bound(r"tanh\.approx\.f32", "relative", limit=2**-11),
    Bound(r"ex2\.approx\.f16", "relative", limit=2**-9.9),
    Bound(r"ex2\.approx\.ftz\.bf16", "relative", limit=2**-7),
    Bound(r"tanh\.approx\.f16", "absolute", limit=2**-10.987),
    Bound(r"tanh\.approx\.bf16", "absolute", limit=2**-8),
    Bound(r"div\.approx" + _F32, "ulp", 2.0**-126, 2.0**126, limit=2),
    Bound(r"div\.full" + _F32, "ulp", limit=2),
    Bound(r"rcp\.approx\.ftz\.f64", "relative"),
    Bound(r"rsqrt\.approx(\.ftz)?\.f64", "relative"),
)
_EXACT: dict[str, Callable[..., Any]] = {
    "rcp": lambda np_, x: 1 / x,
    "sqrt": lambda np_, x: np_.sqrt(x),
    "rsqrt": lambda np_, x: 1 / np_.sqrt(x),
    "sin": lambda np_, x: np_.sin(x),
    "cos": lambda np_, x: np_.cos(x),
    "lg2": lambda np_, x: np_.log2(x),
    "ex2": lambda np_, x: np_.exp2(x),
    "tanh": lambda np_, x: np_.tanh(x),
    "div": lambda np_, x, y: x / y,
}
# Fraction bits and the least normal exponent of a result.
_FORMATS = {"f16": (10, -14), "bf16": (7, -126), "f32": (23, -126), "f64": (52, -1022)}


def is_approximate(name: str) -> bool:
    """Whether the ISA leaves the result's last bits open."""
    return ".approx" in name or name.startswith("div.full")


def bounds(name: str) -> list[Bound]:
    """What is said of this form."""
    return [bound for bound in BOUNDS if re.match(bound.pattern, name)]


def worst(name: str, bound: Bound, got: Any, *operands: Any, np_: Any = np) -> tuple[Any, Any]:
    """The largest error of finite results, and the index of its tuple.

    Args:
        name: the form.
        bound: where errors count, and their measure.
        got: the results as float64.
        *operands: the operands as float64.
        np_: numpy, or jax.numpy for arrays on a device.
    """
    exact = _EXACT[name.split(".")[0]](np_, *operands)
    fraction, least = _FORMATS[re.findall(r"b?f\d\d", name)[-1]]
    if fraction == 52:
        exact = exact.astype(np.float64)
    size, at = abs(exact), abs(operands[-1])
    counts = ((at >= bound.low) & (at <= bound.high)) == bound.inside
    counts &= np_.isfinite(got) & np_.isfinite(exact) & (size < 2.0 ** min(2 - least, 1023))
    # A result that is flushed, or lies below the least normal value, has no relative precision.
    is_ftz = ".ftz" in name  # which flushes what falls below by the form's own error
    counts &= size >= 2.0**least * (1 + 2.0 ** (2 - fraction) * is_ftz)
    counts &= abs(operands[0]) >= (2.0**least if is_ftz else 0)
    error = abs(got - exact)
    if bound.measure == "ulp":  # from the correctly rounded result
        error = abs(got - exact.astype(np.float32).astype(np.float64)) / 2.0 ** (
            np_.floor(np_.log2(np_.where(counts, size, 1.0))) - fraction
        )
    elif bound.measure == "relative":
        error = error / np_.where(counts, size, 1.0)
    error = np_.where(counts, error, 0.0)
    index = np_.argmax(error)
    return error[index], index
