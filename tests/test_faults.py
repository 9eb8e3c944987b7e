"""docs/faults.md names a test for each fault that users of such libraries met; some of them are here."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import jax
import jax.dlpack
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import jax_ptx
from jax_ptx import Tile, kernel, ptx, reg
from jax_ptx.types import bf16, f32
from tests.ops import oracle
from tests.ops.test_rms_norm_values import DTYPES, IMPLEMENTATIONS, draw
from tests.tolerance import assert_close

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "faults.md").read_text()
ROWS = re.findall(r"^\| (F\d+) \| ([^|]+) \| ([^|]+) \|$", PAGE, re.MULTILINE)


def norm(x, w, implementation="ptx"):
    return jax_ptx.rms_norm(x, w, eps=1e-6, implementation=implementation)


# ---- the page ----


def test_every_fault_has_a_row() -> None:
    assert [row[0] for row in ROWS] == [f"F{i}" for i in range(1, 34)]


@pytest.mark.parametrize(("fault", "what", "tests"), ROWS, ids=[row[0] for row in ROWS])
def test_the_named_tests_exist(fault: str, what: str, tests: str) -> None:
    names = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", tests)
    assert names, f"{fault} names no test: {tests}"
    for file, name in names:
        body = ast.parse((ROOT / file).read_text()).body
        assert name in {node.name for node in body if isinstance(node, ast.FunctionDef)}, (
            f"{fault}: {file} has no {name}"
        )


# ---- memory ----


VIEWS = [
    *((jnp.asarray, dtype) for dtype in (np.float32, np.float16, ml_dtypes.bfloat16)),
    *((jax.dlpack.from_dlpack, dtype) for dtype in (np.float32, np.float16)),
]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(("take", "dtype"), VIEWS)
def test_views_that_start_one_element_into_a_buffer(take, dtype, implementation: str) -> None:
    """x, w and dy, with rows of odd pitch, copied into JAX or sharing their memory."""
    n = 33
    random = np.random.default_rng(5)
    buffers = [random.standard_normal(size + 1).astype(dtype) for size in (3 * n, n, 3 * n)]
    views = [b[1:].reshape(shape) for b, shape in zip(buffers, ((3, n), (n,), (3, n)), strict=True)]
    shared = [take(view) for view in views]
    fresh = [jnp.array(view, copy=True) for view in views]

    @jax.jit
    def both(x, w, dy):
        y, pull = jax.vjp(lambda *v: norm(*v, implementation), x, w)
        return y, *pull(dy)

    for a, b in zip(both(*shared), both(*fresh), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_the_backward_text_does_not_grow_with_the_row() -> None:
    """The kernel's longest rows; from there the plain formula has no text at all."""
    from jax_ptx.ops.rms_norm.config_backward import backward_config
    from jax_ptx.types import by_numpy_name

    f = lambda x, w: jax.grad(lambda *v: norm(*v).sum(), (0, 1))(x, w)

    def size(n: int) -> int:
        types = (jax.ShapeDtypeStruct((2, n), "float32"), jax.ShapeDtypeStruct((n,), "float32"))
        return len(jax.jit(f).trace(*types).lower(lowering_platforms=("cuda",)).as_text())

    assert all(backward_config(2**28, by_numpy_name("float32"), t) is None for t in (80, 90))
    assert size(2**28) <= 2 * size(4096)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_what_runs_after_an_empty_call_is_unharmed(implementation: str) -> None:
    grad = jax.grad(lambda x, w: norm(x, w, implementation).sum(), (0, 1))
    x, w = draw((3, 24), "float32"), draw(24, "float32", 1)
    before = grad(x, w)
    for empty in (x[:0], x[:, :0]):
        dx, dw = grad(empty, w[: empty.shape[-1]])
        assert dx.shape == empty.shape
        np.testing.assert_array_equal(dw, np.zeros_like(dw))
        jax.tree.map(np.testing.assert_array_equal, grad(x, w), before)


def test_a_program_calls_a_kernel_twice_on_memory_of_any_contents() -> None:
    """The emulator fills results and shared memory with NaN: what is left unwritten shows."""
    x, w = draw((37, 130), "bfloat16"), draw(130, "float32", 1)
    grad = jax.jit(jax.grad(lambda x, w: norm(x, w).astype(jnp.float32).sum(), (0, 1)))
    both = jax.jit(lambda x, w: (grad(x, w), grad(x + jnp.zeros_like(x), w)))
    first, second = both(x, w)
    for a, b in zip(first, second, strict=True):
        assert jnp.isfinite(a.astype(jnp.float32)).all()
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


# ---- numbers ----


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_gradients_at_float16s_limits_are_finite(implementation: str) -> None:
    large = jnp.full((2, 256), 1e4, jnp.float16)
    spike = jnp.zeros((1, 4096), jnp.float16).at[0, 17].set(65504)
    for x in (large, spike):
        w = jnp.ones(x.shape[-1], jnp.float16)
        _, pull = jax.vjp(lambda *v: norm(*v, implementation), x, w)
        for grad in pull(jnp.ones_like(x)):
            assert np.isfinite(np.asarray(grad).astype(np.float32)).all()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("value", [7e9, 1e15, 1e20])
def test_gradients_of_large_values_are_never_nan(value: float, implementation: str) -> None:
    x, w = jnp.full((2, 64), value, jnp.float32), draw(64, "float32", 1)
    _, pull = jax.vjp(lambda *v: norm(*v, implementation), x, w)
    for grad in pull(draw((2, 64), "float32", 2)):
        assert np.isfinite(grad).all()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_gradient_of_a_zero_row(dtype: str, implementation: str) -> None:
    """dx = dy w / sqrt(eps), a row alone and one among others."""
    x = draw((3, 33), dtype).at[1].set(0)
    w, dy = draw(33, dtype, 1), draw((3, 33), dtype, 2) / jnp.asarray(64, dtype)
    y, pull = jax.vjp(lambda *v: norm(*v, implementation), x, w)
    dx, dw = pull(dy)
    np.testing.assert_array_equal(np.asarray(y[1]), np.zeros(33))
    wide = [np.asarray(v).astype(np.float64) for v in (dy[1], w)]
    assert_close(dx[1], wide[0] * wide[1] / np.sqrt(1e-6), 33)
    exact = oracle.rms_norm_grad(x, w, dy, eps=1e-6)[1]
    assert_close(dw, exact.sum(0), 33, scale=np.abs(exact).sum(0))


@pytest.mark.parametrize("w_dtype", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_mixed_dtypes_keep_the_fused_path(dtype: str, w_dtype: str) -> None:
    x, w = draw((4, 24), dtype), draw(24, w_dtype, 1)
    grad = jax.jit(jax.grad(lambda x, w: norm(x, w).astype(jnp.float32).sum(), (0, 1)))
    text = grad.trace(x, w).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("stablehlo.custom_call @jax_ptx_launch") == 2


# ---- targets ----


def test_bfloat16_before_sm_80_is_refused_before_loading() -> None:
    @kernel(in_specs=(Tile(8, f32),), out_specs=(Tile(8, bf16),), arch="sm_75")
    def narrowed(x, y):
        px, py = ptx.global_ptrs(x, y)
        wide, narrow = reg.scalar(f32), reg.scalar(bf16)
        ptx.inst.ld.global_.f32(wide, ptx.addr(px))
        ptx.inst.cvt.rn.bf16.f32(narrow, wide)
        ptx.inst.st.global_.b16(ptx.addr(py), narrow)

    with pytest.raises(ValueError, match=r"`cvt.rn.bf16.f32` needs target sm_80.*is for sm_75"):
        narrowed.ptx()
