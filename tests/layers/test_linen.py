"""jax_ptx.flax.linen.RMSNorm in the place of flax.linen.RMSNorm."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

flax = pytest.importorskip("flax", reason="Flax is not installed")

import flax.linen as nn  # noqa: E402
from flax.linen import initializers  # noqa: E402

from jax_ptx.flax import linen  # noqa: E402
from tests.layers.compare import assert_same, launches, normal, uses_kernel  # noqa: E402

KEY = jax.random.key(1)
random_scale = initializers.normal(1.0)
FLOATS = (None, "float32", "bfloat16", "float16")
SHAPE = (3, 4, 6)


def both(**options: Any) -> tuple[nn.RMSNorm, linen.RMSNorm]:
    return nn.RMSNorm(**options), linen.RMSNorm(**options)


def check(x: jax.Array, kernel: bool | None = None, mask: Any = None, **options: Any) -> None:
    """The same parameters from init, and the same results from either's parameters."""
    original, ours = both(scale_init=random_scale, **options)
    # Compiled as one: quicker than one operation after the other.
    (expected, variables), (got, own_variables) = jax.jit(
        lambda x: [m.init_with_output(KEY, x, mask=mask) for m in (original, ours)]
    )(x)
    jax.tree.map(np.testing.assert_array_equal, own_variables, variables)
    assert_same(own_variables, variables)
    assert_same(got, expected)
    if kernel is not None:
        assert uses_kernel(lambda v, x: ours.apply(v, x, mask=mask), variables, x) == kernel


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("x_dtype", ["float32", "bfloat16"])
def test_dtypes(x_dtype: str, dtype: str | None) -> None:
    x = normal(0, (3, 16), x_dtype)
    for param_dtype in ("float32", "bfloat16"):
        as_it_is = (dtype or jnp.promote_types(x_dtype, param_dtype)) == x_dtype
        options = {"dtype": dtype, "param_dtype": param_dtype}
        check(x, kernel=as_it_is, **options)
        ours = linen.RMSNorm(**options, implementation="ptx")
        assert uses_kernel(ours.apply, {"params": {"scale": jnp.ones(16, param_dtype)}}, x)


@pytest.mark.parametrize(
    ("x_dtype", "dtype", "expected"),
    [("bfloat16", None, 0), ("float32", "bfloat16", 0), ("bfloat16", "bfloat16", 1)],
)
def test_launches_of_a_layer(x_dtype: str, dtype: str | None, expected: int) -> None:
    """One asked for, and none unasked where conversions would move more bytes than the formula."""
    variables = {"params": {"scale": jnp.ones(8)}}
    for implementation, most in ((None, expected), ("ptx", 1)):
        layer = linen.RMSNorm(dtype=dtype, implementation=implementation)
        assert launches(layer.apply, variables, jnp.ones((4, 8), x_dtype)) == most


@pytest.mark.parametrize("x_dtype", ["int32", "bool", "complex64"])
def test_other_dtypes(x_dtype: str) -> None:
    x = (normal(0, (4, 8)) * 3).astype(x_dtype)
    check(x, kernel=False)


def test_float64(x64: None) -> None:
    x = jnp.asarray(np.random.default_rng(0).standard_normal((4, 8)))
    check(x, kernel=True)
    check(x, kernel=False, dtype=jnp.float32)
    check(x.astype(jnp.float32), kernel=False, dtype=jnp.float32, param_dtype=jnp.float64)


@pytest.mark.parametrize(
    ("reduction_axes", "feature_axes", "kernel"),
    [
        ((-1,), (2,), True),
        ((-2, -1), (-2, -1), True),
        ((2, 1), 1, True),
        ((0, 1, 2), (2, 0), True),
        ((-1, 2), -1, True),
        (-1, (), True),
        (1, 1, False),
        ((0, 1), -1, False),
        (-1, (1, 2), False),
        ((), -1, False),
    ],
)
def test_axes(reduction_axes: Any, feature_axes: Any, kernel: bool) -> None:
    x = normal(0, SHAPE)
    check(x, kernel, reduction_axes=reduction_axes, feature_axes=feature_axes)


