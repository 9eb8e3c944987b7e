"""What the public operations take: checks, and what is wrong in words."""

from __future__ import annotations

import math
import numbers
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jax_ptx.ops.rms_norm import reference
from jax_ptx.ops.rms_norm.options import Options

DTYPES = ("float16", "bfloat16", "float32", "float64")
OUT_DTYPES = ("float8_e4m3fn", "float8_e5m2")
_STATIC = "it is part of the kernel: close over it, or mark it static"


def operands(op: str, x: Any, weight: Any) -> tuple[jax.Array, jax.Array | None]:
    """x and the weight, as arrays that belong together."""
    x = float_array(op, "x", x)
    if x.ndim == 0:
        raise ValueError(
            f"{op}: x must have rank 1 or more, got a scalar; x[None] makes a row of it"
        )
    n = x.shape[-1]
    if not isinstance(n, int):
        raise ValueError(
            f"{op}: x's last axis must have a known length, got shape {x.shape}; its other axes may be "
            "symbolic"
        )
    if weight is None:
        return x, None
    weight = float_array(op, "weight", weight)
    if weight.shape != (n,):
        mend = "each element of a row has its own"
        if weight.ndim == 0:
            mend = f"jnp.broadcast_to(weight, ({n},)) makes it so"
        elif weight.shape == (1, n):
            mend = "weight[0] has it"
        elif weight.ndim > 1 and weight.shape[-1] == n:
            mend = "jax.vmap maps over several weights"
        raise ValueError(
            f"{op}: weight must have shape {(n,)} to match x.shape[-1], got {weight.shape}; {mend}"
        )
    return x, weight


def float_array(op: str, name: str, value: Any) -> jax.Array:
    """An operand as an array of a dtype that is computed with."""
    masked = isinstance(value, np.ma.MaskedArray)
    if masked or not isinstance(value, jax.Array | np.ndarray | np.generic):
        mend = "jnp.asarray makes one of numbers"
        if masked:
            mend = "filled() makes one without a mask"
        elif type(value).__module__.partition(".")[0] == "torch":
            mend = f"jax_ptx.torch.{op} takes tensors"
        elif isinstance(value, jax.ShapeDtypeStruct):
            mend = "jax.eval_shape calls a function on types"
        elif isinstance(value, jax.Ref):
            mend = f"{name}[...] reads it"
        elif hasattr(value, "todense"):
            mend = "todense() makes one"
        raise TypeError(f"{op}: {name} must be an array, got {type(value).__name__}; {mend}")
    if str(value.dtype) not in DTYPES:  # a PRNG key's dtype is none of NumPy's
        numeric = any(jnp.issubdtype(value.dtype, kind) for kind in (np.number, np.bool_))
        mend = "cast it with astype" if numeric else "it must hold numbers"
        raise TypeError(
            f"{op}: {name} must have dtype {', '.join(DTYPES)}, got {value.dtype}; {mend}"
        )
    dtype = jnp.dtype(value.dtype)
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise TypeError(
            f"{op}: {name} has dtype {dtype.name}, which JAX would narrow; set "
            "jax.config.update('jax_enable_x64', True), or cast it with astype"
        )
    return jnp.asarray(value)


def options(
    op: str, x: jax.Array, weight: jax.Array | None, eps: Any, offset: Any, rounds: Any
) -> Options:
    """The numbers that a kernel is made for."""
    limits = jnp.finfo(reference.accumulation_dtype(x.dtype))
    eps_value, offset_value = (
        _number(op, "eps", eps, "1e-6"),
        _number(op, "weight_offset", offset, "1.0"),
    )
    if not (eps_value == 0 or float(limits.smallest_subnormal) <= eps_value <= float(limits.max)):
        raise ValueError(
            f"{op}: eps must be 0 or a positive {limits.dtype.name}, in which the mean is computed, got "
            f"{eps_value}"
        )
    if not abs(offset_value) <= float(limits.max):
        raise ValueError(
            f"{op}: weight_offset must be a finite {limits.dtype.name}, in which it is added, got "
            f"{offset_value}"
        )
    if offset_value and weight is None:
        raise ValueError(
            f"{op}: weight_offset={offset_value} is added to the weight, and there is none; pass weight, or "
            "leave weight_offset out"
        )
    if not isinstance(rounds, bool | np.bool_):
        raise TypeError(
            f"{op}: round_before_weight must be True or False, got {_kind(rounds)}; "
            + (_STATIC if isinstance(rounds, Tracer) else "bool() makes it one")
        )
    # Without a weight the one rounding at the end is that rounding.
    return Options(eps_value, offset_value, bool(rounds) and weight is not None)


def _number(op: str, name: str, value: Any, usual: str) -> float:
    if (
        isinstance(value, jax.Array | np.ndarray | np.generic)
        and not isinstance(value, Tracer)
        and value.shape == ()
        and any(jnp.issubdtype(value.dtype, kind) for kind in (np.floating, np.integer))
    ):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        mend = _STATIC if isinstance(value, Tracer) else f"pass one, such as {name}={usual}"
        raise TypeError(
            f"{op}: {name} must be a number known while tracing, got {_kind(value)}; {mend}"
        )
    try:
        return float(value)
    except OverflowError:  # an int past every float
        return math.inf


def _kind(value: Any) -> str:
    """What a value is, for a message: an array's dtype and shape, or a class."""
    if isinstance(value, jax.Array | np.ndarray) and not isinstance(value, Tracer):
        return f"an array of {value.dtype} and shape {value.shape}"
    return type(value).__name__


def eight_bits(op: str, out_dtype: Any) -> str:
    """The name of an 8-bit dtype."""
    try:
        name = jnp.dtype(out_dtype).name
    except TypeError:
        name = repr(out_dtype)
    if name not in OUT_DTYPES:
        raise TypeError(
            f"{op}: out_dtype must be {' or '.join(OUT_DTYPES)}, or None for x's dtype, got {name}; "
            "astype casts the result to others"
        )
    return name


def scale(op: str, scale: Any, out_dtype: str | None) -> jax.Array | None:
    """What an 8-bit result is divided by; None: there is no such result."""
    if out_dtype is None:
        if scale is not None:
            raise ValueError(
                f"{op}: scale is for a result of 8 bits, and out_dtype is None; pass out_dtype="
                "jnp.float8_e4m3fn, or scale the weight"
            )
        return None
    if scale is None:
        scale = 1.0
    if isinstance(scale, numbers.Real) and not isinstance(scale, bool | np.generic):
        number, limits = _number(op, "scale", scale, "1.0"), jnp.finfo(jnp.float32)
        # Of a smaller one the inverse overflows, or a CPU takes it for 0.
        if not (number == 0 or float(limits.tiny) <= abs(number) <= float(limits.max)):
            raise ValueError(
                f"{op}: scale must be a finite float32, 0 or {float(limits.tiny):.3g} and more in "
                f"magnitude, got {number}"
            )
        return jnp.asarray(number, jnp.float32)
    if not isinstance(scale, jax.Array | np.ndarray | np.generic) or str(scale.dtype) != "float32":
        what = getattr(scale, "dtype", type(scale).__name__)
        raise TypeError(
            f"{op}: scale must be a number or a float32 scalar, got {what}; jnp.float32(scale) makes one"
        )
    if scale.shape != ():
        raise ValueError(
            f"{op}: scale must be a scalar, one for the whole result, got shape {scale.shape}; jax.vmap "
            "maps over several"
        )
    return jnp.asarray(scale)
