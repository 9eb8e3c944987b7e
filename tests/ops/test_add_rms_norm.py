"""add_rms_norm: the values of two steps, in one kernel each way, under every transformation."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import jax_ptx
from tests.ops import oracle
from tests.ops.test_rms_norm_backward import kernels
from tests.ops.test_rms_norm_values import DTYPES, IMPLEMENTATIONS, LONG_LENGTHS, ODD_LENGTHS, draw
from tests.tolerance import assert_close

EPS = 1e-5
OPTIONS = [{}, {"weight_offset": 1.0}, {"round_before_weight": True}]


def fused(implementation: str | None = "ptx", **options):
    options = {"eps": EPS, "implementation": implementation, **options}
    return lambda x, r, w: jax_ptx.add_rms_norm(x, r, w, **options)


def two_steps(**options):
    options = {"eps": EPS, "implementation": "ptx", **options}
    return lambda x, r, w: (jax_ptx.rms_norm(x + r, w, **options), x + r)


def operands(shape, dtype: str, w_dtype: str | None = None) -> tuple[jax.Array, ...]:
    return draw(shape, dtype), draw(shape, dtype, 1), draw(shape[-1], w_dtype or dtype, 2)


def bits(values) -> list[bytes]:
    return [np.asarray(value).tobytes() for value in values]


@pytest.mark.parametrize("n", [*ODD_LENGTHS[::3], *LONG_LENGTHS[::3], 200001])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_bits_of_two_steps(dtype: str, n: int) -> None:
    args = operands((3, n), dtype)
    assert bits(fused()(*args)) == bits(two_steps()(*args))


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("rows", [1, 7, 129])
def test_the_bits_of_two_steps_with_options(options, rows: int) -> None:
    args = operands((rows, 40), "bfloat16", "float32")
    assert bits(fused(**options)(*args)) == bits(two_steps(**options)(*args))
    args = (*args[:2], None)
    assert bits(fused()(*args)) == bits(two_steps()(*args))


@pytest.mark.parametrize("dtype", [*DTYPES, "float64"])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_the_sum_is_rounded_once_and_normalised_rounded(x64, implementation, dtype: str) -> None:
    x, r, w = operands((5, 1001), dtype)
    for f in (fused(implementation), jax.jit(fused(implementation))):
        y, added = f(x, r, w)
        np.testing.assert_array_equal(added, x + r)
        assert_close(y, oracle.rms_norm(added, w, eps=EPS), 1001)


def test_a_rows_bits_do_not_depend_on_its_batch() -> None:
    x, r, w = operands((33, 1025), "bfloat16")
    alone = bits(v[:1] for v in fused()(x[:1], r[:1], w))
    assert bits(v[:1] for v in fused()(x[:7], r[:7], w)) == alone
    mapped = jax.vmap(fused(), (0, 0, None))(x, r, w)
    assert bits(v[:1] for v in mapped) == alone


@pytest.mark.parametrize("shape", [(5,), (2, 3, 5), (1, 2, 1, 2, 5), (0, 5)])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_any_shape(shape, implementation: str) -> None:
    x, r, w = operands(shape, "float32")
    y, added = fused(implementation)(x, r, w)
    np.testing.assert_array_equal(added, x + r)
    np.testing.assert_allclose(y, oracle.rms_norm(added, w, eps=EPS), rtol=1e-5)
    dw = jax.grad(lambda w: fused(implementation)(x, r, w)[0].sum())(w)
    np.testing.assert_allclose(
        dw, oracle.rms_norm(added, eps=EPS).reshape(-1, shape[-1]).sum(0), rtol=1e-4
    )


# ---- derivatives ----


def pull(f, args, cotangents):
    return jax.jit(lambda args, ct: jax.vjp(f, *args)[1](ct))(args, cotangents)


@pytest.mark.parametrize("n", [1, 33, 128, 1001, 4096, 20000])
@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients(dtype: str, n: int) -> None:
    x, r, w = operands((9, n), dtype)
    dy, d_added = draw((9, n), dtype, 3), draw((9, n), dtype, 4)
    dx, dr, dw = pull(fused(), (x, r, w), (dy, d_added))
    assert (dx.dtype, dw.dtype) == (x.dtype, w.dtype)
    np.testing.assert_array_equal(dx, dr)
    exact, each_dw, size = oracle.rms_norm_grad(x + r, w, dy, eps=EPS)
    d_added = np.asarray(d_added).astype(np.float64)
    # Rounded once: adding the two halves in the dtype would be off by half a unit of either.
    assert_close(dx, exact + d_added, n, scale=size + np.abs(d_added))
    assert_close(dw, each_dw.sum(0), n, scale=np.abs(each_dw).sum(0))


@pytest.mark.parametrize("rows", [1, 47, 133, 1000])
@pytest.mark.parametrize("n", [4, 160])
def test_gradients_of_any_number_of_rows(rows: int, n: int) -> None:
    x, r, w = operands((rows, n), "bfloat16", "float32")
    dy, d_added = draw((rows, n), "bfloat16", 3), draw((rows, n), "bfloat16", 4)
    dx, _, dw = pull(fused(weight_offset=1.0), (x, r, w), (dy, d_added))
    exact, each_dw, size = oracle.rms_norm_grad(x + r, w, dy, eps=EPS, weight_offset=1.0)
    d_added = np.asarray(d_added).astype(np.float64)
    assert_close(dx, exact + d_added, n, scale=size + np.abs(d_added))
    assert_close(dw, each_dw.sum(0), n, scale=np.abs(each_dw).sum(0))


def test_derivatives_match_finite_differences(x64) -> None:
    f = jax.jit(fused(weight_offset=0.5))
    check_grads(f, operands((3, 8), "float64"), order=2, modes=("fwd", "rev"))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_without_a_weight(implementation: str) -> None:
    x, r, _ = operands((3, 24), "float32")
    loss = lambda f: lambda x, r: sum((v**3).sum() for v in f(x, r, None))
    got = jax.jit(jax.grad(loss(fused(implementation)), (0, 1)))(x, r)
    expected = jax.jit(jax.grad(loss(two_steps(implementation="xla")), (0, 1)))(x, r)
    for g, e in zip(got, expected, strict=True):
        np.testing.assert_allclose(g, e, rtol=1e-5, atol=1e-5)


def test_hessian_and_jacobians(x64) -> None:
    x, r, w = operands((2, 5), "float64")
    loss = lambda x, r, w: sum((v**3).sum() for v in fused()(x, r, w))
    h = jax.jit(jax.hessian(loss, (0, 1)))(x, r, w)
    h = np.block([[np.reshape(h[i][j], (10, 10)) for j in range(2)] for i in range(2)])
    np.testing.assert_allclose(h, h.T, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(h[:10, :10], h[10:, 10:], rtol=1e-10, atol=1e-12)
    for argnum in range(3):
        forward, reverse = (jax.jit(j(fused(), argnum))(x, r, w) for j in (jax.jacfwd, jax.jacrev))
        for a, b in zip(forward, reverse, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


def test_transposes() -> None:
    x, r, w = operands((3, 24), "float32")
    ct = jnp.ones((3, 24))
    (dw,) = jax.linear_transpose(lambda w: fused()(x, r, w)[0], w)(ct)
    exact = oracle.rms_norm(x + r, eps=EPS)
    assert_close(dw, exact.sum(0), 24, scale=np.abs(exact).sum(0))
    with pytest.raises(NotImplementedError, match="not linear in x"):
        jax.linear_transpose(lambda r: fused()(x, r, w)[0], r)(ct)


def test_what_runs() -> None:
    x, r, w = operands((4, 16), "float32")
    both = lambda *a: sum((v**2).sum() for v in fused()(*a))
    only_y = lambda *a: (fused()(*a)[0] ** 2).sum()
    only_sum = lambda *a: (fused()(*a)[1] ** 2).sum()
    one_each = {"ptx_rms_norm": 1, "ptx_rms_norm_backward": 1}
    text = lambda f: str(jax.make_jaxpr(f)(x, r, w))
    assert "with_rstd=False" in text(both)
    for argnums in (0, 1, 2, (0, 1), (0, 1, 2)):
        assert kernels(jax.grad(both, argnums), x, r, w) == one_each
    assert "'addend'" in text(jax.grad(both, (0, 2)))
    assert "'addend'" not in text(jax.grad(both, 2))
    assert "need_dx=False" in text(jax.grad(both, 2))
    assert "parts=None" in text(jax.grad(both, (0, 1)))
    assert kernels(jax.grad(only_y, (0, 1, 2)), x, r, w) == one_each
    assert "'addend'" not in text(jax.grad(only_y, (0, 1, 2)))
    assert kernels(jax.grad(only_sum, (0, 1, 2)), x, r, w) == {"ptx_rms_norm": 1}
    for got in jax.grad(only_sum, (0, 1))(x, r, w):
        np.testing.assert_array_equal(got, 2 * (x + r))
    dx, dr = jax.grad(both, (0, 1))(x, r, w)
    np.testing.assert_array_equal(dx, dr)


def test_what_a_gradient_keeps_and_what_a_policy_saves() -> None:
    x, r, w = operands((4, 16), "bfloat16", "float32")
    _, back = jax.vjp(fused(), x, r, w)
    kept = sorted((leaf.size, leaf.dtype.name) for leaf in jax.tree.leaves(back))
    # The sum, the weight and rstd.
    assert kept == [(4, "float32"), (16, "float32"), (64, "bfloat16")]
    loss = lambda policy: (
        lambda *a: sum(
            v.astype(jnp.float32).sum() for v in jax.checkpoint(fused(), policy=policy)(*a)
        )
    )
    saved = lambda primitive, *_, **__: primitive.name == "ptx_rms_norm"
    count = lambda policy: kernels(jax.grad(loss(policy)), x, r, w)["ptx_rms_norm"]
    assert (count(None), count(saved)) == (2, 1)


# ---- vmap ----


AXES = [(0, 0, None), (None, 0, 0), (1, 0, None), (None, None, 0)]


@pytest.mark.parametrize("axes", AXES)
def test_vmap(axes) -> None:
    shapes = [(3, 5, 24), (3, 5, 24), (3, 24)]
    args = []
    for i, (shape, axis) in enumerate(zip(shapes, axes, strict=True)):
        value = draw(shape, "float32", i)
        args.append(value[0] if axis is None else jnp.moveaxis(value, 0, axis))

    def value_and_grads(x, r, w):
        loss = lambda *a: sum((v**2).sum() for v in fused()(*a))
        return fused()(x, r, w), jax.grad(loss, (0, 1, 2))(x, r, w)

    mapped = jax.vmap(value_and_grads, axes)(*args)
    for i in range(3):
        pick = [
            a if axis is None else jnp.take(a, i, axis) for a, axis in zip(args, axes, strict=True)
        ]
        alone = value_and_grads(*pick)
        for got, expected in zip(*map(jax.tree.leaves, (mapped, alone)), strict=True):
            np.testing.assert_allclose(got[i], expected, rtol=1e-5, atol=1e-5)


def test_nested_vmap_and_one_call() -> None:
    x, r, w = (
        draw((2, 3, 4, 24), "float32"),
        draw((2, 3, 4, 24), "float32", 1),
        draw((3, 24), "float32", 2),
    )
    y, added = jax.vmap(jax.vmap(fused()), (0, 0, None))(x, r, w)
    np.testing.assert_array_equal(added, x + r)
    assert_close(y, oracle.rms_norm(added, np.asarray(w)[:, None], eps=EPS), 24)
    text = jax.jit(jax.vmap(fused(), (0, 0, None))).lower(x[0], r[0], w[0]).as_text()
    assert text.count("stablehlo.custom_call @jax_ptx_launch") == 1
    assert "broadcast" not in text


def test_scan_and_remat() -> None:
    x, r, w = draw((4, 24), "float32"), draw((4, 24), "float32", 1), draw((3, 24), "float32", 2)

    def loss(f, x, r, w):
        step = jax.checkpoint(lambda carry, w: (f(*carry, w), None))
        return sum((v**2).sum() for v in jax.lax.scan(step, (x, r), w)[0])

    got = jax.jit(jax.grad(lambda *a: loss(fused(), *a), (0, 1, 2)))(x, r, w)
    expected = jax.grad(lambda *a: loss(fused("xla"), *a), (0, 1, 2))(x, r, w)
    for g, e in zip(got, expected, strict=True):
        np.testing.assert_allclose(g, e, rtol=1e-4, atol=1e-4)


def test_refused() -> None:
    x, w = jnp.ones((2, 4)), jnp.ones(4)
    with pytest.raises(
        ValueError, match=r"residual must have x's shape \(2, 4\), got \(4,\); jnp.b"
    ):
        jax_ptx.add_rms_norm(x, w, w)
    with pytest.raises(TypeError, match="residual must have x's dtype float32, got bfloat16; cast"):
        jax_ptx.add_rms_norm(x, x.astype(jnp.bfloat16), w)
    with pytest.raises(TypeError, match="add_rms_norm: residual must be an array, got float"):
        jax_ptx.add_rms_norm(x, 1.0, w)
    with pytest.raises(ValueError, match="add_rms_norm: eps must be 0 or"):
        jax_ptx.add_rms_norm(x, x, w, eps=-1.0)


# ---- what other libraries were found to get wrong ----


def test_a_bad_row_stays_alone() -> None:
    x, r, w = operands((5, 96), "float32")
    r = r.at[1, 3].set(jnp.nan).at[3, 90].set(jnp.inf)
    y, added = fused()(x, r, w)
    clean = jnp.array([0, 2, 4])
    assert_close(y[clean], oracle.rms_norm(added[clean], w, eps=EPS), 96)
    assert np.isnan(y[1]).all()
    assert np.isfinite(added[1, :3]).all()
    for gradient in jax.grad(lambda *a: (fused()(*a)[0][clean] ** 2).sum(), (0, 1))(x, r, w):
        assert np.isfinite(gradient[clean]).all()


def test_a_sum_that_overflows_its_dtype_is_infinite_as_in_two_steps() -> None:
    x = jnp.full((2, 64), 4e4, jnp.float16)
    assert bits(fused()(x, x, None)) == bits(two_steps()(x, x, None))
    # Short of that: squares are float32.
    y, added = fused()(x, x / 2, None)
    np.testing.assert_array_equal(added, x * 1.5)
    np.testing.assert_array_equal(y, jnp.ones((2, 64)))


def test_operands_in_another_layout_and_donation() -> None:
    x, r, w = operands((7, 24), "float32")
    expected = bits(fused()(x, r, w))
    transposed = jax.jit(lambda x, r, w: fused()(x.T, r.T, w))
    assert bits(transposed(x.T, r.T, w)) == expected
    donating = jax.jit(fused(), donate_argnums=(0, 1))
    assert bits(donating(x + 0, r + 0, w)) == expected
    with jax.disable_jit():
        assert bits(fused()(x, r, w)) == expected


def test_very_many_rows_and_none() -> None:
    x, r, w = operands((65539, 2), "bfloat16")
    assert bits(fused()(x, r, w)) == bits(two_steps()(x, r, w))
    y, added = jax.vmap(fused(), (0, 0, None))(
        jnp.zeros((0, 4, 2)), jnp.zeros((0, 4, 2)), jnp.ones(2)
    )
    assert y.shape == added.shape == (0, 4, 2)


def test_the_weights_gradient_is_the_same_run_after_run() -> None:
    x, r, w = operands((999, 64), "float32")
    cotangents = draw((999, 64), "float32", 3), draw((999, 64), "float32", 4)
    first, second = (bits(pull(fused(), (x, r, w), cotangents)) for _ in range(2))
    assert first == second
