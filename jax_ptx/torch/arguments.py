"""What the functions and the module take, checked: once for each kind of call."""

from __future__ import annotations

import math
import numbers
from typing import Any

import torch

from jax_ptx.ops.rms_norm.options import Options
from jax_ptx.torch import formula

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def check_tensor(op: str, name: str, value: Any) -> None:
    """Refuses what is no tensor of real numbers.

    Raises:
        TypeError: for another type or dtype.
    """
    if not isinstance(value, torch.Tensor):
        raise not_a_tensor(op, name, value)
    if value.dtype not in DTYPES:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        raise TypeError(f"{op}: {name} must have dtype {names}, got {value.dtype}; .to(…) casts it")


def check_layout(op: str, name: str, value: Any) -> None:
    """Refuses a tensor whose elements do not lie in memory by strides, but for jagged ones.

    Raises:
        TypeError: for one.
    """
    if not isinstance(value, torch.Tensor) or value.layout == torch.jagged:
        return
    if value.layout != torch.strided or value.is_nested:
        raise TypeError(
            f"{op}: {name} must be a strided tensor or a jagged one, got layout {value.layout}"
            f"{' of a nested tensor' if value.is_nested else ''}; to_dense() makes a strided one, and "
            "torch.nested.nested_tensor(…, layout=torch.jagged) a jagged one"
        )


def not_a_tensor(op: str, name: str, value: Any) -> TypeError:
    """The error to raise for what is none."""
    kind = type(value).__module__.partition(".")[0]
    mend = ""
    if kind in ("numpy", "jax", "jaxlib"):
        make = "torch.from_numpy" if kind == "numpy" else "torch.from_dlpack"
        mend = f"; {make} makes one"
        if op != "RMSNorm":
            mend += f", and jax_ptx.{op} takes arrays"
    return TypeError(f"{op}: {name} must be a tensor, got {type(value).__name__}{mend}")


def check_implementation(op: str, implementation: Any) -> None:
    """Refuses all but the three.

    Raises:
        ValueError: for another.
    """
    if implementation not in (None, "ptx", "torch"):
        raise ValueError(
            f"{op}: implementation must be 'ptx', 'torch' or None, got {implementation!r}"
        )


def read_options(
    op: str, x: torch.Tensor, weight: Any, eps: Any, offset: Any, rounds: Any
) -> Options:
    """The options of a call, as numbers.

    Raises:
        TypeError: for one of another kind.
        ValueError: for a value that makes no sense.
    """
    wide = formula.wide_dtype(x.dtype)
    limits = torch.finfo(wide)
    eps = limits.eps if eps is None else _number(op, "eps", eps)
    least = limits.smallest_normal * limits.eps  # subnormal
    if not (eps == 0 or least <= eps <= limits.max):
        raise ValueError(
            f"{op}: eps must be 0 or a positive {wide}, in which the mean is computed, got {eps}"
        )
    offset = read_offset(op, offset, weight is not None, wide)
    if not isinstance(rounds, bool):
        raise TypeError(
            f"{op}: round_before_weight must be True or False, got {type(rounds).__name__}"
        )
    return Options(eps, offset, rounds and weight is not None)


def read_offset(op: str, offset: Any, has_weight: bool, dtype: torch.dtype) -> float:
    """The `weight_offset` as a number that the dtype holds.

    Raises:
        TypeError: for what is no number.
        ValueError: for one that is not finite, or that no weight is there for.
    """
    number = _number(op, "weight_offset", offset)
    if not abs(number) <= torch.finfo(dtype).max:
        raise ValueError(f"{op}: weight_offset must be a finite {dtype}, got {number}")
    if number and not has_weight:
        raise ValueError(
            f"{op}: weight_offset={number} is added to the weight, and there is none; pass weight, or "
            "leave weight_offset out"
        )
    return number


def _number(op: str, name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{op}: {name} must be a number, got {type(value).__name__}")
    try:
        return float(value)
    except OverflowError:  # an int past every float
        return math.inf
