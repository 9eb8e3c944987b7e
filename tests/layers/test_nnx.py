"""jax_ptx.flax.nnx.RMSNorm in the place of flax.nnx.RMSNorm."""

from __future__ import annotations

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("flax", reason="Flax is not installed")

import flax.linen as linen
from flax import nnx

from jax_ptx.flax import linen as ptx_linen
from jax_ptx.flax import nnx as ptx_nnx
from tests.layers.compare import assert_same, launches, normal, uses_kernel

random_scale = nnx.initializers.normal(1.0)
N = 8


def build(cls: Any, n: int = N, **options: Any) -> Any:
    return cls(n, rngs=nnx.Rngs(3), **options)


def both(n: int = N, **options: Any) -> tuple[Any, Any]:
    options = {"scale_init": random_scale, **options}
    return build(nnx.RMSNorm, n, **options), build(ptx_nnx.RMSNorm, n, **options)


def check(x: jax.Array, kernel: bool, mask: Any = None, n: int = N, **options: Any) -> None:
    original, ours = both(n, **options)
    assert_same(nnx.to_pure_dict(nnx.state(ours)), nnx.to_pure_dict(nnx.state(original)))
    expected, got = jax.jit(lambda x: [m(x, mask=mask) for m in (original, ours)])(x)
    assert_same(got, expected)
    assert uses_kernel(lambda x: ours(x, mask=mask), x) == kernel


