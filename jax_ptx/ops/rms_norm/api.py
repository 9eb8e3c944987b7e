"""The public operations."""

from __future__ import annotations

from typing import Any, Literal

import jax

from jax_ptx.ops import rowwise
from jax_ptx.ops.rms_norm import arguments, reference
from jax_ptx.ops.rms_norm.primitive import forward

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
    XLA on a CPU takes subnormal numbers for 0, so there the formula does with an eps, and with squares, below
    1.2e-38; the kernel does not.

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
    x, weight = arguments.operands(op, x, weight)
    options = arguments.options(op, x, weight, eps, weight_offset, round_before_weight)
    out_name = None if out_dtype is None else arguments.eight_bits(op, out_dtype)
    quantised = {"scale": arguments.scale(op, scale, out_name), "out_dtype": out_name}
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
    x, weight = arguments.operands(op, x, weight)
    residual = arguments.float_array(op, "residual", residual)
    if residual.shape != x.shape:
        raise ValueError(
            f"{op}: residual must have x's shape {x.shape}, got {residual.shape}; jnp.broadcast_to makes "
            "it so"
        )
    if residual.dtype != x.dtype:
        raise TypeError(
            f"{op}: residual must have x's dtype {x.dtype}, got {residual.dtype}; cast one with astype"
        )
    options = arguments.options(op, x, weight, eps, weight_offset, round_before_weight)
    if _takes_formula(op, implementation, x=x, residual=residual, weight=weight):
        added = reference.add(x, residual)
        weight = None if weight is None else rowwise.with_features_of(weight, added)
        return reference.forward(added, weight, options=options)[0], added
    at = {"x": rowwise.as_rows(x), "residual": rowwise.as_rows(residual), "weight": weight}
    y, added = forward(at, options=options, emulate=implementation == "ptx")
    return y.reshape(x.shape), added.reshape(x.shape)


def _takes_formula(op: str, implementation: Any, **operands: jax.Array | None) -> bool:
    """Whether the plain formula is asked for, or better, or there is nothing to compute."""
    known = isinstance(implementation, str) and implementation in ("ptx", "xla")
    if implementation is not None and not known:
        raise ValueError(
            f"{op}: implementation must be 'ptx', 'xla' or None, got {implementation!r}"
        )
    there = {name: value for name, value in operands.items() if value is not None}
    formula = implementation == "xla" or any(
        isinstance(size, int) and size == 0 for size in there["x"].shape
    )
    types = {name: jax.typeof(value) for name, value in there.items()}
    if not rowwise.on_explicit_mesh(types.values()):
        return formula
    rowwise.row_sharding(op, {name: aval for name, aval in types.items() if name != "weight"})
    reduced = any(map(rowwise.is_reduced, types.values()))
    split = reduced or rowwise.shards_features(*types.values())
    if formula or (implementation is None and split):
        return True
    rowwise.check_feature_axis(op, **types)
    return False