@pytest.mark.parametrize("axes", [3, -7, (0, 3), (2, -4)])
@pytest.mark.parametrize("name", ["reduction_axes", "feature_axes"])
def test_axes_that_x_does_not_have(name: str, axes: Any) -> None:
    for use_scale in (True, axes == (2, -4)):
        original, ours = both(**{name: axes}, use_scale=use_scale)
        x = jnp.ones((2, 3, 4))
        with pytest.raises((IndexError, ValueError, TypeError)) as caught:
            original.init(KEY, x)
        # Its own words for an axis that is named twice are of a reshape.
        known = caught.type if caught.type is not TypeError else ValueError
        with pytest.raises(known, match=f"RMSNorm: {name} must "):
            ours.init(KEY, x)


@pytest.mark.parametrize("reduction_axes", [1, (0, 2), (2, 0, 1)])
@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_ptx_transposes_for_the_kernel(reduction_axes: Any, dtype: str | None) -> None:
    x = normal(0, SHAPE)
    axes: Any = {"reduction_axes": reduction_axes, "feature_axes": reduction_axes}
    original = nn.RMSNorm(dtype=dtype, scale_init=random_scale, **axes)
    expected, variables = original.init_with_output(KEY, x)
    ours = linen.RMSNorm(dtype=dtype, implementation="ptx", **axes)
    assert_same(jax.jit(ours.apply)(variables, x), expected)
    assert launches(ours.apply, variables, x) == 1


def test_ptx_where_no_kernel_gives_the_values_is_an_error() -> None:
    x, scale = normal(0, SHAPE), {"params": {"scale": jnp.ones(6)}}
    cases: list[tuple[str, Any, dict[str, Any], Any]] = [
        ("a mask", x, {}, jnp.ones(6, bool)),
        ("axis_name", x, {"axis_name": "i"}, None),
        ("a mean over no axis", x, {"reduction_axes": ()}, None),
        (r"a weight on axes \(2,\) where the mean is over \(0,\)", x, {"reduction_axes": 0}, None),
        ("dtype complex64", x + 1j, {}, None),
        (
            "a mean computed in bfloat16",
            x.astype(jnp.bfloat16),
            {"force_float32_reductions": False},
            None,
        ),
        ("epsilon -1", x, {"epsilon": -1}, None),
        ("an epsilon that is not a number", x, {"epsilon": jnp.ones(1)}, None),
    ]
    for reason, value, options, mask in cases:
        layer = linen.RMSNorm(implementation="ptx", **options)
        with pytest.raises(NotImplementedError, match=f"none for {reason}.*; implementation=None"):
            layer.apply(scale, value, mask=mask)


@pytest.mark.parametrize("axes", [-1, 0])
def test_settings_are_checked_on_every_path(axes: int) -> None:
    options: Any = {"reduction_axes": axes, "feature_axes": axes}
    x, scale = normal(0, (8, 8)), {"params": {"scale": normal(1, (8,))}}
    with pytest.raises(ValueError, match="implementation must be 'ptx', 'xla' or None, got 'foo'"):
        linen.RMSNorm(implementation="foo", **options).apply(scale, x)  # pyright: ignore
    with pytest.raises(ValueError, match=r"weight_offset=1\.0 is added to the weight"):
        linen.RMSNorm(weight_offset=1.0, use_scale=False, **options).apply({}, x)
    for offset in ("1", True, jnp.ones(1), None):
        with pytest.raises(TypeError, match="weight_offset must be a real number known while trac"):
            linen.RMSNorm(weight_offset=offset, **options).apply(scale, x)  # pyright: ignore
    with pytest.raises(ValueError, match="weight_offset must be finite, got inf"):
        linen.RMSNorm(weight_offset=float("inf"), **options).apply(scale, x)
    expected = linen.RMSNorm(weight_offset=0.5, **options).apply(scale, x)
    for offset in (jnp.float32(0.5), np.float16(0.5), jnp.bfloat16(0.5), np.array(0.5)):
        layer = linen.RMSNorm(weight_offset=offset, **options)  # pyright: ignore
        np.testing.assert_array_equal(layer.apply(scale, x), expected)


