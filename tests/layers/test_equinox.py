"""jax_ptx.equinox.RMSNorm in the place of equinox.nn.RMSNorm."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

eqx = pytest.importorskip("equinox", reason="Equinox is not installed")

import jax_ptx.equinox as ptx_eqx  # noqa: E402
from tests.layers.compare import assert_same, launches, normal, uses_kernel  # noqa: E402

N = 8


def both(*args: Any, **options: Any) -> tuple[Any, Any]:
    """Layers of one random weight and bias."""
    layers = eqx.nn.RMSNorm(*args, **options), ptx_eqx.RMSNorm(*args, **options)
    assert_same(jax.tree.leaves(layers[1]), jax.tree.leaves(layers[0]))
    values = [
        normal(7 + i, leaf.shape, leaf.dtype) for i, leaf in enumerate(jax.tree.leaves(layers[0]))
    ]
    original, ours = (jax.tree.unflatten(jax.tree.structure(layer), values) for layer in layers)
    return original, ours


@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("use_weight", [True, False])
@pytest.mark.parametrize("shape", [N, (2, 3, N), ()])
def test_shapes_and_options(shape: Any, use_weight: bool, use_bias: bool) -> None:
    original, ours = both(shape, 1e-4, use_weight, use_bias)
    x = normal(0, (3, *original.shape))
    expected, got = jax.jit(lambda x: [jax.vmap(layer)(x) for layer in (original, ours)])(x)
    assert_same(got, expected)
    assert uses_kernel(jax.vmap(ours), x) == (shape != () and not use_bias)


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
@pytest.mark.parametrize("x_dtype", ["float32", "bfloat16", "float16", "complex64", "int32"])
def test_dtypes(x_dtype: str, dtype: Any) -> None:
    original, ours = both(N, use_bias=False, dtype=dtype)
    x = (3 * normal(0, (N,))).astype(x_dtype)
    if x_dtype == "complex64":
        x = x * (1 + 0.5j)  # whose squares have phases, which the original keeps
    if (
        x_dtype == "int32"
    ):  # cut off, not rounded: a value beside an integer may fall on either side
        np.testing.assert_allclose(ours(x), original(x), atol=1)
        assert ours(x).dtype == x.dtype
    else:
        assert_same(eqx.filter_jit(ours)(x), eqx.filter_jit(original)(x))
    assert uses_kernel(ours, x) == (x_dtype not in ("complex64", "int32"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("use_bias", [True, False])
def test_a_layer_launches_one_kernel(use_bias: bool, dtype: str) -> None:
    for implementation, most in ((None, int(not use_bias)), ("ptx", 1)):
        layer = ptx_eqx.RMSNorm(N, use_bias=use_bias, implementation=implementation)
        assert launches(jax.vmap(layer), jnp.ones((4, N), dtype)) == most


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_bias_that_cancels_is_added_before_the_rounding(dtype: str) -> None:
    x = normal(0, (N,), dtype)
    layers = [cls(N) for cls in (eqx.nn.RMSNorm, ptx_eqx.RMSNorm)]
    bias = -layers[0](x.astype(jnp.float32))
    for layer in layers:
        left = eqx.tree_at(lambda m: m.bias, layer, bias)(x)
        assert np.abs(np.float32(left)).max() < 1e-6


def test_settings_are_checked() -> None:
    for use_bias in (True, False):
        with pytest.raises(ValueError, match="implementation must be 'ptx', 'xla' or None, got 'f"):
            ptx_eqx.RMSNorm(N, use_bias=use_bias, implementation="foo")  # pyright: ignore
    with pytest.raises(ValueError, match=r"weight_offset=1\.0 is added to the weight"):
        ptx_eqx.RMSNorm(N, use_weight=False, weight_offset=1.0)
    layer = ptx_eqx.RMSNorm(N, weight_offset=jnp.float32(1))  # pyright: ignore
    assert_same(eqx.filter_jit(layer)(normal(0, (N,))), eqx.nn.RMSNorm(N)(normal(0, (N,))))
    with pytest.raises(NotImplementedError, match="none for dtype complex64"):
        ptx_eqx.RMSNorm(N, implementation="ptx")(jnp.ones(N, jnp.complex64))


def test_float64(x64: None) -> None:
    layer = ptx_eqx.RMSNorm(N, use_bias=False)
    assert layer.weight.dtype == jnp.float64
    x = normal(0, (N,), jnp.float64)
    assert_same(layer(x), eqx.nn.RMSNorm(N, use_bias=False)(x))
    narrow = x.astype(jnp.float32)
    assert_same(layer(narrow), eqx.nn.RMSNorm(N, use_bias=False)(narrow))


def test_states_and_keys_pass_through() -> None:
    _, ours = both(N)
    x, state = normal(0, (N,)), eqx.nn.State(ours)
    y, after = ours(x, state, key=jax.random.key(0))
    assert after is state
    assert_same(y, ours(x))
    assert ours(x, state=state)[1] is state
    model = eqx.nn.Sequential([ours, eqx.nn.Linear(N, 3, key=jax.random.key(0))])
    assert model(x).shape == (3,)


def test_another_shape_is_an_error() -> None:
    with pytest.raises(
        ValueError, match=r"x must have the layer's shape \(8,\), got \(3, 8\); jax.vm"
    ):
        ptx_eqx.RMSNorm(N)(jnp.ones((3, N)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients(dtype: str) -> None:
    layers = both(N, use_bias=False)
    x = normal(0, (5, N), dtype)

    @eqx.filter_jit
    def gradients(layer: Any) -> Any:
        total = lambda layer, x: (jax.vmap(layer)(x).astype(jnp.float32) ** 3).sum()
        return eqx.filter_grad(total)(layer, x).weight, jax.grad(total, 1)(layer, x)

    (dw, dx), (dw_ours, dx_ours) = map(gradients, layers)
    assert dw_ours.dtype == jnp.float32
    limit = 1e-5 if dtype == "float32" else 0.05
    np.testing.assert_allclose(dw_ours, dw, rtol=limit, atol=limit * np.abs(dw).max())
    np.testing.assert_allclose(
        np.float32(dx_ours), np.float32(dx), rtol=limit, atol=limit * np.float32(abs(dx)).max()
    )


def test_a_gradient_is_rounded_once() -> None:
    """As the original's, which converts x once: where two halves cancel, none of it is left otherwise."""
    x, dy = (normal(seed, (4, 32), "bfloat16") for seed in (0, 1))
    equal = jnp.full((4, 32), 1.37, jnp.bfloat16)
    original, ours = both(32)

    def gradient(layer: Any, x: jax.Array) -> jax.Array:
        return jax.vjp(jax.vmap(layer), x)[1](dy)[0]

    for layer_input in (x, equal):
        got, expected = (gradient(layer, layer_input) for layer in (ours, original))
        np.testing.assert_array_equal(got, expected)


