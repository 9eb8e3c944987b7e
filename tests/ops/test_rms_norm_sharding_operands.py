"""Operands of which several devices have other parts than of x: a residual, a mapped weight."""

from __future__ import annotations

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jax_ptx
from tests.ops.test_rms_norm_sharding import GATHERS, mesh, put
from tests.ops.test_rms_norm_values import draw


@pytest.mark.parametrize("implementation", [None, "ptx"])
@pytest.mark.parametrize("specs", [((), ("d",)), (("d",), ()), (("d",), (None, "e"))])
def test_a_cotangent_is_sharded_as_its_operand_is(implementation, specs) -> None:
    m = mesh(AxisType.Explicit, (2, 4), ("d", "e"))
    args = draw((4, 4, 16), "float32"), draw((4, 4, 16), "float32", 1)
    f = lambda *a: jax_ptx.add_rms_norm(*a, implementation=implementation)
    loss = lambda *a: sum((v**3).sum() for v in f(*a))
    with jax.set_mesh(m):
        sharded = [put(v, m, *spec) for v, spec in zip(args, specs, strict=True)]
        forward = jax.jit(f).lower(*sharded).compile()
        assert not any(word in forward.as_text() for word in GATHERS)
        for index, operand in enumerate(sharded):
            got = jax.grad(loss, index)(*sharded)
            assert jax.typeof(got) == jax.typeof(operand)
            np.testing.assert_allclose(got, jax.grad(loss, index)(*args), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("specs", [((), ("d",)), (("d",), (None, "e"))])
def test_the_less_split_of_two_operands_is_sliced_under_an_automatic_mesh(specs) -> None:
    m = mesh(AxisType.Auto, (2, 4), ("d", "e"))
    args = draw((4, 4, 16), "float32"), draw((4, 4, 16), "float32", 1)
    f = functools.partial(jax_ptx.add_rms_norm, implementation="ptx")
    sharded = [put(v, m, *spec) for v, spec in zip(args, specs, strict=True)]
    compiled = jax.jit(f).lower(*sharded).compile()
    assert not any(word in compiled.as_text() for word in GATHERS)
    for value, alone in zip(compiled(*sharded), f(*args), strict=True):
        np.testing.assert_array_equal(value, alone)


@pytest.mark.parametrize("implementation", [None, "ptx", "xla"])
def test_a_residual_that_is_sharded_otherwise_is_refused_while_tracing(implementation) -> None:
    m = mesh(AxisType.Explicit, (2, 2), ("a", "b"))
    f = functools.partial(jax_ptx.add_rms_norm, implementation=implementation)
    x = jnp.ones((4, 4, 8))
    with jax.set_mesh(m):
        for of_x, of_residual in [(("b",), ("a",)), (("a",), (None, "a"))]:
            with pytest.raises(ValueError, match=r"add_rms_norm: residual must.*jax.reshard resid"):
                jax.eval_shape(f, put(x, m, *of_x), put(x, m, *of_residual))
        if implementation == "ptx":
            with pytest.raises(
                ValueError, match=r"add_rms_norm: the last axis of residual.*\[4,8@a\]"
            ):
                f(x[0], put(x[0], m, None, "a"))


@pytest.mark.parametrize("implementation", [None, "ptx"])
def test_the_gradient_of_what_weights_on_several_devices_share(implementation) -> None:
    m = mesh(AxisType.Explicit)
    x, w = draw((3, 16), "float32"), draw((8, 16), "float32", 1)
    f = functools.partial(jax_ptx.rms_norm, implementation=implementation)
    loss = lambda x, w: (jax.vmap(f, (None, 0))(x, w) ** 3).sum()
    with jax.set_mesh(m):
        args = put(x, m), put(w, m, "d")
        compiled = jax.jit(jax.grad(loss, (0, 1))).lower(*args).compile()
        assert not any(word in compiled.as_text() for word in GATHERS)
        got = compiled(*args)
        assert [jax.typeof(v) for v in got] == [jax.typeof(v) for v in args]
        alone = jax.typeof(jax.grad(loss)(*args))
        assert alone == jax.typeof(args[0])
    for value, expected in zip(got, jax.grad(loss, (0, 1))(x, w), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-4)


# x `[4, 8, 3, 16]` or `[8, 3, 16]`, its specification and the weight's, `[4, 16]`.
MAPPED = [
    ((4, 8, 3, 16), (None, "a"), ()),  # a mixture of experts: of each the rows are split
    ((4, 8, 3, 16), ("b", "a"), ("b",)),
    ((8, 3, 16), (("a", "b"),), ()),
]


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize(("shape", "x_spec", "w_spec"), MAPPED)
def test_rows_that_meet_mapped_weights_stay_where_they_are(kind, shape, x_spec, w_spec) -> None:
    x, w = draw(shape, "float32"), draw((4, 16), "float32", 1)

    def value_and_gradients(implementation):
        f = functools.partial(jax_ptx.rms_norm, implementation=implementation)
        f = jax.vmap(f, (0 if len(shape) == 4 else None, 0))
        return jax.jit(
            lambda x, w: (f(x, w), jax.grad(lambda *a: (f(*a) ** 3).sum(), (0, 1))(x, w))
        )

    m = mesh(kind, (4, 2), ("a", "b"))
    with jax.set_mesh(m):
        args = put(x, m, *x_spec), put(w, m, *w_spec)
        compiled = value_and_gradients("ptx").lower(*args).compile()
        text, got = compiled.as_text(), compiled(*args)
    assert not any(word in text for word in GATHERS)
    expected = value_and_gradients("xla")(x, w)
    for value, alone in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(value, alone, rtol=1e-4, atol=1e-4)


def test_mapped_weights_where_one_of_two_mesh_axes_is_manual() -> None:
    m = mesh(AxisType.Auto, (4, 2), ("a", "b"))
    x, w = draw((3, 8, 4, 16), "float32"), draw((3, 16), "float32", 1)
    f = jax.vmap(functools.partial(jax_ptx.rms_norm, implementation="ptx"))
    specs = {"in_specs": (P(None, "a"), P()), "out_specs": P(None, "a"), "axis_names": {"a"}}
    args = put(x, m, None, "a", "b"), put(w, m)
    compiled = jax.jit(jax.shard_map(f, mesh=m, **specs)).lower(*args).compile()
    assert not any(word in compiled.as_text() for word in GATHERS)
    np.testing.assert_array_equal(compiled(*args), f(x, w))


def test_mapped_weights_of_one_device_are_not_copied() -> None:
    f = jax.vmap(functools.partial(jax_ptx.rms_norm, implementation="ptx"))
    text = jax.jit(f).lower(jnp.ones((4, 8, 16)), jnp.ones((4, 16))).as_text()
    assert "broadcast_in_dim" not in text


@pytest.mark.parametrize("of_x", [("a",), ()])
def test_no_row_moves_for_a_weight_that_is_stored_in_parts(of_x) -> None:
    m = mesh(AxisType.Auto, (4, 2), ("a", "b"))
    args = draw((8, 4, 32), "float32"), draw((8, 4, 32), "float32", 1), draw(32, "float32", 2)
    sharded = [put(args[0], m, *of_x), put(args[1], m, *of_x), put(args[2], m, "b")]
    f = functools.partial(jax_ptx.add_rms_norm, implementation="ptx")
    loss = lambda *a: sum((v**3).sum() for v in f(*a))
    for function in (f, jax.grad(loss, (0, 1, 2))):
        compiled = jax.jit(function).lower(*sharded).compile()
        gathered = re.findall(r"= (\S+) all-gather", compiled.as_text())
        assert set(gathered) <= {"f32[32]{0}"}
        for value, alone in zip(compiled(*sharded), function(*args), strict=True):
            np.testing.assert_allclose(value, alone, rtol=1e-5, atol=1e-4)