@pytest.mark.parametrize(("reduction_axes", "kernel"), [(-1, True), (0, False)])
def test_without_a_scale_its_axes_do_not_matter(reduction_axes: Any, kernel: bool) -> None:
    x = normal(0, SHAPE)
    check(x, kernel, reduction_axes=reduction_axes, feature_axes=0, use_scale=False)


@pytest.mark.parametrize("reduction_axes", [-1, 1, (0, 1)])
def test_the_mean_is_over_what_the_mask_leaves(reduction_axes: Any) -> None:
    x = normal(0, SHAPE)
    mask = (normal(1, x.shape) > 0).at[:, :1].set(True).at[..., :1].set(True)
    holes = jnp.where(mask, x, jnp.nan)
    layer = linen.RMSNorm(reduction_axes=reduction_axes)
    y, _ = jax.jit(layer.init_with_output)(KEY, holes, mask=mask)
    squares = np.mean(np.square(y), reduction_axes, where=np.asarray(mask))
    np.testing.assert_allclose(squares, 1, rtol=2e-3)
    check(x, False, mask, reduction_axes=reduction_axes)


def test_a_mask_of_numbers_that_broadcasts() -> None:
    check(normal(0, SHAPE), False, jnp.ones(6, jnp.int32).at[2].set(0))


@pytest.mark.parametrize("force", [True, False])
@pytest.mark.parametrize("dtype", [None, "float32", "bfloat16"])
def test_reductions_in_narrow_dtypes(dtype: str | None, force: bool) -> None:
    x = normal(0, (3, 16), jnp.bfloat16)
    original, ours = both(dtype=dtype, param_dtype=jnp.bfloat16, force_float32_reductions=force)
    variables = original.init(KEY, x)
    got, expected = ours.apply(variables, x), original.apply(variables, x)
    assert got.dtype == expected.dtype
    # A mean that is summed and rounded in bfloat16 is a few of its units off.
    np.testing.assert_allclose(np.float32(got), np.float32(expected), rtol=4 * 2**-8)


def test_use_fast_variance_makes_no_difference_without_a_mean() -> None:
    check(normal(0, (3, 8)) + 100, True, use_fast_variance=False, epsilon=1e-3)


@pytest.mark.parametrize("groups", [None, [[0, 1], [2, 3]]])
def test_the_mean_is_over_mapped_axes_too(groups: Any) -> None:
    x = normal(0, (4, 3, 8)) * jnp.arange(1.0, 5)[:, None, None]
    original, ours = both(axis_name="i", axis_index_groups=groups)
    variables = nn.RMSNorm().init(KEY, x[0])
    mapped = jax.pmap if groups else jax.vmap
    results = [
        mapped(lambda x, m=m: m.apply(variables, x), axis_name="i")(x) for m in (original, ours)
    ]
    assert_same(results[1], results[0])
    assert float(jnp.abs(results[1] - nn.RMSNorm().apply(variables, x)).max()) > 0.1


def loss(module: Any, variables: Any, x: jax.Array) -> jax.Array:
    y = module.apply(variables, x).astype(jnp.float32)
    return (y * jnp.sin(jnp.arange(y.size, dtype=jnp.float32)).reshape(y.shape)).sum()


