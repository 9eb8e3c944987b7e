"""The one tolerance policy: results are compared with float64, rounded once to the result's dtype.

An implementation computes in float32 (float64 for float64) and rounds once. Its error before that
rounding is a few units of the accumulation dtype, grown by the square root of a summation's length
over the number of independent partial sums; the rounding itself adds half a unit of the result's dtype,
and may fall on the other side: one unit in all.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np


def allowed(dtype, n: int) -> float:
    """The largest relative error of a value that sums n products."""
    accumulation = jnp.finfo(jnp.float64 if dtype == jnp.float64 else jnp.float32).eps
    # rsqrt.approx.f32 is within 2**-22.9 of its value: four units, with the multiplications after it.
    summation = accumulation * (4 + np.sqrt(n / 32))
    return float(jnp.finfo(dtype).eps + summation)


def assert_close(
    got, expected: np.ndarray, n: int, scale: np.ndarray | float | None = None
) -> None:
    """Asserts that `got` is as close to the float64 `expected` as a correct implementation comes.

    Args:
        got: an array of the dtype under test.
        expected: float64, of the same shape.
        n: length of the summation behind each value.
        scale: the size that errors are relative to; by default each value's own.
    """
    got = jnp.asarray(got)
    assert got.shape == expected.shape, f"shape {got.shape}, expected {expected.shape}"
    assert expected.dtype == np.float64, "the expected values must be float64"
    wide = np.asarray(got).astype(np.float64)
    assert np.isfinite(wide).all(), f"{np.sum(~np.isfinite(wide))} values are not finite"
    size = np.abs(expected) if scale is None else np.broadcast_to(scale, expected.shape)
    # A subnormal result is off by at most its own spacing.
    floor = float(jnp.finfo(got.dtype).smallest_subnormal)
    error = np.abs(wide - expected) - floor
    limit = allowed(got.dtype, n) * size
    if (error > limit).any():
        worst = np.unravel_index(np.argmax(error - limit), error.shape)
        raise AssertionError(
            f"at {worst}: got {wide[worst]!r}, expected {expected[worst]!r}, error {error[worst]:.3g}, "
            f"allowed {limit[worst]:.3g} for {got.dtype.name} with n={n}"
        )
