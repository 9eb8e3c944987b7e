"""rms_norm on one row of 2**28 elements, on ten million rows, and on more than 2**31 elements."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_ptx

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def on_the_gpu():
    with jax.default_device(jax.devices("gpu")[0]):
        yield


def test_one_row_of_two_to_the_28_elements_both_ways() -> None:
    """Values that repeat have a sum of squares that is known without adding 2**28 numbers."""
    n, period = 2**28, 4096
    pattern = np.random.default_rng(0).standard_normal(period).astype(np.float32)
    x = jnp.tile(jnp.asarray(pattern), n // period)[None]
    w = jnp.full(n, 1.5, jnp.float32)
    rstd = 1 / np.sqrt(np.mean(pattern.astype(np.float64) ** 2) + 1e-6)
    y, pull = jax.vjp(jax_ptx.rms_norm, x, w)
    for start in (0, n // 2, n - period):
        np.testing.assert_allclose(y[0, start : start + period], pattern * rstd * 1.5, rtol=1e-5)
    del y
    dx, dw = pull(jnp.ones_like(x))
    normal = pattern * rstd
    exact = rstd * (1.5 - normal * np.mean(1.5 * normal))
    for start in (0, n // 2, n - period):
        np.testing.assert_allclose(dx[0, start : start + period], exact, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(dw[start : start + period], normal, rtol=1e-5, atol=1e-6)


def test_ten_million_rows_both_ways() -> None:
    rows, n = 10_000_000, 4
    x = jax.random.normal(jax.random.key(0), (rows, n), jnp.float32)
    w = jnp.arange(1, n + 1, dtype=jnp.float32)
    y, pull = jax.vjp(jax_ptx.rms_norm, x, w)
    wide = np.asarray(x).astype(np.float64)
    normal = wide / np.sqrt(np.mean(wide**2, -1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(y, normal * np.arange(1, n + 1), rtol=1e-5, atol=1e-6)
    _, dw = pull(jnp.ones_like(x))
    np.testing.assert_allclose(dw, normal.sum(0), atol=1e-5 * np.abs(normal).sum(0).max())


def test_more_than_two_to_the_31_elements_both_ways() -> None:
    """Rows repeat, so that the last ones, beyond any 32-bit offset, must have the bits of the first."""
    n, period = 4096, 8
    rows = 2**31 // n + period
    pattern = jax.random.normal(jax.random.key(0), (period, n), jnp.bfloat16)
    w = jax.random.normal(jax.random.key(1), (n,), jnp.bfloat16)

    @jax.jit
    def both_ways(x, w):
        y, pull = jax.vjp(jax_ptx.rms_norm, x, w)
        dx, dw = pull(x)
        return [jnp.stack([v[:period], v[-period:]]) for v in (y, dx)], dw

    results, dw = both_ways(jnp.tile(pattern, (rows // period, 1)), w)
    alone, _ = both_ways(pattern, w)
    for (first, last), (expected, _) in zip(results, alone, strict=True):
        np.testing.assert_array_equal(first, expected)
        np.testing.assert_array_equal(last, expected)
    wide = np.asarray(pattern).astype(np.float64)
    normal = wide / np.sqrt(np.mean(wide**2, -1, keepdims=True) + 1e-6)
    exact = (wide * normal).sum(0) * (rows // period)  # dy is x
    np.testing.assert_allclose(np.asarray(dw).astype(np.float64), exact, rtol=2**-8)