@pytest.mark.parametrize(
    ("axes", "dtype", "x_dtype"),
    [
        (-1, "bfloat16", "bfloat16"),
        (-1, "bfloat16", "float32"),
        (-1, None, "bfloat16"),
        ((1, 2), None, "float32"),
        (1, "bfloat16", "bfloat16"),
    ],
)
def test_gradients_have_the_dtypes_of_their_variables(
    axes: Any, dtype: str | None, x_dtype: str
) -> None:
    x = normal(0, (3, 4, 6), x_dtype)
    original, ours = both(
        dtype=dtype, reduction_axes=axes, feature_axes=axes, scale_init=random_scale
    )
    variables = jax.jit(ours.init)(KEY, x)
    assert variables["params"]["scale"].dtype == jnp.float32
    grad = jax.jit(jax.grad(loss, (1, 2)), static_argnums=0)
    grads = [grad(m, variables, x) for m in (ours, original)]
    assert grads[0][0]["params"]["scale"].dtype == jnp.float32
    assert grads[0][1].dtype == x.dtype
    for got, expected in zip(*map(jax.tree.leaves, grads), strict=True):
        # The original's backward pass rounds to bfloat16 between its steps.
        limit = 0.02 if dtype or x_dtype == "bfloat16" else 1e-5
        np.testing.assert_allclose(np.float32(got), np.float32(expected), rtol=limit, atol=limit)


def test_transformations() -> None:
    x = normal(0, (3, 5, 8))
    original, ours = both(scale_init=random_scale)
    variables = original.init(KEY, x)
    weights = jax.tree.map(lambda v: jnp.stack([v, 2 * v, 3 * v]), variables)
    assert_same(jax.jit(ours.apply)(variables, x), original.apply(variables, x))
    for in_axes in ((0, 0), (0, None)):
        got, expected = (jax.jit(jax.vmap(m.apply, in_axes))(weights, x) for m in (ours, original))
        assert_same(got, expected)
    tangents = [jax.jvp(lambda x, m=m: m.apply(variables, x), (x,), (x,)) for m in (ours, original)]
    np.testing.assert_allclose(tangents[0][1], tangents[1][1], atol=1e-5)


def test_partitioning_metadata() -> None:
    boxed = nn.with_partitioning(random_scale, ("embed",))
    x = normal(0, (3, 8))
    original, ours = (m.init(KEY, x) for m in both(scale_init=boxed))
    scale = ours["params"]["scale"]
    assert isinstance(scale, nn.Partitioned)
    assert scale.names == ("embed",)
    assert jax.tree.structure(ours) == jax.tree.structure(original)
    assert nn.get_partition_spec(ours) == nn.get_partition_spec(original)
    assert_same(linen.RMSNorm().apply(ours, x), nn.RMSNorm().apply(original, x))


def test_variables_move_both_ways() -> None:
    class Block(nn.Module):
        norm: type[nn.RMSNorm]

        @nn.compact
        def __call__(self, x):
            return self.norm(name="final")(nn.Dense(8)(self.norm(scale_init=random_scale)(x)))

    x = normal(0, (3, 8))
    original, ours = Block(nn.RMSNorm), Block(linen.RMSNorm)
    kept = original.init(KEY, x)
    assert set(ours.init(KEY, x)["params"]) == {"RMSNorm_0", "Dense_0", "final"}
    jax.tree.map(np.testing.assert_array_equal, ours.init(KEY, x), kept)
    data = flax.serialization.to_bytes(kept)
    restored = flax.serialization.from_bytes(ours.init(jax.random.key(7), x), data)
    assert_same(ours.apply(restored, x), original.apply(kept, x))
    data = flax.serialization.to_bytes(ours.init(KEY, x))
    restored = flax.serialization.from_bytes(original.init(jax.random.key(7), x), data)
    assert_same(original.apply(restored, x), ours.apply(kept, x))


def test_it_is_the_originals_subclass() -> None:
    layer = linen.RMSNorm(epsilon=1e-3)
    assert isinstance(layer, nn.RMSNorm)
    original = {name: f.default for name, f in nn.RMSNorm.__dataclass_fields__.items()}
    ours = {name: f.default for name, f in linen.RMSNorm.__dataclass_fields__.items()}
    assert {name: ours[name] for name in original} == original
    assert set(ours) - set(original) == {"weight_offset", "implementation"}
    assert "RMSNorm" in nn.tabulate(layer, KEY)(normal(0, (2, 8)))


