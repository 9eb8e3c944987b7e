"""The sum of partial sums: the kernel in the emulator, and the primitive's rules."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_ptx
from jax_ptx.launch import ptx_call
from jax_ptx.ops.column_sum import column_sum
from jax_ptx.ops.columns import LOADS, LONG, LONG_WARPS, MAX_WARPS, column_sum_launch
from tests.ptxas import assemble


def draw(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize(
    ("rows", "n"),
    [
        *((rows, 35) for rows in (1, 2, 31, 32, 33, 264, MAX_WARPS * LOADS + 1)),
        *((rows, LONG + 4) for rows in (1, 3, 15, LONG_WARPS * LOADS + 1)),
        (2, LONG + 1),
    ],
)
def test_every_row_is_summed_once(rows: int, n: int) -> None:
    columns = np.arange(1, n + 1, dtype=np.float32)
    launch = column_sum_launch(rows, n, "float32", "float32")
    parts = np.ones((rows, n), np.float32) * columns
    (sums,) = ptx_call(launch, parts, result_types=[jax.ShapeDtypeStruct((n,), np.float32)])
    np.testing.assert_array_equal(sums, rows * columns)


@pytest.mark.parametrize(
    ("dtype", "out"),
    [
        ("float32", "bfloat16"),
        ("float32", "float16"),
        ("float32", "float64"),
        ("float64", "float32"),
    ],
)
def test_a_sum_is_rounded_once(dtype: str, out: str) -> None:
    with jax.enable_x64(True):
        parts = jnp.asarray(draw(40, 3, dtype=dtype))
        sums = column_sum(parts, out, emulate=True)
        assert sums.dtype == out
        exact = np.asarray(parts, np.float64).sum(0)
        unit = float(jnp.finfo(out).eps) + float(jnp.finfo(dtype).eps) * 8
        np.testing.assert_allclose(np.asarray(sums, np.float64), exact, rtol=unit, atol=unit)


@pytest.mark.parametrize(
    ("rows", "n", "dtype", "most"),
    [
        (264, 4096, "float32", 32),  # two CTAs of 1,024 threads on an SM
        (2112, 4096, "float64", 32),
        (15, 262144, "float32", 64),
        (264, LONG, "float32", 128),
    ],
)
def test_no_register_is_spilled(rows: int, n: int, dtype: str, most: int) -> None:
    (kernel,) = assemble(column_sum_launch(rows, n, dtype, dtype).ptx, "sm_90").values()
    assert kernel.spill_bytes == 0
    assert kernel.registers <= most


def test_the_text_is_the_same_for_every_length() -> None:
    first, second = (
        jax.jit(lambda x: column_sum(x, "bfloat16", emulate=False))
        .trace(jax.ShapeDtypeStruct((1, 264, n), jnp.float32))
        .lower(lowering_platforms=("cuda",))
        .as_text()
        for n in (512, 4097)
    )
    text = column_sum_launch(264, 512, "float32", "bfloat16").ptx
    assert len(text) < 8000
    entry = text[text.index(".visible") :].splitlines()[0]
    assert entry in first
    assert entry in second


def test_derivatives_and_vmap() -> None:
    parts = jnp.asarray(draw(2, 5, 3))
    ours = lambda x: column_sum(x, "float32", emulate=True)
    plain = lambda x: x.sum((0, 1))
    (y, dot), (expected, expected_dot) = (jax.jvp(f, (parts,), (parts * 2,)) for f in (ours, plain))
    np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(dot, expected_dot, rtol=1e-6, atol=1e-6)
    # Of a quadratic form: the derivative is twice the sums, for each row, and so is the second one.
    gradient = jax.jit(jax.grad(lambda x: (column_sum(x, "float32", emulate=False) ** 2).sum()))
    _, dot = jax.jvp(gradient, (parts,), (parts * 2,))
    each = np.broadcast_to(2 * expected, parts.shape)
    np.testing.assert_allclose(gradient(parts), each, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(dot, 2 * each, rtol=1e-6, atol=1e-6)
    batch = jnp.asarray(draw(2, 4, 5, 3))
    got = jax.vmap(ours, in_axes=1)(batch)
    np.testing.assert_allclose(got, batch.sum((0, 2)), rtol=1e-6, atol=1e-6)


def test_a_gradient_on_one_device_holds_our_kernels_alone(monkeypatch: Any) -> None:
    """What XLA compiles itself takes it longer than all the rest (`columns`)."""
    from jax_ptx.ops.rms_norm import backward

    monkeypatch.setattr(backward, "_most_devices", lambda: 1)
    weight = jnp.ones(64, jnp.bfloat16)
    grad = jax.grad(lambda x, w: jax_ptx.rms_norm(x, w)[0, 0].astype(jnp.float32), (0, 1))
    for rows, has_sum in ((1024, True), (256, False)):  # few rows have no partial sums
        traced = jax.jit(grad).trace(jnp.ones((rows, 64), jnp.bfloat16), weight)
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
        assert ("column_sum" in text) == has_sum
        assert "stablehlo.reduce" not in text
