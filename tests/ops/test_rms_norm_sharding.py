"""Where rms_norm meets several devices: what is gathered, what is refused, what each mode returns."""

from __future__ import annotations

import functools
import re

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


# Rows of each element whose number no number of devices divides: those are never cut, the mapped ones are.
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("shape", [(16, 12), (16, 11, 12), (16, 3, 5, 12)])
@pytest.mark.parametrize("mapped_weight", [False, True])
def test_gradients_of_mapped_rows_stay_where_those_are(kind, shape, mapped_weight: bool) -> None:
    x = draw(shape, "float32")
    w = draw((16, 12) if mapped_weight else 12, "float32", 1)
    f = jax.vmap(jax.grad(loss, (0, 1)), (0, 0 if mapped_weight else None))
    m = mesh(kind)
    with jax.set_mesh(m):
        args = put(x, m, "d"), put(w, m, *["d"] * mapped_weight)
        compiled = jax.jit(f).lower(*args).compile()
        assert not any(word in compiled.as_text() for word in (*GATHERS, "all-reduce"))
        got = compiled(*args)
        assert [value.sharding.spec[0] for value in got] == ["d", "d"]
    for value, alone in zip(got, f(x, w), strict=True):
        np.testing.assert_allclose(value, alone, rtol=1e-4, atol=1e-5)


def test_operands_that_are_reduced_go_the_way_of_the_formula() -> None:
    m = mesh(AxisType.Explicit)
    reduced = lambda value: jax.device_put(value, NamedSharding(m, P(reduced={"d"})))
    x, w = draw((8, 16), "float32"), draw(16, "float32", 1)
    with jax.set_mesh(m):
        args = reduced(x), reduced(w)
        y = jax.jit(jax_ptx.rms_norm)(*args)
        with pytest.raises(ValueError, match=r"x is reduced.*jax.reshard it first, or leave impl"):
            jax.jit(norm)(*args)
    assert y.sharding.spec.reduced == {"d"}
    np.testing.assert_allclose(y, jax_ptx.rms_norm(x, w), rtol=1e-5)


def test_a_mesh_of_more_devices_than_there_are_counts() -> None:
    """Rows are cut for it, as in an export for a larger machine."""
    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((64, 4), (4,))]
    text = lambda: str(jax.make_jaxpr(jax.grad(loss, 1))(*args))
    assert "blocks=(1, 8)" in text()
    larger = jax.sharding.AbstractMesh((16,), ("a",), axis_types=(AxisType.Auto,))
    with jax.sharding.use_abstract_mesh(larger):
        assert "blocks=(1, 16)" in text()


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
        # By the formula a weight over the axis that the rows are over would need a gather, too.
        with pytest.raises(ValueError, match="the last axis of weight is sharded"):
            jax_ptx.rms_norm(put(jnp.ones((2, 4)), explicit, "d"), put(jnp.ones(4), explicit, "d"))


FEATURES = [
    # mesh, x's specification, the weight's
    ((8,), (None, "m"), ("m",)),
    ((8,), (None, "m"), ()),
    ((2, 4), ("d", "m"), ("m",)),
    ((2, 4), ("d", "m"), ()),
    ((2, 4), ("d", None), ("m",)),
]


