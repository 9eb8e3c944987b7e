"""rms_norm under jit, vmap and grad, and what is refused."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import jax_ptx
from jax_ptx.ops.rms_norm.backward import backward
from tests.ops import oracle
from tests.ops.test_rms_norm_values import IMPLEMENTATIONS, draw
from tests.tolerance import assert_close

N = 24


def norm(implementation: str):
    return lambda x, w: jax_ptx.rms_norm(x, w, eps=1e-5, implementation=implementation)


def reference(x, w):
    return oracle.rms_norm(x, w, eps=1e-5)


def mapped_reference(x, w, in_axes, out_axis: int) -> np.ndarray:
    """vmap by hand: a loop over slices."""
    size = next(a.shape[axis] for a, axis in zip((x, w), in_axes, strict=True) if axis is not None)
    parts = []
    for i in range(size):
        slices = [
            np.asarray(a) if axis is None else np.take(np.asarray(a), i, axis)
            for a, axis in zip((x, w), in_axes, strict=True)
        ]
        parts.append(reference(*slices))
    return np.stack(parts, out_axis)


CASES = [
    # shapes of x and w, in_axes
    ((3, 5, N), (N,), (0, None)),
    ((5, 3, N), (N,), (1, None)),
    ((5, N, 3), (N,), (2, None)),
    ((5, N, 3), (N,), (-1, None)),
    ((5, N), (3, N), (None, 0)),
    ((5, N), (N, 3), (None, 1)),
    ((3, 5, N), (3, N), (0, 0)),
    ((5, 3, N), (N, 3), (1, -1)),
    ((3, N), (3, N), (0, 0)),
    ((3, N), (N,), (0, None)),
    ((N, 3), (N,), (1, None)),
]


@pytest.mark.parametrize(("x_shape", "w_shape", "in_axes"), CASES)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_vmap(x_shape, w_shape, in_axes, implementation: str) -> None:
    x, w = draw(x_shape, "float32"), draw(w_shape, "float32", 1)
    rank = len(x_shape) + (in_axes[0] is None)
    for out_axis in range(rank):
        y = jax.jit(jax.vmap(norm(implementation), in_axes, out_axis))(x, w)
        assert_close(y, mapped_reference(x, w, in_axes, out_axis), N)


AXES = [(0, None), (None, 0), (0, 0)]


@pytest.mark.parametrize(("inner", "outer"), list(itertools.product(AXES, AXES)))
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_nested_vmap(inner, outer, implementation: str) -> None:
    sizes = (2, 3)  # outer, inner
    shapes = [
        (*(s for s, axes in zip(sizes, (outer, inner), strict=True) if axes[i] is not None), *rest)
        for i, rest in enumerate([(4, N), (N,)])
    ]
    x, w = draw(shapes[0], "float32"), draw(shapes[1], "float32", 1)
    y = jax.vmap(jax.vmap(norm(implementation), inner), outer)(x, w)
    expected = []
    for i in range(2):
        pick = [a if axis is None else a[i] for a, axis in zip((x, w), outer, strict=True)]
        expected.append(mapped_reference(*pick, inner, 0))
    assert_close(y, np.stack(expected), N)


def test_three_maps_with_the_weight_mapped_in_the_middle() -> None:
    x, w = draw((2, 3, 4, 5, N), "float32"), draw((3, N), "float32", 1)
    f = jax.vmap(jax.vmap(jax.vmap(norm("ptx"), (0, None)), (0, 0)), (0, None))
    expected = reference(x, np.asarray(w)[:, None, None])
    assert_close(f(x, w), expected, N)


def test_a_mapped_axis_of_size_zero() -> None:
    y = jax.vmap(norm("ptx"), (0, None))(jnp.zeros((0, 4, N)), jnp.ones(N))
    assert y.shape == (0, 4, N)


def test_a_large_mapped_axis() -> None:
    x = draw((65537, 1, 4), "float32")
    y = jax.vmap(lambda row: jax_ptx.rms_norm(row, eps=1e-5, implementation="ptx"))(x)
    assert_close(y, oracle.rms_norm(x, eps=1e-5), 4)


def test_vmap_is_one_custom_call_without_a_copy_of_the_weight() -> None:
    x, w = draw((3, 5, N), "float32"), draw(N, "float32", 1)
    text = jax.jit(jax.vmap(norm("ptx"), (0, None))).lower(x, w).as_text()
    assert text.count("stablehlo.custom_call @jax_ptx_launch") == 1
    assert "broadcast" not in text


@pytest.mark.parametrize("weighted", [True, False])
def test_derivatives_match_finite_differences(x64, weighted: bool) -> None:
    x, w = draw((3, 8), "float64"), draw(8, "float64", 1)
    f = norm("ptx") if weighted else lambda x: norm("ptx")(x, None)
    check_grads(jax.jit(f), (x, w) if weighted else (x,), order=2, modes=("fwd", "rev"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("w_dtype", ["float32", "bfloat16", "float16"])
def test_cotangents_have_the_operands_dtypes(dtype: str, w_dtype: str) -> None:
    x, w = draw((4, N), dtype), draw(N, w_dtype, 1)
    loss = lambda x, w: norm("ptx")(x, w).astype(jnp.float32).sum()
    dx, dw = jax.grad(loss, (0, 1))(x, w)
    assert (dx.dtype, dw.dtype) == (x.dtype, w.dtype)
    assert (dx.shape, dw.shape) == (x.shape, w.shape)


def test_the_weights_gradient_under_vmap_is_one_for_each_example() -> None:
    x, w = draw((2, 3, 4), "float32"), draw(4, "float32", 1)
    dw = jax.vmap(jax.grad(lambda w, x: norm("ptx")(x, w).sum()), (None, 0))(w, x)
    assert dw.shape == (2, 4)
    exact = oracle.rms_norm(x, eps=1e-5).sum(1)
    assert_close(dw, exact, 4, scale=np.abs(oracle.rms_norm(x, eps=1e-5)).sum(1))


def test_jacobians_and_hessian(x64) -> None:
    x, w = draw((2, 5), "float64"), draw(5, "float64", 1)
    f = norm("ptx")
    for argnum in (0, 1):
        forward, reverse = (jax.jit(j(f, argnum))(x, w) for j in (jax.jacfwd, jax.jacrev))
        np.testing.assert_allclose(forward, reverse, rtol=1e-10, atol=1e-12)
    h = jax.jit(jax.hessian(lambda x: (f(x, w) ** 2).sum()))(x).reshape(10, 10)
    np.testing.assert_allclose(h, h.T, rtol=1e-10, atol=1e-12)


def test_the_op_is_linear_in_its_weight() -> None:
    x, w = draw((3, N), "float32"), draw(N, "float32", 1)
    _, tangent = jax.linearize(lambda w: norm("ptx")(x, w), w)
    (dw,) = jax.linear_transpose(tangent, w)(jnp.ones((3, N)))
    exact = oracle.rms_norm(x, eps=1e-5)
    assert_close(dw, exact.sum(0), N, scale=np.abs(exact).sum(0))


@pytest.mark.parametrize("implementation", [*IMPLEMENTATIONS, None])
def test_linear_transpose_in_the_weight(implementation) -> None:
    x, w = draw((2, 3, N), "float32"), draw(N, "float32", 1)
    f = lambda w: jax_ptx.rms_norm(x, w, eps=1e-5, implementation=implementation)
    (dw,) = jax.linear_transpose(f, w)(jnp.ones((2, 3, N)))
    exact = oracle.rms_norm(x, eps=1e-5)
    assert_close(dw, exact.sum((0, 1)), N, scale=np.abs(exact).sum((0, 1)))


@pytest.mark.parametrize("implementation", [*IMPLEMENTATIONS, None])
def test_gradients_are_linear_in_their_cotangent(implementation) -> None:
    """So a solver whose matrix is a vjp can be differentiated, and a transpose be transposed."""
    x, w = draw((9, 7), "float32"), draw(7, "float32", 1)
    f = lambda x, w: jax_ptx.rms_norm(x, w, implementation=implementation)
    pull = lambda dy: jax.vjp(f, x, w)[1](dy)
    dy, (dx_bar, dw_bar) = draw((9, 7), "float32", 2), (x + 1, w - 1)
    (transposed,) = jax.linear_transpose(pull, dy)((dx_bar, dw_bar))
    dx, dw = pull(dy)
    np.testing.assert_allclose(
        (transposed * dy).sum(), (dx * dx_bar).sum() + (dw * dw_bar).sum(), rtol=1e-4
    )
    in_weight = jax.linear_transpose(lambda w: f(x, w), w)
    (again,) = jax.linear_transpose(lambda dy: in_weight(dy)[0], dy)(w)
    np.testing.assert_allclose(again, f(x, w), rtol=1e-5, atol=1e-6)


def test_gradients_have_no_transpose_in_x() -> None:
    y, dy = draw((3, 8), "float32"), draw((3, 8), "float32", 1)
    at = {"dy": dy, "rstd": jnp.ones((3,))}
    of_x = lambda x: backward(
        {"x": x, **at}, weight_offset=0.0, need_dx=True, need_dw=False, emulate=True
    )[0]
    with pytest.raises(NotImplementedError, match="not linear in x and has no transpose"):
        jax.linear_transpose(of_x, y)(dy)


def test_there_is_no_transpose_in_x() -> None:
    x = draw((2, N), "float32")
    with pytest.raises(NotImplementedError, match="not linear in x"):
        jax.linear_transpose(lambda x: norm("ptx")(x, None), x)(x)


def test_scan_remat_and_while() -> None:
    x, w = draw((4, N), "float32"), draw((3, N), "float32", 1)

    def loss(x, w, f):
        step = jax.checkpoint(lambda x, w: (f(x, w), None))
        return jax.lax.scan(step, x, w)[0].sum()

    got = jax.jit(jax.grad(lambda *a: loss(*a, norm("ptx")), (0, 1)))(x, w)
    expected = jax.grad(lambda *a: loss(*a, norm("xla")), (0, 1))(x, w)
    for g, e in zip(got, expected, strict=True):
        np.testing.assert_allclose(g, e, rtol=1e-4, atol=1e-5)
    looped = jax.jit(lambda x: jax.lax.fori_loop(0, 2, lambda _, y: norm("ptx")(y, w[0]), x))(x)
    twice = reference(reference(x, w[0]), w[0])
    np.testing.assert_allclose(looped, twice, rtol=1e-5, atol=1e-6)


def test_disable_jit_and_donation() -> None:
    x, w = draw((4, N), "float32"), draw(N, "float32", 1)
    expected = reference(x, w)
    with jax.disable_jit():
        assert_close(norm("ptx")(x, w), expected, N)
    donated = jax.jit(norm("ptx"), donate_argnums=0)(x + 0, w)
    assert_close(donated, expected, N)


def test_operands_in_another_layout() -> None:
    x = draw((N, 7), "float32")
    assert_close(jax.jit(lambda x: norm("ptx")(x.T, None))(x), reference(x.T, None), N)
    a, b = draw((3, 4, 6), "float32"), draw((6, 4, N), "float32", 1)
    y = jax.jit(lambda a, b: norm("ptx")(jnp.einsum("bij,jik->ibk", a, b), None))(a, b)
    exact = np.einsum("bij,jik->ibk", *(np.asarray(v).astype(np.float64) for v in (a, b)))
    np.testing.assert_allclose(y, reference(exact, None), rtol=1e-5, atol=1e-6)


REFUSED = [
    (lambda: jax_ptx.rms_norm(jnp.ones(3, jnp.int32)), TypeError, "x must have dtype .*got int32"),
    (lambda: jax_ptx.rms_norm([1.0, 2.0]), TypeError, "x must be an array, got list"),
    (lambda: jax_ptx.rms_norm(jnp.float32(1)), ValueError, "x must have rank 1 or more"),
    (
        lambda: jax_ptx.rms_norm(jnp.ones((2, 512)), jnp.ones(256)),
        ValueError,
        r"weight must have shape \(512,\) to match x.shape\[-1\], got \(256,\)",
    ),
    (
        lambda: jax_ptx.rms_norm(jnp.ones((2, 4)), jnp.ones((2, 4))),
        ValueError,
        r"weight must have shape \(4,\).*jax.vmap maps over several",
    ),
    (
        lambda: jax_ptx.rms_norm(jnp.ones((2, 4)), jnp.float32(1)),
        ValueError,
        r"got \(\); jnp.broadcast_to\(weight, \(4,\)\)",
    ),
    (
        lambda: jax_ptx.rms_norm(jnp.ones((2, 4)), jnp.ones((1, 4))),
        ValueError,
        r"got \(1, 4\); weight\[0\] has it",
    ),
    (lambda: jax_ptx.rms_norm(jnp.ones(4), jnp.ones(4, int)), TypeError, "weight must have dtype"),
    (
        lambda: jax_ptx.rms_norm(jnp.ones(4), eps=-1.0),
        ValueError,
        "eps must be 0 or a positive float32.*got -1.0",
    ),
    (lambda: jax_ptx.rms_norm(jnp.ones(4), eps=float("nan")), ValueError, "eps must be 0 or"),
    (lambda: jax_ptx.rms_norm(jnp.ones(4), eps=1e-50), ValueError, "positive float32"),
    (lambda: jax_ptx.rms_norm(jnp.ones(4), eps=10**400), ValueError, "positive float32"),
    (lambda: jax_ptx.rms_norm(jax.random.key(0)[None]), TypeError, "x must have dtype .*got key"),
    (lambda: jax_ptx.rms_norm(jnp.ones(4), eps="1"), TypeError, "eps must be a number.*got str"),
    (
        lambda: jax.jit(lambda e: jax_ptx.rms_norm(jnp.ones(4), eps=e))(1e-6),
        TypeError,
        "eps must be a number known while tracing",
    ),
    (
        lambda: jax_ptx.rms_norm(jnp.ones(4), implementation="cuda"),
        ValueError,
        "implementation must be 'ptx', 'xla' or None, got 'cuda'",
    ),
    (
        lambda: jax_ptx.rms_norm(jnp.ones(4), implementation=np.array(["ptx", "xla"])),
        ValueError,
        "implementation must be 'ptx', 'xla' or None",
    ),
    (lambda: jax_ptx.rms_norm(np.array(["a"])), TypeError, "got <U1; it must hold numbers"),
    (lambda: jax_ptx.rms_norm(jax.new_ref(jnp.ones(4))), TypeError, r"got Ref; x\[\.\.\.\] reads"),
    (
        lambda: jax_ptx.rms_norm(np.ma.masked_array(np.ones(4, "float32"))),
        TypeError,
        r"x must be an array, got MaskedArray; filled\(\)",
    ),
    (
        lambda: jax_ptx.rms_norm(jnp.ones(4), eps=jnp.ones(1)),
        TypeError,
        r"got an array of float32 and shape \(1,\)",
    ),
    (lambda: jax_ptx.rms_norm(np.ones(4)), TypeError, "float64, which JAX would narrow"),
]


@pytest.mark.parametrize(("call", "error", "text"), REFUSED)
def test_refused(call, error, text: str) -> None:
    with pytest.raises(error, match=text):
        call()


@pytest.mark.parametrize("implementation", [None, "ptx", "xla"])
def test_gradients_over_a_mapped_axis_of_no_elements(implementation) -> None:
    f = lambda x, w: jax_ptx.rms_norm(x, w, implementation=implementation).sum()
    x, w = jnp.zeros((0, 2, 16)), jnp.ones(16)
    assert jax.vmap(jax.grad(f, 1), (0, None))(x, w).shape == (0, 16)
    assert jax.jit(jax.vmap(jax.grad(f, 1)))(x, jnp.zeros((0, 16))).shape == (0, 16)
    np.testing.assert_array_equal(
        jax.grad(lambda w: jax.vmap(f, (0, None))(x, w).sum())(w), np.zeros(16)
    )


@pytest.mark.parametrize("argument", [0, 1])
def test_nothing_else_is_kept_for_one_gradient(argument: int) -> None:
    args = draw((4, 8, 16), "float32"), draw(16, "float32", 1)
    f = lambda v: jax_ptx.rms_norm(*(v if i == argument else a for i, a in enumerate(args)))
    _, pull = jax.vjp(f, args[argument])
    kept = [leaf.shape for leaf in jax.tree.leaves(pull) if hasattr(leaf, "shape")]
    assert sorted(shape for shape in kept if shape) == [
        (4, 8),
        (4, 8, 16),
        (16,),
    ]  # rstd, x, weight
