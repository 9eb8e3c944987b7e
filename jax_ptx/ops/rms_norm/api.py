"""The public operations."""

from __future__ import annotations

import math
import numbers
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jax_ptx.ops import rowwise
from jax_ptx.ops.rms_norm import reference
from jax_ptx.ops.rms_norm.options import Options
from jax_ptx.ops.rms_norm.primitive import forward

DTYPES = ("float16", "bfloat16", "float32", "float64")
OUT_DTYPES = ("float8_e4m3fn", "float8_e5m2")
Implementation = Literal["ptx", "xla"]


def rms_norm(
    x: jax.typing.ArrayLike,
    weight: jax.typing.ArrayLike | None = None,
    *,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    round_before_weight: bool = False,
    out_dtype: jax.typing.DTypeLike | None = None,
    scale: jax.typing.ArrayLike | None = None,
    implementation: Implementation | None = None,
) -> jax.Array:
    """Root mean square layer normalisation over the last axis.

    `y = x / sqrt(mean(x**2, axis=-1) + eps) * (weight_offset + weight)`, after Zhang and Sennrich, "Root Mean
    Square Layer Normalization" (2019). Statistics and products are float32 (float64 for float64), and the
    result is rounded once. A row whose squares overflow gives 0 where x is finite, as the plain formula does.

    Args:
        x: `[..., n]`, rank 1 or more, any n; float16, bfloat16, float32 or float64.
        weight: `[n]`, any of those dtypes; None means no scaling.
        eps: a number, 0 or more, added to the mean of squares; part of the compiled kernel.
        weight_offset: a number added to the weight in float32 (float64 for float64 x): 1.0 for weights
            that are stored around zero, as Gemma's are. Part of the compiled kernel.
        round_before_weight: rounds the normalised x to x's dtype before the multiplication with the
            weight, as Hugging Face's Llama does. Derivatives are those of the unrounded function.
        out_dtype: float8_e4m3fn or float8_e5m2, for inference: `q = y / scale`, rounded once from float32
            to that dtype, so that `q * scale` is about y; what is past its largest value becomes that.
            It has no derivative. Its kernel needs a GPU of compute capability 8.9 or later.
        scale: a number or a float32 scalar, for `out_dtype`; None means 1.
        implementation: "ptx": the kernel, on an NVIDIA GPU or, on a CPU, in the emulator (for tests:
            it checks every access, and is slow). "xla": the plain formula. None: "ptx" on a GPU and
            "xla" elsewhere, and where an explicit mesh shards the last axis: the formula then sums each
            row's squares over the devices, and gathers nothing.

    Returns:
        An array of x's shape, and of x's dtype or `out_dtype`.

    Raises:
        TypeError: for a dtype that is not listed, or an eps or weight_offset that is not a number.
        ValueError: for shapes that do not fit, a number that float32 does not hold, arguments that
            belong to one that is not there, or an unknown implementation.
        NotImplementedError: for a derivative of what has an `out_dtype`.
    """
    op = "rms_norm"
    x, weight = _operands(op, x, weight)
    options = _options(op, x, weight, eps, weight_offset, round_before_weight)
    out_name = None if out_dtype is None else _out_dtype(op, out_dtype)
    quantised = {"scale": _scale(op, scale, out_name), "out_dtype": out_name}
    if _takes_formula(op, implementation, x=x, weight=weight):
        weight = None if weight is None else rowwise.with_features_of(weight, x)
        return reference.forward(x, weight, **quantised, options=options)[0]
    at = {"x": rowwise.as_rows(x), "weight": weight, "scale": quantised["scale"]}
    (y,) = forward(at, options=options, out_dtype=out_name, emulate=implementation == "ptx")
    return y.reshape(x.shape)


def add_rms_norm(
    x: jax.typing.ArrayLike,
    residual: jax.typing.ArrayLike,
    weight: jax.typing.ArrayLike | None = None,
    *,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    round_before_weight: bool = False,
    implementation: Implementation | None = None,
) -> tuple[jax.Array, jax.Array]:
    """`(rms_norm(x + residual, weight), x + residual)` in one kernel, and one for the gradients.

    The sum is rounded to its dtype once, and the rounded sum is normalised: the same values as in two steps.

    Args:
        x: as for `rms_norm`.
        residual: of x's shape and dtype.
        weight: as for `rms_norm`.
        eps: as for `rms_norm`.
        weight_offset: as for `rms_norm`.
        round_before_weight: as for `rms_norm`.
        implementation: as for `rms_norm`.

    Returns:
        The normalised sum and the sum, arrays of x's shape and dtype.

    Raises:
        TypeError: as for `rms_norm`, or for a residual whose dtype is not x's.
        ValueError: as for `rms_norm`, or for a residual whose shape is not x's.
    """
    op = "add_rms_norm"
    x, weight = _operands(op, x, weight)
    residual = _float_array(op, "residual", residual)
    if residual.shape != x.shape:
        raise ValueError(
            f"{op}: residual must have x's shape {x.shape}, got {residual.shape}; jnp.broadcast_to makes "
            "it so"
        )
    if residual.dtype != x.dtype:
        raise TypeError(
            f"{op}: residual must have x's dtype {x.dtype}, got {residual.dtype}; cast one with astype"
        )
    options = _options(op, x, weight, eps, weight_offset, round_before_weight)
    if _takes_formula(op, implementation, x=x, residual=residual, weight=weight):
        added = reference.add(x, residual)
        weight = None if weight is None else rowwise.with_features_of(weight, added)
        return reference.forward(added, weight, options=options)[0], added
    at = {"x": rowwise.as_rows(x), "residual": rowwise.as_rows(residual), "weight": weight}
    y, added = forward(at, options=options, emulate=implementation == "ptx")
    return y.reshape(x.shape), added.reshape(x.shape)


