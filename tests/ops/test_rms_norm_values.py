"""Values of rms_norm, the kernel in the emulator and the formula alike, against float64."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_ptx
from tests.ops import oracle
from tests.tolerance import assert_close

IMPLEMENTATIONS = ("ptx", "xla")
DTYPES = ("float32", "bfloat16", "float16")
ODD_LENGTHS = (1, 2, 3, 5, 7, 9, 15, 17, 31, 33, 64, 127, 128, 129, 255, 256, 257, 767, 769)
LONG_LENGTHS = (1023, 1025, 4096, 4097, 8193, 16384, 65536, 131072)


def draw(shape, dtype, seed: int = 0, scale: float = 1.0) -> jax.Array:
    values = np.random.default_rng(seed).standard_normal(shape) * scale
    return jnp.asarray(values).astype(dtype)


def check(x, weight, implementation: str, eps: float = 1e-6) -> jax.Array:
    y = jax_ptx.rms_norm(x, weight, eps=eps, implementation=implementation)
    assert y.dtype == x.dtype
    assert_close(y, oracle.rms_norm(x, weight, eps=eps), x.shape[-1])
    return y


@pytest.mark.parametrize("n", ODD_LENGTHS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_short_rows(dtype: str, n: int) -> None:
    check(draw((7, n), dtype), draw(n, dtype, 1), "ptx")


@pytest.mark.parametrize("n", LONG_LENGTHS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_long_rows(dtype: str, n: int) -> None:
    check(draw((2, n), dtype), draw(n, dtype, 1), "ptx")


@pytest.mark.parametrize("n", [12289, 58113, 2**20])
def test_rows_larger_than_shared_memory(n: int) -> None:
    check(draw((1, n), "float32"), draw(n, "float32", 1), "ptx")


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    ("x_dtype", "w_dtype"), list(itertools.product((*DTYPES, "float64"), repeat=2))
)
def test_mixed_dtypes(x64, x_dtype: str, w_dtype: str, implementation: str) -> None:
    check(draw((3, 48), x_dtype), draw(48, w_dtype, 1), implementation)


def test_float64_keeps_its_digits(x64) -> None:
    x = jnp.array([1.0, 2.0, 3.0, 4.0], jnp.float64)
    for implementation in IMPLEMENTATIONS:
        y = jax_ptx.rms_norm(x, eps=1e-6, implementation=implementation)
        assert y.dtype == jnp.float64
        np.testing.assert_allclose(y[0], 0.36514834732688839, rtol=1e-14)


@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5), (2, 1, 3, 5), (1, 2, 1, 2, 5)])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_any_rank(shape, implementation: str) -> None:
    check(draw(shape, "float32"), None, implementation)


@pytest.mark.parametrize("rows", [1, 3, 47, 127, 128, 129, 1000])
@pytest.mark.parametrize("n", [1, 4, 24, 160])
def test_every_row_is_written_once(rows: int, n: int) -> None:
    check(draw((rows, n), "float32", rows), draw(n, "float32", 1), "ptx")


def test_more_rows_than_a_grid_axis_of_16_bits() -> None:
    check(draw((65536 + 3, 2), "bfloat16"), draw(2, "bfloat16", 1), "ptx")


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("shape", [(0, 7168), (3, 0), (0,), (2, 0, 4)])
def test_nothing_to_do(shape, implementation: str) -> None:
    y = jax_ptx.rms_norm(jnp.zeros(shape), jnp.ones(shape[-1]), implementation=implementation)
    assert y.shape == shape
    dw = jax.grad(
        lambda w: jax_ptx.rms_norm(jnp.zeros(shape), w, implementation=implementation).sum()
    )(jnp.ones(shape[-1]))
    np.testing.assert_array_equal(dw, np.zeros(shape[-1]))


@pytest.mark.parametrize("value", [7e9, -7e9, 1e15])
def test_large_values(value: float) -> None:
    for implementation in IMPLEMENTATIONS:
        y = jax_ptx.rms_norm(jnp.full((2, 64), value), implementation=implementation)
        np.testing.assert_allclose(y, np.sign(value), rtol=1e-6)


def test_squares_that_overflow_give_zero_and_never_nan() -> None:
    for implementation in IMPLEMENTATIONS:
        y = jax_ptx.rms_norm(jnp.full((2, 64), 1e20), implementation=implementation)
        np.testing.assert_array_equal(y, np.zeros((2, 64)))


def test_float16_at_its_limits() -> None:
    w = draw(256, "float16", 3)
    y = jax_ptx.rms_norm(jnp.full((2, 256), 1e4, jnp.float16), w, implementation="ptx")
    np.testing.assert_array_equal(y, np.broadcast_to(w, (2, 256)))
    spike = jnp.zeros((1, 4096), jnp.float16).at[0, 17].set(65504)
    y = jax_ptx.rms_norm(spike, implementation="ptx")
    assert y[0, 17] == 64
    assert np.count_nonzero(y) == 1


def test_rstd_is_not_rounded_to_the_inputs_dtype() -> None:
    # A scale near 1 would let most values round back to what they were.
    x = draw((1, 4096), "bfloat16", scale=1.37)
    exact = oracle.rms_norm(x, eps=1e-6)
    y = np.asarray(jax_ptx.rms_norm(x, implementation="ptx")).astype(np.float64)
    slope = np.sum(y * exact) / np.sum(exact * exact)
    assert abs(slope - 1) < 3e-4


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_bad_row_stays_alone(implementation: str) -> None:
    x = draw((5, 96), "float32").at[1, 3].set(jnp.nan).at[3, 90].set(jnp.inf)
    y = np.asarray(jax_ptx.rms_norm(x, implementation=implementation))
    clean = [0, 2, 4]
    assert_close(y[clean], oracle.rms_norm(np.asarray(x)[clean], eps=1e-6), 96)
    assert np.isnan(y[1]).all()
    assert np.isnan(y[3, 90])


def test_a_zero_row_gives_zeros() -> None:
    y = jax_ptx.rms_norm(jnp.zeros((2, 33)), jnp.full(33, 2.0), implementation="ptx")
    np.testing.assert_array_equal(y, np.zeros((2, 33)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [40, 1025, 4096])
def test_a_rows_bits_do_not_depend_on_its_batch(dtype: str, n: int) -> None:
    x, w = draw((40, n), dtype), draw(n, dtype, 1)
    alone = jax_ptx.rms_norm(x[:1], w, implementation="ptx")
    for rows in (7, 33):
        some = jax_ptx.rms_norm(x[:rows], w, implementation="ptx")
        np.testing.assert_array_equal(some[:1].view(jnp.uint8), alone.view(jnp.uint8))
    mapped = jax.vmap(lambda row: jax_ptx.rms_norm(row, w, implementation="ptx"))(x)
    np.testing.assert_array_equal(mapped[:1].view(jnp.uint8), alone.view(jnp.uint8))


def test_the_same_call_gives_the_same_bits() -> None:
    x, w = draw((9, 1000), "float32"), draw(1000, "float32", 1)
    first = np.asarray(jax_ptx.rms_norm(x, w, implementation="ptx"))
    second = np.asarray(jax_ptx.rms_norm(x, w, implementation="ptx"))
    assert first.tobytes() == second.tobytes()


@pytest.mark.parametrize("eps", [0.0, 1e-12, 1e-5, 1.0, 1e6])
def test_eps(eps: float) -> None:
    check(draw((3, 50), "float32"), None, "ptx", eps)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_subnormal_rows_are_normalised(implementation: str) -> None:
    x = jnp.full((1, 32), 1e-30, jnp.float32)
    y = jax_ptx.rms_norm(x, eps=1e-6, implementation=implementation)
    np.testing.assert_allclose(y, 1e-27, rtol=1e-5)
