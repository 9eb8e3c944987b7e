"""Batches whose elements are no multiple of the kernel's widest access; no derivative, no transpose."""

from __future__ import annotations

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from jax_ptx import Kernel, RunTime, Tile, export_checks, kernel, ptx, ptx_kernel, reg
from jax_ptx.kernel import Batch
from jax_ptx.types import f32, u32

SIX = Tile(6, f32)


def six(*, raw: bool = False) -> Kernel:
    """x + w of six elements, four and two at a time."""

    @kernel(in_specs=(SIX, SIX), out_specs=(SIX,))
    def added(x, w, y):
        if raw:
            ptx.raw("// unread")
        px, pw, py = ptx.global_ptrs(x, w, y)
        for offset, vector in ((0, "v4"), (16, "v2")):
            a, b = reg.array(f32, int(vector[1])), reg.array(f32, int(vector[1]))
            getattr(ptx.inst.ld.global_, vector).f32(a, ptx.addr(px, offset))
            getattr(ptx.inst.ld.global_, vector).f32(b, ptx.addr(pw, offset))
            for i in range(int(vector[1])):
                ptx.inst.add.rn.f32(a[i], a[i], b[i])
            getattr(ptx.inst.st.global_, vector).f32(ptx.addr(py, offset), a)

    return added


def from_text() -> object:
    return ptx_kernel(six().ptx(), in_specs=(SIX, SIX), out_specs=(SIX,))


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(7).standard_normal(shape, np.float32)


@pytest.mark.parametrize("make", [six, lambda: six(raw=True), from_text], ids=["", "raw", "text"])
@pytest.mark.parametrize("jit", [False, True])
def test_elements_that_the_widest_access_would_find_misaligned(make, jit) -> None:
    k = make()
    x, w = draw(5, 3, 6), draw(3, 6)
    wrap = jax.jit if jit else lambda f: f
    np.testing.assert_array_equal(wrap(k)(x[0, 0], w[0]), x[0, 0] + w[0])
    np.testing.assert_array_equal(wrap(jax.vmap(k, (0, None)))(x[0], w[0]), x[0] + w[0])
    inner_weight = wrap(jax.vmap(jax.vmap(k), (0, None)))(x, w)
    np.testing.assert_array_equal(inner_weight, x + w)
    outer = wrap(jax.vmap(jax.vmap(k, (0, None)), (None, 0)))(x[0], w)
    np.testing.assert_array_equal(outer, x[0] + w[:, None])
    columns = wrap(jax.vmap(k, (1, None), 1))(x[0].T.copy(), w[0])
    np.testing.assert_array_equal(columns, (x[0] + w[0]).T)
    assert jax.vmap(k)(x[:0, 0], x[:0, 0]).shape == (0, 6)


def test_padding_is_one_launch_and_touches_no_unmapped_tensor() -> None:
    f = jax.jit(jax.vmap(six(), (0, None)))
    text = f.trace(draw(5, 6), draw(6)).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("stablehlo.custom_call") == 1
    assert text.count("stablehlo.pad") == 1
    launch = six().launch(Batch((5,), ((True,), (False,), (True,))))
    assert launch.unit_bytes == (5 * 32, 24, 5 * 32)


def test_elements_that_are_a_multiple_are_not_copied() -> None:
    @kernel(in_specs=(Tile(8, f32),), out_specs=(Tile(8, f32),))
    def eight(x, y):
        ptx.inst.ld.global_.v4.f32(reg.array(f32, 4), ptx.addr(ptx.global_ptrs(x)[0]))

    text = jax.jit(jax.vmap(eight)).trace(draw(5, 8)).lower(lowering_platforms=("cuda",)).as_text()
    assert "stablehlo.pad" not in text
    assert "stablehlo.slice" not in text


