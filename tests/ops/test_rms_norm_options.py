"""rms_norm's weight_offset, round_before_weight and 8-bit results, in both implementations."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.test_util import check_grads

import jax_ptx
from jax_ptx.ops.rms_norm import reference
from tests.ops import oracle
from tests.ops.test_rms_norm_values import DTYPES, IMPLEMENTATIONS, draw
from tests.tolerance import assert_close

EPS = 1e-5
# A row that shares its warp, with single elements; one that fills it; several warps; read twice.
LENGTHS = (7, 64, 1000, 70000)


def norm(implementation: str | None = "ptx", **options):
    return lambda x, w: jax_ptx.rms_norm(x, w, eps=EPS, implementation=implementation, **options)


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_offset_is_added_to_the_weight_in_float32(dtype: str, n: int) -> None:
    # In the weight's own dtype most of these sums would round to 1.
    x, w = draw((3, n), dtype), draw(n, "bfloat16", 1, scale=1e-3)
    for implementation in IMPLEMENTATIONS:
        y = norm(implementation, weight_offset=1.0)(x, w)
        assert_close(y, oracle.rms_norm(x, w, eps=EPS, weight_offset=1.0), n)


def test_an_offset_of_float64_rows_is_float64(x64) -> None:
    x, w = draw((3, 33), "float64"), draw(33, "float32", 1)
    for implementation in IMPLEMENTATIONS:
        y = norm(implementation, weight_offset=1e-3)(x, w)
        assert_close(y, oracle.rms_norm(x, w, eps=EPS, weight_offset=1e-3), 33)


@pytest.mark.parametrize("argnums", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("n", [7, 1000, 20000])
def test_gradients_with_an_offset(n: int, argnums) -> None:
    x, w, dy = draw((9, n), "float32"), draw(n, "float32", 1), draw((9, n), "float32", 2)
    dx, dw, size = oracle.rms_norm_grad(x, w, dy, eps=EPS, weight_offset=1.0)
    expected = ((dx, size), (dw.sum(0), np.abs(dw).sum(0)))
    loss = lambda x, w: (norm(weight_offset=1.0)(x, w) * dy).sum()
    for index, got in zip(argnums, jax.grad(loss, argnums)(x, w), strict=True):
        assert_close(got, expected[index][0], n, scale=expected[index][1])


def test_derivatives_with_an_offset_match_finite_differences(x64) -> None:
    x, w = draw((3, 8), "float64"), draw(8, "float64", 1)
    f = jax.jit(norm(weight_offset=0.5, round_before_weight=True))
    check_grads(f, (x, w), order=2, modes=("fwd", "rev"))


# ---- rounding before the weight ----


def llama(x, w) -> np.ndarray:
    """Hugging Face's order, from rstd in float32: `weight * (x * rstd).to(x.dtype)`."""
    wide = np.asarray(x).astype(np.float64)
    rstd = 1 / np.sqrt(np.mean(wide * wide, -1, keepdims=True) + EPS)
    normal = (wide * rstd).astype(np.float32).astype(x.dtype).astype(np.float32)
    return (normal * np.asarray(w).astype(np.float32)).astype(x.dtype)


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_the_normalised_row_is_rounded_before_the_weight(
    implementation, dtype: str, n: int
) -> None:
    x, w = draw((2, n), dtype), draw(n, dtype, 1)
    rounds, once = (
        np.asarray(jax.jit(norm(implementation, round_before_weight=r))(x, w))
        for r in (True, False)
    )
    expected = llama(x, w)
    # An rstd that is a unit of float32 off may fall on the other side of a rounding.
    assert np.mean(rounds != expected) < 2e-3 * (1 + (n > 5000))
    assert np.mean(once != expected) > 0.1 * (n > 7)


