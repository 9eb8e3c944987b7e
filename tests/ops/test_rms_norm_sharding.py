"""Where rms_norm meets several devices: what is gathered, what is refused, what each mode returns."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_ptx
from tests.ops import oracle
from tests.ops.test_rms_norm_values import draw
from tests.tolerance import assert_close

GATHERS = ("all-gather", "all-to-all", "collective-permute")


def norm(x, w):
    return jax_ptx.rms_norm(x, w, eps=1e-5, implementation="ptx")


def loss(x, w):
    return (norm(x, w) ** 2).sum()


def mesh(kind: AxisType, shape=(8,), names=("d",)) -> jax.sharding.Mesh:
    return jax.make_mesh(shape, names, axis_types=(kind,) * len(shape))


def put(value, mesh, *spec):
    return jax.device_put(value, NamedSharding(mesh, P(*spec)))


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("shape", [(8, 4, 4), (16, 4)])
def test_sharded_rows_stay_where_they_are(kind: AxisType, shape) -> None:
    x, w = draw(shape, "float32"), draw(shape[-1], "float32", 1)
    m = mesh(kind)
    with jax.set_mesh(m):
        args = put(x, m, "d"), put(w, m)
        forward = jax.jit(norm).lower(*args).compile()
        assert not any(word in forward.as_text() for word in GATHERS)
        y = forward(*args)
        assert y.sharding.spec[0] == "d"
        assert_close(y, oracle.rms_norm(x, w, eps=1e-5), shape[-1])
        backward = jax.jit(jax.grad(loss, (0, 1))).lower(*args).compile()
        assert not any(word in backward.as_text() for word in GATHERS)
        dx, dw = backward(*args)
        assert dx.sharding.spec[0] == "d"
    alone = jax.grad(loss, (0, 1))(x, w)
    np.testing.assert_allclose(dx, alone[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(dw, alone[1], rtol=1e-4, atol=1e-5)


def test_two_mesh_axes_over_two_leading_dimensions() -> None:
    m = mesh(AxisType.Auto, (2, 4), ("a", "b"))
    x, w = draw((4, 8, 16), "float32"), draw(16, "float32", 1)
    args = put(x, m, "a", "b"), put(w, m)
    compiled = jax.jit(norm).lower(*args).compile()
    assert not any(word in compiled.as_text() for word in GATHERS)
    assert_close(compiled(*args), oracle.rms_norm(x, w, eps=1e-5), 16)


def test_a_sharded_feature_axis_is_gathered_under_auto_and_refused_when_explicit() -> None:
    x = jnp.array([[1.0, 1.0, 3.0, 3.0]])
    f = lambda x: jax_ptx.rms_norm(x, eps=0.0, implementation="ptx")
    auto = mesh(AxisType.Auto, (2,))
    y = jax.jit(f)(put(x, auto, None, "d"))
    np.testing.assert_allclose(y, [[0.4472136, 0.4472136, 1.3416408, 1.3416408]], rtol=1e-6)
    explicit = mesh(AxisType.Explicit, (2,))
    with jax.set_mesh(explicit):
        with pytest.raises(ValueError, match=r"the last axis of x is sharded.*jax.reshard x first"):
            f(put(x, explicit, None, "d"))
        with pytest.raises(ValueError, match="the last axis of weight is sharded"):
            norm(put(x, explicit), put(jnp.ones(4), explicit, "d"))


def test_a_weight_sharded_over_an_auto_mesh_gives_the_right_result() -> None:
    m = mesh(AxisType.Auto)
    x, w = draw((8, 16), "float32"), draw(16, "float32", 1)
    y = jax.jit(norm)(put(x, m, "d"), put(w, m, "d"))
    assert_close(y, oracle.rms_norm(x, w, eps=1e-5), 16)


def test_uneven_rows_are_right() -> None:
    m = mesh(AxisType.Auto)
    x, w = draw((60, 16), "float32"), draw(16, "float32", 1)

    def f(x, w):
        return norm(jax.lax.with_sharding_constraint(x, NamedSharding(m, P("d"))), w)

    assert_close(jax.jit(f)(x, w), oracle.rms_norm(x, w, eps=1e-5), 16)


@pytest.mark.parametrize("check_vma", [True, False])
def test_shard_map_in_a_scan(check_vma: bool) -> None:
    m = mesh(AxisType.Auto, (2,))
    x, w = draw((4, 6, 16), "float32"), draw(16, "float32", 1)

    def body(x, w):
        return jax.lax.scan(lambda y, _: (norm(y, w), None), x, length=2)[0]

    f = jax.shard_map(body, mesh=m, in_specs=(P("d"), P()), out_specs=P("d"), check_vma=check_vma)
    y = jax.jit(f)(x, w)
    twice = oracle.rms_norm(oracle.rms_norm(x, w, eps=1e-5), w, eps=1e-5)
    np.testing.assert_allclose(y, twice, rtol=1e-5, atol=1e-6)


def test_a_result_varies_over_the_union_of_its_operands_axes() -> None:
    m = mesh(AxisType.Auto, (2,))
    x, w = draw((3, 16), "float32"), draw((2, 16), "float32", 1)
    body = lambda x, w: norm(x, w[0])  # only the weight varies
    f = jax.shard_map(body, mesh=m, in_specs=(P(), P("d")), out_specs=P("d"))
    y = jax.jit(f)(x, w)
    assert_close(y.reshape(2, 3, 16), oracle.rms_norm(x, np.asarray(w)[:, None], eps=1e-5), 16)
    with pytest.raises(ValueError, match="out_specs"):
        jax.shard_map(body, mesh=m, in_specs=(P(), P("d")), out_specs=P())(x, w)


def test_the_weights_gradient_is_summed_once_over_the_mesh() -> None:
    m = mesh(AxisType.Auto, (4,))
    x, w = draw((8, 16), "float32"), draw(16, "float32", 1)
    f = jax.shard_map(norm, mesh=m, in_specs=(P("d"), P()), out_specs=P("d"))
    dw = jax.jit(jax.grad(lambda w: (f(x, w) ** 2).sum()))(w)
    np.testing.assert_allclose(dw, jax.grad(loss, 1)(x, w), rtol=1e-4, atol=1e-5)


def test_vmap_inside_shard_map_and_around_it() -> None:
    m = mesh(AxisType.Auto, (2,))
    x, w = draw((3, 4, 16), "float32"), draw((3, 16), "float32", 1)
    expected = oracle.rms_norm(x, np.asarray(w)[:, None], eps=1e-5)
    specs = {"mesh": m, "in_specs": (P(None, "d"), P()), "out_specs": P(None, "d")}
    assert_close(jax.jit(jax.shard_map(jax.vmap(norm), **specs))(x, w), expected, 16)
    specs = {"mesh": m, "in_specs": (P("d"), P()), "out_specs": P("d")}
    assert_close(jax.jit(jax.vmap(jax.shard_map(norm, **specs)))(x, w), expected, 16)


def test_a_users_kernel_on_a_sharded_array_needs_shard_map() -> None:
    from jax_ptx import Tile, kernel, ptx
    from jax_ptx.types import f32

    @kernel(in_specs=(Tile("n", f32),), out_specs=(Tile("n", f32),), grid=(1, 1, 1))
    def nothing(x, y):
        ptx.ret()

    m = mesh(AxisType.Explicit)
    with (
        jax.set_mesh(m),
        pytest.raises(ValueError, match=r"nothing: operand 0 is .* jax.shard_map"),
    ):
        nothing(put(jnp.ones(8), m, "d"))