@pytest.mark.parametrize(("shape", "x_spec", "w_spec"), FEATURES)
@pytest.mark.parametrize("op", ["rms_norm", "add_rms_norm"])
def test_a_feature_axis_over_an_explicit_mesh_gathers_no_row(op, shape, x_spec, w_spec) -> None:
    m = mesh(AxisType.Explicit, shape, ("d", "m")[-len(shape) :])
    x, r, w = draw((4, 32), "float32"), draw((4, 32), "float32", 1), draw(32, "float32", 2)
    if op == "rms_norm":
        f = lambda x, r, w: (jax_ptx.rms_norm(x + r, w, weight_offset=1.0),)
    else:
        f = lambda *a: jax_ptx.add_rms_norm(*a, weight_offset=1.0)
    value_and_grads = lambda *a: (f(*a), jax.grad(lambda *a: (f(*a)[0] ** 2).sum(), (0, 2))(*a))
    with jax.set_mesh(m):
        args = put(x, m, *x_spec), put(r, m, *x_spec), put(w, m, *w_spec)
        compiled = jax.jit(value_and_grads).lower(*args).compile()
        text, got = compiled.as_text(), compiled(*args)
    assert "all-to-all" not in text
    assert "collective-permute" not in text
    if x_spec[-1] == "m":
        assert "all-reduce" in text
        # dw of a replicated weight is the same everywhere: the only thing that may be gathered.
        gathered = re.findall(r"(\S+) all-gather\(", text)
        assert all(t.startswith("f32[32]") for t in gathered), gathered
        assert not (gathered and w_spec)
        assert got[0][0].sharding.spec == P(*x_spec)
    for value, alone in zip(
        jax.tree.leaves(got), jax.tree.leaves(value_and_grads(x, r, w)), strict=True
    ):
        np.testing.assert_allclose(value, alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_a_residual_addition_stays_where_its_rows_are(kind: AxisType) -> None:
    m = mesh(kind)
    x, r, w = draw((8, 4, 16), "float32"), draw((8, 4, 16), "float32", 1), draw(16, "float32", 2)
    f = functools.partial(jax_ptx.add_rms_norm, implementation="ptx")
    value_and_grads = lambda *a: (
        f(*a),
        jax.grad(lambda *a: sum((v**2).sum() for v in f(*a)), (0, 1, 2))(*a),
    )
    with jax.set_mesh(m):
        # A replicated residual is sliced, not x gathered.
        args = put(x, m, "d"), put(r, m, *["d"] * (kind == AxisType.Auto)), put(w, m)
        compiled = jax.jit(value_and_grads).lower(*args).compile()
        got = compiled(*args)
    assert all(value.sharding.spec[0] == "d" for value in got[0])
    if kind == AxisType.Auto:
        assert not any(word in compiled.as_text() for word in GATHERS)
    for value, alone in zip(
        jax.tree.leaves(got), jax.tree.leaves(value_and_grads(x, r, w)), strict=True
    ):
        np.testing.assert_allclose(value, alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("check_vma", [True, False])
def test_a_residual_addition_under_shard_map(check_vma: bool) -> None:
    m = mesh(AxisType.Auto, (2,))
    x, r, w = draw((4, 16), "float32"), draw((2, 16), "float32", 1), draw(16, "float32", 2)
    f = functools.partial(jax_ptx.add_rms_norm, implementation="ptx")
    # The residual is the same on every device: its gradient is summed over them.
    specs = {"in_specs": (P("d"), P(), P()), "out_specs": (P("d"), P("d")), "check_vma": check_vma}
    both = jax.shard_map(f, mesh=m, **specs)
    loss = lambda g: lambda x, r, w: sum((v**3).sum() for v in g(x, r, w))
    alone = lambda x, r, w: f(x, jnp.concatenate([r, r]), w)
    for value, expected in zip(jax.jit(both)(x, r, w), alone(x, r, w), strict=True):
        np.testing.assert_array_equal(value, expected)
    got = jax.jit(jax.grad(loss(both), (0, 1, 2)))(x, r, w)
    for value, expected in zip(got, jax.grad(loss(alone), (0, 1, 2))(x, r, w), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_an_8_bit_result_stays_where_its_rows_are(kind: AxisType) -> None:
    m = mesh(kind)
    x, w = draw((8, 4, 16), "float32"), draw(16, "float32", 1)
    f = lambda x, w, s: jax_ptx.rms_norm(
        x, w, out_dtype="float8_e4m3fn", scale=s, implementation="ptx"
    )
    with jax.set_mesh(m):
        args = put(x, m, "d"), put(w, m), jnp.float32(0.1)
        compiled = jax.jit(f).lower(*args).compile()
        assert not any(word in compiled.as_text() for word in GATHERS)
        q = compiled(*args)
        assert q.sharding.spec[0] == "d"
    np.testing.assert_array_equal(q.view(jnp.uint8), f(x, w, jnp.float32(0.1)).view(jnp.uint8))


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