@pytest.mark.parametrize("param_dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("dtype", [None, "bfloat16"])
@pytest.mark.parametrize("x_dtype", ["float32", "bfloat16", "int32"])
def test_dtypes(x_dtype: str, dtype: str | None, param_dtype: str) -> None:
    x = (4 * normal(0, (3, N))).astype(x_dtype)
    # The input is promoted first, which a kernel would wait for.
    as_it_is = (dtype or jnp.promote_types(x_dtype, param_dtype)) == x_dtype
    check(x, as_it_is, dtype=dtype, param_dtype=param_dtype)
    asked = build(ptx_nnx.RMSNorm, dtype=dtype, param_dtype=param_dtype, implementation="ptx")
    assert uses_kernel(asked, x)


@pytest.mark.parametrize(
    ("reduction_axes", "feature_axes", "kernel"),
    [((1, 2), -1, True), (1, 1, False), (0, -1, False), (-1, (1,), False)],
)
def test_axes(reduction_axes: Any, feature_axes: Any, kernel: bool) -> None:
    n = N if feature_axes == -1 else 4
    options = {"reduction_axes": reduction_axes, "feature_axes": feature_axes}
    check(normal(0, (3, 4, N)), kernel, n=n, **options)


def test_axes_that_x_does_not_have() -> None:
    for axes, message in (
        ((0, 1), "must be axes of x, which has rank 1"),
        ((0, -2), "must differ"),
    ):
        layer = ptx_nnx.RMSNorm(4, feature_axes=axes, rngs=nnx.Rngs(0))
        with pytest.raises(ValueError, match=f"RMSNorm: feature_axes {message}"):
            layer(jnp.ones(4))


def test_other_options() -> None:
    x = normal(0, (3, N))
    check(x, True, use_scale=False, epsilon=1e-2)
    check(x, False, mask=jnp.arange(N) < 5)
    check(x, True, promote_dtype=lambda arrays, dtype: arrays, use_fast_variance=False)
    # As it comes, a bfloat16 input gives a float32 result.
    check(x.astype(jnp.bfloat16), False, promote_dtype=lambda arrays, dtype: arrays)


def test_the_mean_is_over_mapped_axes_too() -> None:
    x = normal(0, (4, 3, N)) * jnp.arange(1.0, 5)[:, None, None]
    got, expected = (jax.vmap(m, axis_name="i")(x) for m in both(axis_name="i")[::-1])
    assert_same(got, expected)


def test_it_is_the_originals_subclass() -> None:
    layer = build(ptx_nnx.RMSNorm)
    assert isinstance(layer, nnx.RMSNorm)
    assert set(vars(layer)) - set(vars(build(nnx.RMSNorm))) == {"weight_offset", "implementation"}
    with pytest.raises(TypeError, match="rngs"):
        ptx_nnx.RMSNorm(N)
    with pytest.raises(TypeError, match="epsilons"):
        build(ptx_nnx.RMSNorm, epsilons=1e-3)
    parameters = inspect.signature(nnx.RMSNorm.__init__).parameters.values()
    defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
    own = inspect.signature(ptx_nnx.RMSNorm.__init__).parameters
    assert set(own) == {p.name for p in parameters} | {"weight_offset", "implementation"}
    assert {name: own[name].default for name in defaults} == defaults
    assert len(defaults) >= 12
    layers = [build(cls, **defaults) for cls in (nnx.RMSNorm, ptx_nnx.RMSNorm)]
    for name in set(vars(layers[0])) - {"scale", "_pytree__nodes", "_pytree__state"}:
        assert getattr(layers[1], name) == getattr(layers[0], name), name


def test_gradients_of_a_bfloat16_layer() -> None:
    x = normal(0, (3, N), jnp.bfloat16)

    @nnx.jit
    def gradient(model: Any) -> Any:
        return nnx.grad(lambda m: (m(x).astype(jnp.float32) ** 3).sum())(model)

    expected, got = map(gradient, both(dtype=jnp.bfloat16))
    assert got["scale"].dtype == jnp.float32
    np.testing.assert_allclose(got["scale"][...], expected["scale"][...], rtol=0.02, atol=0.05)


def test_split_merge_and_states_that_move_both_ways(tmp_path: Any) -> None:
    x = normal(0, (3, N))
    original, ours = both()
    graph, state = nnx.split(ours)
    assert_same(nnx.merge(graph, state)(x), ours(x))
    fresh = [m.__class__(N, rngs=nnx.Rngs(0)) for m in (original, ours)]
    nnx.update(fresh[0], state)
    nnx.update(fresh[1], nnx.state(original))
    for model in fresh:
        assert_same(model(x), original(x))
    # Through a file, as a checkpoint.
    pure = nnx.to_pure_dict(nnx.state(original))
    np.savez(tmp_path / "state.npz", **pure)
    with np.load(tmp_path / "state.npz") as loaded:
        restored = nnx.split(build(ptx_nnx.RMSNorm))[1]
        nnx.replace_by_pure_dict(restored, {k: jnp.asarray(v) for k, v in loaded.items()})
    assert_same(nnx.merge(graph, restored)(x), original(x))


def test_it_maps_and_scans_over_layers() -> None:
    x = normal(0, (3, N))

    def stack(cls: Any) -> jax.Array:
        @nnx.split_rngs(splits=2)
        @nnx.vmap(in_axes=(0,), out_axes=0)
        def create(rngs: nnx.Rngs) -> Any:
            return cls(N, scale_init=random_scale, rngs=rngs)

        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        def forward(x: jax.Array, layer: Any) -> jax.Array:
            return layer(x)

        return forward(x, create(nnx.Rngs(0)))

    assert_same(stack(ptx_nnx.RMSNorm), stack(nnx.RMSNorm), units=32)


@pytest.mark.parametrize("key", ["scale_metadata", "init"])
def test_partitioning_metadata(key: str) -> None:
    mesh = jax.make_mesh((1,), ("embed",), axis_types=(jax.sharding.AxisType.Auto,))
    options: dict[str, Any] = {"scale_metadata": {"out_sharding": ("embed",)}}
    if key == "init":
        options = {"scale_init": nnx.with_partitioning(random_scale, ("embed",))}
    with jax.set_mesh(mesh):
        original, ours = both(**options)
    assert ours.scale.out_sharding == original.scale.out_sharding == ("embed",)
    assert nnx.get_partition_spec(nnx.state(ours)) == nnx.get_partition_spec(nnx.state(original))


def test_a_weight_offset_and_implementations() -> None:
    x = normal(0, (4, N))
    zeros = {"weight_offset": 1.0, "scale_init": nnx.initializers.zeros}
    for implementation in (None, "ptx", "xla"):
        layer = build(ptx_nnx.RMSNorm, implementation=implementation, **zeros)
        assert_same(layer(x), build(nnx.RMSNorm)(x))
        assert uses_kernel(layer, x) == (implementation != "xla")


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
@pytest.mark.parametrize("x_dtype", ["float32", "bfloat16"])
def test_launches_of_a_layer(x_dtype: str, dtype: str | None) -> None:
    """One asked for, and none unasked where conversions would move more bytes than the formula."""
    for implementation in (None, "ptx"):
        layer = build(ptx_nnx.RMSNorm, dtype=dtype, implementation=implementation)
        expected = implementation == "ptx" or x_dtype == (dtype or "float32")
        assert launches(layer, jnp.ones((4, N), x_dtype)) == expected


def test_what_the_original_refuses_is_refused() -> None:
    x = normal(0, (3, N))
    for mask in ("a", jnp.ones(N)):  # 0 and -inf, added to logits, are no mask either
        for layer in both():
            with pytest.raises((TypeError, ValueError)):
                layer(x, mask=mask)
    for options, wrong in (
        ({}, "a weight of shape .* does not fit an x of shape"),
        ({"reduction_axes": 1.5}, "reduction_axes must be an integer or several, got 1.5"),
        ({"epsilon": None}, "the epsilon must be a number, got None"),
    ):
        layer = build(ptx_nnx.RMSNorm, **options)
        with pytest.raises(TypeError, match=f"RMSNorm: {wrong}"):
            layer(x[:, :-1])


@pytest.mark.parametrize("x", [[1.0, 2.0, 3.0], (1, 2, 3), np.ones((2, 3)), [[True, False, True]]])
def test_what_is_no_array_of_jax(x: Any) -> None:
    got, expected = (layer(x) for layer in both(n=3)[::-1])
    assert_same(got, expected)


def test_a_dtype_that_jax_narrows(recwarn: pytest.WarningsRecorder) -> None:
    x = normal(0, (3, N))
    got, expected = (layer(x) for layer in both(dtype=float)[::-1])
    assert_same(got, expected)
    assert not [str(w.message) for w in recwarn if "float64" in str(w.message)]


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="implementation must be 'ptx', 'xla' or None, got 'foo'"):
        build(ptx_nnx.RMSNorm, implementation="foo")
    layer = build(ptx_nnx.RMSNorm)
    layer.implementation = "foo"
    with pytest.raises(ValueError, match="got 'foo'"):
        layer(normal(0, (3, N)))
    with pytest.raises(ValueError, match=r"weight_offset=1\.0 is added to the weight"):
        build(ptx_nnx.RMSNorm, weight_offset=1, use_scale=False)
    assert build(ptx_nnx.RMSNorm, weight_offset=jnp.float32(1)).weight_offset == 1.0
    with pytest.raises(NotImplementedError, match="none for a mask"):
        build(ptx_nnx.RMSNorm, implementation="ptx")(normal(0, (3, N)), jnp.ones(N, bool))


