"""The public operation."""

from __future__ import annotations

import math
import numbers
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jax_ptx.launch import bind_varying
from jax_ptx.ops import rowwise
from jax_ptx.ops.rms_norm.primitive import rms_norm_p
from jax_ptx.ops.rms_norm.reference import accumulation_dtype
from jax_ptx.ops.rms_norm.reference import rms_norm as reference

DTYPES = ("float16", "bfloat16", "float32", "float64")
Implementation = Literal["ptx", "xla"]


def rms_norm(
    x: jax.typing.ArrayLike,
    weight: jax.typing.ArrayLike | None = None,
    *,
    eps: float = 1e-6,
    implementation: Implementation | None = None,
) -> jax.Array:
    """Root mean square layer normalisation over the last axis.

    `y = x / sqrt(mean(x**2, axis=-1) + eps) * weight`, after Zhang and Sennrich, "Root Mean Square Layer
    Normalization" (2019). Statistics and products are float32 (float64 for float64), and the result is
    rounded once. A row whose squares overflow gives 0 where x is finite, as the plain formula does.

    Args:
        x: `[..., n]`, rank 1 or more, any n; float16, bfloat16, float32 or float64.
        weight: `[n]`, any of those dtypes; None means no scaling.
        eps: a number, 0 or more, added to the mean of squares; part of the compiled kernel.
        implementation: "ptx": the kernel, on an NVIDIA GPU or, on a CPU, in the emulator (for tests:
            it checks every access, and is slow). "xla": the plain formula. None: "ptx" on a GPU and
            "xla" elsewhere.

    Returns:
        An array of x's shape and dtype.

    Raises:
        TypeError: for a dtype that is not listed, or an eps that is not a number.
        ValueError: for shapes that do not fit, an eps that is negative or no float32, or an unknown
            implementation.
    """
    x = _float_array("x", x)
    if x.ndim == 0:
        raise ValueError(
            "rms_norm: x must have rank 1 or more, got a scalar; x[None] makes a row of it"
        )
    if not isinstance(x.shape[-1], int):
        raise ValueError(
            f"rms_norm: x's last axis must have a known length, got shape {x.shape}; its other axes may "
            "be symbolic"
        )
    if weight is not None:
        weight = _float_array("weight", weight)
        if weight.shape != x.shape[-1:]:
            raise ValueError(
                f"rms_norm: weight must have shape {x.shape[-1:]} to match x.shape[-1], got "
                f"{weight.shape}; jax.vmap maps over several weights"
            )
    eps = _static_eps(eps, x.dtype)
    if implementation not in (None, "ptx", "xla"):
        raise ValueError(
            f"rms_norm: implementation must be 'ptx', 'xla' or None, got {implementation!r}"
        )
    if implementation == "xla" or any(isinstance(d, int) and d == 0 for d in x.shape):
        return reference(x, weight, eps=eps)
    operands = (rowwise.as_rows(x),) if weight is None else (rowwise.as_rows(x), weight)
    emulate = implementation == "ptx"
    (y,) = bind_varying(rms_norm_p, *operands, eps=eps, emulate=emulate, with_rstd=False)
    return y.reshape(x.shape)


def _float_array(name: str, value: Any) -> jax.Array:
    if not isinstance(value, jax.Array | np.ndarray | np.generic):
        raise TypeError(
            f"rms_norm: {name} must be an array, got {type(value).__name__}; jnp.asarray makes one"
        )
    if str(value.dtype) not in DTYPES:  # a PRNG key's dtype is none of NumPy's
        raise TypeError(
            f"rms_norm: {name} must have dtype {', '.join(DTYPES)}, got {value.dtype}; cast it with astype"
        )
    dtype = jnp.dtype(value.dtype)
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise TypeError(
            f"rms_norm: {name} has dtype {dtype.name}, which JAX would narrow; set "
            "jax.config.update('jax_enable_x64', True), or cast it with astype"
        )
    return jnp.asarray(value)


def _static_eps(eps: Any, dtype: jnp.dtype) -> float:
    if isinstance(eps, bool) or not isinstance(eps, numbers.Real | np.floating):
        raise TypeError(
            f"rms_norm: eps must be a number known while tracing, got {type(eps).__name__}; it is part "
            "of the kernel: close over it, or mark it static"
        )
    limits = jnp.finfo(accumulation_dtype(dtype))
    try:
        value = float(eps)
    except OverflowError:  # an int past every float
        value = math.inf
    if not (value == 0 or float(limits.smallest_subnormal) <= value <= float(limits.max)):
        raise ValueError(
            f"rms_norm: eps must be 0 or a positive {limits.dtype.name}, in which the mean is computed, "
            f"got {eps}"
        )
    return value