def test_a_kernel_that_writes_in_place() -> None:
    @kernel(in_specs=(SIX,), out_specs=(SIX,), input_output_aliases={0: 0})
    def scaled(x, y):
        (p,) = ptx.global_ptrs(y)
        for offset, vector in ((0, "v4"), (16, "v2")):
            values = reg.array(f32, int(vector[1]))
            getattr(ptx.inst.ld.global_, vector).f32(values, ptx.addr(p, offset))
            for value in values:
                ptx.inst.add.rn.f32(value, value, value)
            getattr(ptx.inst.st.global_, vector).f32(ptx.addr(p, offset), values)

    x = draw(4, 3, 6)
    np.testing.assert_array_equal(jax.vmap(jax.vmap(scaled))(x), 2 * x)


def rows(width: int) -> Kernel:
    """2 x, row by row, by one access of 8 bytes and the rest one at a time."""
    tile = Tile(RunTime("rows"), width, f32)

    @kernel(in_specs=(tile,), out_specs=(tile,), grid=2**31 - 1, rows_per_cta=1 << 30)
    def doubled(x, y):
        px, py = ptx.global_ptrs(x, y)
        values = reg.array(f32, 2)
        value = reg.scalar(f32)
        ptx.inst.ld.global_.v2.f32(values, ptx.addr(px))
        for v in values:
            ptx.inst.add.rn.f32(v, v, v)
        ptx.inst.st.global_.v2.f32(ptx.addr(py), values)
        n = reg.scalar(u32)
        ptx.inst.cvt.u32.u64(n, ptx.run_time_dim("rows"))
        n = n * width
        for i in ptx.range_(2, n):
            ptx.inst.ld.global_.f32(value, ptx.addr(px + i * 4))
            ptx.inst.add.rn.f32(value, value, value)
            ptx.inst.st.global_.f32(ptx.addr(py + i * 4), value)

    return doubled


@pytest.mark.parametrize("n", [3, 4])
def test_run_time_dimensions(n) -> None:
    k = rows(3)
    x = draw(2, 5, n, 3)
    np.testing.assert_array_equal(jax.jit(jax.vmap(k))(x[0]), 2 * x[0])
    np.testing.assert_array_equal(jax.vmap(jax.vmap(k))(x), 2 * x)


def test_a_bare_derivative_and_a_bare_transpose_say_what_to_do() -> None:
    k = six()

    @jax.custom_jvp
    def f(x, w):
        return k(x, w)

    f.defjvp(lambda primals, tangents: (f(*primals), k(*tangents)))
    x, w = draw(6), draw(6)
    _, tangent = jax.jvp(f, (x, w), (x, w))
    np.testing.assert_array_equal(tangent, x + w)
    message = "added: a kernel has no transpose of its own.*jax.custom_vjp"
    with pytest.raises(NotImplementedError, match=message):
        jax.grad(lambda x: f(x, w).sum())(x)
    with pytest.raises(NotImplementedError, match=message):
        jax.linear_transpose(lambda x: k(x, w), x)(jnp.asarray(x))
    with pytest.raises(NotImplementedError, match="added: a kernel has no derivative of its own"):
        jax.grad(lambda x: k(x, w).sum())(x)


def test_padded_batches_under_shard_map_and_in_an_export_with_symbolic_rows() -> None:
    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((4,), ("i",), axis_types=auto, devices=jax.devices("cpu")[:4])
    along, x, w = jax.P("i"), draw(8, 6), draw(6)
    f = jax.shard_map(
        jax.vmap(six(), (0, None)), mesh=mesh, in_specs=(along, jax.P()), out_specs=along
    )
    np.testing.assert_array_equal(jax.jit(f)(x, w), x + w)
    r = draw(8, 3, 3)
    f = jax.shard_map(jax.vmap(rows(3)), mesh=mesh, in_specs=(along,), out_specs=along)
    np.testing.assert_array_equal(jax.jit(f)(r), 2 * r)

    (n,) = jax.export.symbolic_shape("n")
    export = jax.export.export(jax.jit(jax.vmap(rows(3))), disabled_checks=export_checks())
    exported = export(jax.ShapeDtypeStruct((8, n, 3), jnp.float32))
    np.testing.assert_array_equal(exported.call(r), 2 * r)