def test_a_built_layer_of_flaxs_given_the_class() -> None:
    layer, x = build(nnx.RMSNorm, scale_init=random_scale), normal(0, (3, N))
    expected = layer(x)
    layer.__class__ = ptx_nnx.RMSNorm
    assert_same(layer(x), expected)


# ---- the cases of Flax's own tests of RMSNorm ----


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16])
@pytest.mark.parametrize("param_dtype", [jnp.float32, jnp.float16])
@pytest.mark.parametrize("mask", [None, np.array([True, False, True, False, True])])
def test_flax_case_nnx_and_linen_agree(dtype: Any, param_dtype: Any, mask: Any) -> None:
    x = normal(0, (10, 5))
    options = {"dtype": dtype, "param_dtype": param_dtype, "use_fast_variance": mask is None}
    layer = build(ptx_nnx.RMSNorm, 5, promote_dtype=lambda arrays, **_: arrays, **options)
    variables = {"params": nnx.to_pure_dict(nnx.state(layer))}
    got = jax.jit(layer)(x, mask=mask)
    linens = [cls(**options) for cls in (ptx_linen.RMSNorm, linen.RMSNorm)]
    same, expected = jax.jit(lambda x: [m.apply(variables, x, mask=mask) for m in linens])(x)
    np.testing.assert_array_equal(got, same)
    assert_same(got, expected)


def test_flax_case_layers_of_other_initialisers_have_one_graph() -> None:
    zeros, ones = nnx.initializers.zeros, nnx.initializers.ones
    graphs = [nnx.graphdef(build(ptx_nnx.RMSNorm, scale_init=init)) for init in (zeros, ones)]
    assert graphs[0] == graphs[1]