def test_files_load_both_ways(tmp_path: Any) -> None:
    x = normal(0, (N,))
    original, ours = both(N)
    for saved, blank in ((original, ptx_eqx.RMSNorm(N)), (ours, eqx.nn.RMSNorm(N))):
        eqx.tree_serialise_leaves(tmp_path / "layer.eqx", saved)
        loaded = eqx.tree_deserialise_leaves(tmp_path / "layer.eqx", blank)
        assert_same(loaded(x), original(x))


def test_it_is_the_originals_subclass() -> None:
    original, ours = both(N)
    assert isinstance(ours, eqx.nn.RMSNorm)
    fields = [f.name for f in ours.__dataclass_fields__.values()]
    assert fields == [*original.__dataclass_fields__, "weight_offset", "implementation"]
    assert hash(jax.tree.structure(ours)) == hash(jax.tree.structure(both(N)[1]))


@pytest.mark.parametrize("implementation", [None, "ptx", "xla"])
def test_a_weight_offset_and_implementations(implementation: Any) -> None:
    x = normal(0, (3, N), jnp.bfloat16)
    layer = ptx_eqx.RMSNorm(N, use_bias=False, weight_offset=1.0, implementation=implementation)
    np.testing.assert_array_equal(layer.weight, 0)
    assert_same(jax.vmap(layer)(x), jax.vmap(eqx.nn.RMSNorm(N))(x))
    assert uses_kernel(jax.vmap(layer), x) == (implementation != "xla")
    biased = ptx_eqx.RMSNorm(N, weight_offset=0.5)
    np.testing.assert_array_equal(biased.weight, 0.5)
    assert_same(jax.vmap(biased)(x), jax.vmap(eqx.nn.RMSNorm(N))(x))


# ---- Equinox tests LayerNorm only; its cases, for RMSNorm ----


def test_equinox_case_several_axes_and_named_dtypes() -> None:
    layer = ptx_eqx.RMSNorm((3, 4, 5), use_weight=False, use_bias=False)
    assert layer.weight is None
    assert layer.bias is None
    x = normal(0, (3, 4, 5))
    expected = x / np.sqrt(np.mean(np.square(np.float64(x))) + 1e-5)
    np.testing.assert_allclose(layer(x), expected, rtol=1e-5)
    np.testing.assert_allclose(ptx_eqx.RMSNorm(128)(10 + normal(1, (128,))), 1, atol=0.4)
    assert ptx_eqx.RMSNorm(N, dtype=jnp.float16).weight.dtype == jnp.float16


def test_where_jax_does_not_promote() -> None:
    x = jnp.ones(4, jnp.bfloat16)
    ours, theirs = ptx_eqx.RMSNorm(4, use_bias=False), eqx.nn.RMSNorm(4, use_bias=False)
    with jax.numpy_dtype_promotion("strict"):
        np.testing.assert_array_equal(ours(x), theirs(x))