def test_float16_rounds_to_its_subnormal_numbers() -> None:
    # x * rstd is 2e-5 or so, of which float16 keeps fewer digits; the weight makes it normal again.
    x = jnp.linspace(1e-6, 3e-6, 64)[None].astype(jnp.float16).at[0, 63].set(0.7)
    w = jnp.full(64, 1000, jnp.float16)
    for implementation in IMPLEMENTATIONS:
        y = jax.jit(norm(implementation, round_before_weight=True))(x, w)
        np.testing.assert_array_equal(y, llama(x, w))
        assert (y != norm(implementation)(x, w)).sum() > 10


def test_derivatives_are_those_of_the_unrounded_function() -> None:
    x, w, dy = draw((5, 96), "bfloat16"), draw(96, "float32", 1), draw((5, 96), "bfloat16", 2)
    for implementation in IMPLEMENTATIONS:
        pulled = [
            jax.jit(lambda x, w, dy, f=f: jax.vjp(f, x, w)[1](dy))(x, w, dy)
            for f in (norm(implementation, round_before_weight=rounds) for rounds in (True, False))
        ]
        for got, plain in zip(*pulled, strict=True):
            got, plain = (np.asarray(v).astype(np.float32) for v in (got, plain))
            np.testing.assert_allclose(got, plain, rtol=2**-7, atol=2**-7)
        np.testing.assert_allclose(pulled[0][1], pulled[1][1], rtol=1e-6)  # dw, float32


def test_options_under_vmap() -> None:
    x, w = draw((3, 5, 40), "bfloat16"), draw((3, 40), "bfloat16", 1)
    for options in ({"weight_offset": 1.0}, {"round_before_weight": True}):
        f = norm(**options)
        alone = jnp.stack([f(x[i], w[i]) for i in range(3)])
        np.testing.assert_array_equal(jax.vmap(f)(x, w), alone)
        np.testing.assert_array_equal(jax.vmap(f, (0, None))(x, w[0])[0], alone[0])


# ---- 8-bit results ----


def quantised(x, w, scale: float, dtype) -> np.ndarray:
    largest = float(ml_dtypes.finfo(dtype).max)
    y = oracle.rms_norm(x, w, eps=EPS) / scale
    return np.clip(y, -largest, largest).astype(np.float32).astype(dtype)


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("out_dtype", [jnp.float8_e4m3fn, jnp.float8_e5m2])
def test_8_bit_results(out_dtype, dtype: str, n: int) -> None:
    x, w = draw((3, n), dtype), draw(n, dtype, 1)
    for implementation in IMPLEMENTATIONS:
        f = norm(implementation, out_dtype=out_dtype, scale=0.03)
        q = np.asarray(f(x, w))
        assert q.dtype == out_dtype
        expected = quantised(x, w, 0.03, out_dtype)
        # Within float32's last digits of a tie either neighbour is right.
        assert np.mean(q.view(np.uint8) != expected.view(np.uint8)) < 1e-3
        np.testing.assert_allclose(
            q.astype(np.float32), expected.astype(np.float32), rtol=2**-2, atol=2**-8
        )


def test_an_8_bit_result_times_its_scale_is_the_result() -> None:
    x, w = draw((4, 256), "bfloat16"), draw(256, "bfloat16", 1)
    scale = jnp.max(jnp.abs(norm()(x, w))).astype(jnp.float32) / 448
    q = jax.jit(lambda x, w, s: norm(out_dtype="float8_e4m3fn", scale=s)(x, w))(x, w, scale)
    back = np.asarray(q).astype(np.float32) * np.asarray(scale)
    np.testing.assert_allclose(back, oracle.rms_norm(x, w, eps=EPS), rtol=2**-4, atol=scale * 2**-9)


def test_8_bit_results_at_their_limits(x64) -> None:
    x = jnp.array([[1.0, -1.0, 0.5, 1e-9], [jnp.nan, 1.0, 1.0, 1.0]], jnp.float32)
    for dtype in ("float32", "float64"):
        for out_dtype, largest in (("float8_e4m3fn", 448), ("float8_e5m2", 57344)):
            for implementation in IMPLEMENTATIONS:
                f = norm(implementation, out_dtype=out_dtype, scale=1e-6)
                q = np.asarray(f(x.astype(dtype), None)).astype(np.float32)
                np.testing.assert_array_equal(q[0, :3], [largest, -largest, largest])
                assert np.isnan(q[1]).all()


