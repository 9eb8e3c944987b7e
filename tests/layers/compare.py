"""A layer beside the one whose place it takes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

KERNEL = "ptx_rms_norm["


def uses_kernel(function: Any, *args: Any) -> bool:
    """Whether a call binds the kernel's primitive, of which a CPU takes the plain formula."""
    return KERNEL in str(jax.make_jaxpr(function)(*args))


def launches(function: Any, *args: Any) -> int:
    """Kernels that a call launches on an NVIDIA GPU."""
    traced = jax.jit(function).trace(*args)
    return traced.lower(lowering_platforms=("cuda",)).as_text().count("custom_call @jax_ptx_launch")


def assert_same(got: Any, expected: Any, units: int = 8) -> None:
    """Trees of one structure, whose arrays agree in shape, dtype and, up to rounding, values.

    Two ways to compute in float32 (or wider) differ by a few of its units, and so, once rounded, by one
    unit of a narrower dtype.
    """
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        if not jnp.issubdtype(a.dtype, jnp.inexact):
            np.testing.assert_array_equal(a, b)
            continue
        narrow = jnp.finfo(a.dtype).bits <= 16
        limit = float(jnp.finfo(a.dtype).eps) * (1 if narrow else units)
        wide = np.complex128 if jnp.iscomplexobj(a) else np.float64
        a, b = (np.asarray(v).astype(wide) for v in (a, b))
        np.testing.assert_allclose(a, b, rtol=limit, atol=limit * np.abs(b).max(initial=0))


def normal(seed: int, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape).astype(jnp.dtype(dtype)))