# ---- arguments ----


def _operands(op: str, x: Any, weight: Any) -> tuple[jax.Array, jax.Array | None]:
    x = _float_array(op, "x", x)
    if x.ndim == 0:
        raise ValueError(
            f"{op}: x must have rank 1 or more, got a scalar; x[None] makes a row of it"
        )
    if not isinstance(x.shape[-1], int):
        raise ValueError(
            f"{op}: x's last axis must have a known length, got shape {x.shape}; its other axes may be "
            "symbolic"
        )
    if weight is None:
        return x, None
    weight = _float_array(op, "weight", weight)
    if weight.shape != x.shape[-1:]:
        raise ValueError(
            f"{op}: weight must have shape {x.shape[-1:]} to match x.shape[-1], got {weight.shape}; "
            "jax.vmap maps over several weights"
        )
    return x, weight


def _float_array(op: str, name: str, value: Any) -> jax.Array:
    if not isinstance(value, jax.Array | np.ndarray | np.generic):
        mend = "jnp.asarray makes one of numbers"
        if type(value).__module__.partition(".")[0] == "torch":
            mend = f"jax_ptx.torch.{op} takes tensors"
        elif isinstance(value, jax.ShapeDtypeStruct):
            mend = "jax.eval_shape calls a function on types"
        raise TypeError(f"{op}: {name} must be an array, got {type(value).__name__}; {mend}")
    if str(value.dtype) not in DTYPES:  # a PRNG key's dtype is none of NumPy's
        raise TypeError(
            f"{op}: {name} must have dtype {', '.join(DTYPES)}, got {value.dtype}; cast it with astype"
        )
    dtype = jnp.dtype(value.dtype)
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise TypeError(
            f"{op}: {name} has dtype {dtype.name}, which JAX would narrow; set "
            "jax.config.update('jax_enable_x64', True), or cast it with astype"
        )
    return jnp.asarray(value)


def _options(
    op: str, x: jax.Array, weight: jax.Array | None, eps: Any, offset: Any, rounds: Any
) -> Options:
    limits = jnp.finfo(reference.accumulation_dtype(x.dtype))
    eps_value, offset_value = _number(op, "eps", eps), _number(op, "weight_offset", offset)
    if not (eps_value == 0 or float(limits.smallest_subnormal) <= eps_value <= float(limits.max)):
        raise ValueError(
            f"{op}: eps must be 0 or a positive {limits.dtype.name}, in which the mean is computed, got "
            f"{eps}"
        )
    if not abs(offset_value) <= float(limits.max):
        raise ValueError(
            f"{op}: weight_offset must be a finite {limits.dtype.name}, in which it is added, got {offset}"
        )
    if offset_value and weight is None:
        raise ValueError(
            f"{op}: weight_offset={offset} is added to the weight, and there is none; pass weight, or "
            "leave weight_offset out"
        )
    if not isinstance(rounds, bool | np.bool_):
        raise TypeError(
            f"{op}: round_before_weight must be True or False, got {type(rounds).__name__}; it is part "
            "of the kernel: close over it, or mark it static"
        )
    # Without a weight the one rounding at the end is that rounding.
    return Options(eps_value, offset_value, bool(rounds) and weight is not None)


def _number(op: str, name: str, value: Any) -> float:
    if (
        isinstance(value, jax.Array | np.ndarray)
        and value.shape == ()
        and not isinstance(value, Tracer)
    ):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, numbers.Real | np.floating):
        mend = f"pass one, such as {name}=1e-6"
        if isinstance(value, Tracer):
            mend = "it is part of the kernel: close over it, or mark it static"
        raise TypeError(
            f"{op}: {name} must be a number known while tracing, got {type(value).__name__}; {mend}"
        )
    try:
        return float(value)
    except OverflowError:  # an int past every float
        return math.inf


def _out_dtype(op: str, out_dtype: Any) -> str:
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


def _scale(op: str, scale: Any, out_dtype: str | None) -> jax.Array | None:
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
        number, limits = abs(_number(op, "scale", scale)), jnp.finfo(jnp.float32)
        if not (number == 0 or float(limits.smallest_subnormal) <= number <= float(limits.max)):
            raise ValueError(
                f"{op}: scale must be a finite float32, 0 or {float(limits.smallest_subnormal):.2g} and "
                f"more in magnitude, got {scale}"
            )
        return jnp.asarray(scale, jnp.float32)
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


def _takes_formula(op: str, implementation: Any, **operands: jax.Array | None) -> bool:
    """Whether the plain formula is asked for, or better, or there is nothing to compute."""
    known = isinstance(implementation, str) and implementation in ("ptx", "xla")
    if implementation is not None and not known:
        raise ValueError(
            f"{op}: implementation must be 'ptx', 'xla' or None, got {implementation!r}"
        )
    types = {name: jax.typeof(value) for name, value in operands.items() if value is not None}
    rowwise.row_sharding(op, {name: at for name, at in types.items() if name != "weight"})
    if implementation == "xla" or any(isinstance(d, int) and d == 0 for d in types["x"].shape):
        return True
    reduced = any(map(rowwise.is_reduced, types.values()))
    if implementation is None and (reduced or rowwise.shards_features(*types.values())):
        return True
    rowwise.check_feature_axis(op, **types)
    return False