def test_8_bit_results_with_options_and_no_weight() -> None:
    x, w = draw((4, 96), "bfloat16"), draw(96, "bfloat16", 1)
    for options in ({"weight_offset": 1.0}, {"round_before_weight": True}):
        both = [norm(i, out_dtype="float8_e4m3fn", **options)(x, w) for i in IMPLEMENTATIONS]
        np.testing.assert_array_equal(*(np.asarray(q).view(np.uint8) for q in both))
    alone = norm(out_dtype="float8_e5m2", scale=np.float32(0.5))(x, None)
    np.testing.assert_array_equal(np.asarray(alone), quantised(x, None, 0.5, ml_dtypes.float8_e5m2))


@pytest.mark.parametrize("options", [{}, {"weight_offset": 1.0}, {"round_before_weight": True}])
@pytest.mark.parametrize("weighted", [None, "shared", "mapped"])
def test_a_mapped_scale_gives_each_elements_bits(weighted, options) -> None:
    x, scales = draw((3, 5, 40), "bfloat16"), jnp.array([0.1, 0.3, 7.0])
    w = {None: None, "shared": draw(40, "bfloat16", 1), "mapped": draw((3, 40), "bfloat16", 1)}[
        weighted
    ]
    f = lambda x, w, s: norm(out_dtype="float8_e4m3fn", scale=s, **(options if weighted else {}))(
        x, w
    )
    mapped = jax.vmap(f, (0, 0 if weighted == "mapped" else None, 0))(x, w, scales)
    for i in range(3):
        alone = f(x[i], w[i] if weighted == "mapped" else w, scales[i])
        np.testing.assert_array_equal(mapped[i].view(jnp.uint8), alone.view(jnp.uint8))


def test_a_scale_mapped_alone_and_in_one_of_two_maps() -> None:
    x, scales = draw((3, 5, 40), "bfloat16"), jnp.array([0.1, 0.3, 7.0])
    f = lambda x, s: norm(out_dtype="float8_e4m3fn", scale=s)(x, None)
    alone = jnp.stack([f(x[i], scales[i]) for i in range(3)]).view(jnp.uint8)
    one = jax.vmap(lambda s: f(x[0], s))(scales)
    np.testing.assert_array_equal(one[0].view(jnp.uint8), alone[0])
    two = jax.vmap(jax.vmap(f, (0, None)))(x, scales)
    np.testing.assert_array_equal(two.view(jnp.uint8), alone)


@pytest.mark.parametrize("implementation", [*IMPLEMENTATIONS, None])
def test_8_bit_results_have_no_derivative(implementation) -> None:
    x, w = draw((4, 16), "float32"), draw(16, "float32", 1)
    f = norm(implementation, out_dtype="float8_e4m3fn")
    loss = lambda x, w: f(x, w).astype(jnp.float32).sum()
    for differentiate in (
        lambda: jax.grad(loss)(x, w),
        lambda: jax.jvp(f, (x, w), (x, w)),
        lambda: jax.linearize(f, x, w),
    ):
        with pytest.raises(
            NotImplementedError, match=r"has no derivative.*leave out_dtype and scale"
        ):
            differentiate()
    stopped = jax.grad(lambda x: x.sum() + loss(jax.lax.stop_gradient(x), w))(x)
    np.testing.assert_array_equal(stopped, jnp.ones((4, 16)))


def test_empty_8_bit_results() -> None:
    q = norm(out_dtype="float8_e5m2")(jnp.zeros((0, 8)), jnp.ones(8))
    assert (q.shape, q.dtype) == ((0, 8), jnp.float8_e5m2)