@pytest.mark.parametrize("axes", [-1, 0])
def test_a_weight_offset(axes: int) -> None:
    x = normal(0, (8, 8), jnp.bfloat16)
    options: Any = {"dtype": jnp.bfloat16, "reduction_axes": axes, "feature_axes": axes}
    ours = linen.RMSNorm(weight_offset=1.0, scale_init=initializers.zeros, **options)
    y, variables = ours.init_with_output(KEY, x)
    np.testing.assert_array_equal(variables["params"]["scale"], 0)
    assert_same(y, nn.RMSNorm(**options).init_with_output(KEY, x)[0])
    # In float32, also for a bfloat16 scale: 1 + 2**-10 is none.
    small = {"params": {"scale": jnp.full(8, 2**-10, jnp.bfloat16)}}
    exact = {"params": {"scale": jnp.full(8, 1 + 2**-10)}}
    expected = nn.RMSNorm(**options).apply(exact, 1000 * x)
    assert_same(ours.apply(small, 1000 * x), expected)


@pytest.mark.parametrize("implementation", ["ptx", "xla"])
def test_implementations(implementation: Any) -> None:
    x = normal(0, (4, 32), jnp.bfloat16)
    original = nn.RMSNorm(dtype=jnp.bfloat16, scale_init=random_scale)
    ours = linen.RMSNorm(dtype=jnp.bfloat16, scale_init=random_scale, implementation=implementation)
    expected, variables = original.init_with_output(KEY, x)
    assert_same(ours.apply(variables, x), expected)
    assert uses_kernel(ours.apply, variables, x) == (implementation == "ptx")


def test_an_epsilon_that_is_no_constant() -> None:
    x, variables = normal(0, (4, 8)), {"params": {"scale": jnp.ones(8)}}

    def apply(eps: Any) -> jax.Array:
        return linen.RMSNorm(epsilon=eps).apply(variables, x)

    assert_same(jax.jit(apply)(1e-2), apply(1e-2))
    assert not uses_kernel(apply, 1e-2)
    assert jnp.isnan(apply(-100.0)).all()  # as the original's


def test_a_row_that_is_sharded_is_not_refused() -> None:
    mesh = jax.make_mesh((2, 4), ("a", "b"))
    x, original = normal(0, (4, 6, 8)), nn.RMSNorm()
    variables = original.init(KEY, x)
    expected = original.apply(variables, x)
    for spec, kernel in (((None, None, "b"), False), (("a", None, None), True)):
        with jax.set_mesh(mesh):
            sharded = jax.device_put(x, jax.NamedSharding(mesh, jax.P(*spec)))
            assert_same(jax.jit(linen.RMSNorm().apply)(variables, sharded), expected)
            assert uses_kernel(linen.RMSNorm().apply, variables, sharded) == kernel
            if not kernel:
                with pytest.raises(
                    NotImplementedError, match="none for rows or a weight that an exp"
                ):
                    jax.eval_shape(linen.RMSNorm(implementation="ptx").apply, variables, sharded)


# ---- the cases of Flax's own tests of RMSNorm ----


@pytest.mark.parametrize("reduction_axes", [-1, 1, (1, 2)])
def test_flax_case_rms_norm(reduction_axes: Any) -> None:
    x = normal(0, (2, 3, 4))
    layer = linen.RMSNorm(use_scale=False, epsilon=1e-5, reduction_axes=reduction_axes)
    y, variables = layer.init_with_output(KEY, x)
    assert variables == {}
    mean = np.mean(np.square(np.float64(x)), reduction_axes, keepdims=True)
    np.testing.assert_allclose(y, x / np.sqrt(mean + 1e-5), atol=1e-5)


def test_flax_case_rms_norm_mask() -> None:
    x = normal(0, (3, 4, 5))
    mask = (normal(1, x.shape) > 0).at[..., 0].set(True)
    holes = jnp.where(mask, x, jnp.nan)
    y, _ = jax.jit(linen.RMSNorm().init_with_output)(KEY, holes, mask=mask)
    np.testing.assert_allclose(np.square(y).mean(-1, where=np.asarray(mask)), 1, atol=1e-4)
