"""RMS norm as a plain JAX formula: the oracle of the tests, the "xla" implementation, the derivatives."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def accumulation_dtype(dtype: jnp.dtype) -> jnp.dtype:
    """The dtype that statistics and products are computed in: float64 for float64, else float32."""
    return jnp.dtype(jnp.float64 if dtype == jnp.float64 else jnp.float32)


def rms_norm(x: jax.Array, weight: jax.Array | None = None, *, eps: float) -> jax.Array:
    """`x * (rsqrt(mean(x**2, -1) + eps) * weight)`, rounded once, to x's dtype.

    Args:
        x: `[*rows, n]`.
        weight: `[n]`, or `[*lead, n]` where `lead` are x's first dimensions (a mapped weight).
        eps: added to the mean.
    """
    dtype = accumulation_dtype(x.dtype)
    wide = x.astype(dtype)
    mean = jnp.mean(wide * wide, axis=-1, keepdims=True)
    scale = jax.lax.rsqrt(mean + jnp.asarray(eps, dtype))
    if weight is not None:
        ones = (1,) * (x.ndim - weight.ndim)
        scale = scale * weight.reshape(*weight.shape[:-1], *ones, weight.shape[-1]).astype(dtype)
    return (wide * scale).astype(x.dtype)