def test_a_rounded_value_is_the_dtypes() -> None:
    values = jnp.asarray(np.geomspace(1e-9, 6e4, 5000), jnp.float32)
    for dtype in ("bfloat16", "float16"):
        rounded = jax.jit(reference.rounded, static_argnums=1)(values, jnp.dtype(dtype))
        np.testing.assert_array_equal(rounded, values.astype(dtype).astype(jnp.float32))


REFUSED = [
    ({"weight_offset": "1"}, TypeError, "weight_offset must be a number.*got str"),
    ({"weight_offset": 1e39}, ValueError, "weight_offset must be a finite float32.*got 1e"),
    ({"weight_offset": float("nan")}, ValueError, "weight_offset must be a finite"),
    ({"weight_offset": None}, TypeError, "weight_offset must be.*such as weight_offset=1.0"),
    ({"weight_offset": jax.random.key(0)}, TypeError, r"got an array of key<fry> and shape \(\)"),
    ({"round_before_weight": 1}, TypeError, r"True or False, got int; bool\(\) makes"),
    ({"round_before_weight": jnp.array(True)}, TypeError, r"got an array of bool .*bool\(\) makes"),
    ({"out_dtype": "bfloat16"}, TypeError, "out_dtype must be float8_e4m3fn or.*got bfloat16"),
    ({"out_dtype": "float9"}, TypeError, "out_dtype must be float8_e4m3fn or.*got 'float9'"),
    ({"scale": 2.0}, ValueError, "scale is for a result of 8 bits, and out_dtype is None"),
    ({"scale": 1e300, "out_dtype": "float8_e5m2"}, ValueError, "scale must be a finite float32"),
    ({"scale": 10**400, "out_dtype": "float8_e5m2"}, ValueError, "scale must be a finite float32"),
    (
        {"scale": 1e-39, "out_dtype": "float8_e5m2"},
        ValueError,
        "scale must be .* 1.18e-38 and more",
    ),
    ({"eps": 10**5000}, ValueError, "eps must be 0 or a positive float32.*got inf"),
    ({"scale": "2", "out_dtype": "float8_e5m2"}, TypeError, "scale must be a number.*got str"),
    (
        {"scale": jnp.ones((), jnp.bfloat16), "out_dtype": "float8_e5m2"},
        TypeError,
        "scale must be .*got bfloat16",
    ),
    ({"scale": jnp.ones(1), "out_dtype": "float8_e5m2"}, ValueError, r"got shape \(1,\)"),
]


@pytest.mark.parametrize(("arguments", "error", "text"), REFUSED)
def test_refused(arguments, error, text: str) -> None:
    with pytest.raises(error, match=text):
        jax_ptx.rms_norm(jnp.ones((2, 4)), jnp.ones(4), **arguments)


def test_options_that_jax_holds() -> None:
    x, w = jnp.ones((2, 4)), jnp.ones(4)
    y = jax_ptx.rms_norm(x, w, eps=jnp.float32(0.5), weight_offset=jnp.float32(1))
    np.testing.assert_array_equal(y, jax_ptx.rms_norm(x, w, eps=0.5, weight_offset=1.0))
    halves = np.asarray(0.5, jnp.bfloat16)[()], jnp.bfloat16(0.5), np.float16(0.5), np.array(0.5)
    for eps in halves:
        z = jax_ptx.rms_norm(x, w, eps=eps, weight_offset=np.int8(1))
        np.testing.assert_array_equal(z, y)


def test_a_tensor_of_pytorch_is_told_where_to_go() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    with pytest.raises(TypeError, match=r"got Tensor; jax_ptx\.torch\.rms_norm takes tensors"):
        jax_ptx.rms_norm(torch.ones(4))


def test_an_offset_without_a_weight_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"weight_offset=1\.0 is added to the weight, and there is"
    ):
        jax_ptx.rms_norm(jnp.ones((2, 4)), weight_offset=1.0)
