"""Kernels of the language, run: what they compute, under jit and vmap."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_ptx import Tile, kernel, ptx, reg, smem
from jax_ptx.types import b32, f32, s32, s64, u32, u64
from tests.dsl.programs import scaled_rows


def normal(*shape: int) -> np.ndarray:
    # By NumPy: each operation on a JAX array would be compiled for its shape.
    return 1 + np.random.default_rng(len(shape)).random(shape, np.float32)


def reference(x, w):
    return x * w / x.sum(-1, keepdims=True)


def close(got, want):
    np.testing.assert_allclose(got, want, rtol=2e-6)


@pytest.mark.parametrize(
    ("rows", "n", "rows_per_cta"), [(1, 1, 1), (7, 100, 3), (4, 64, 1), (5, 33, 2)]
)
def test_rows(rows, n, rows_per_cta):
    x, w = normal(rows, n), normal(n)
    k = scaled_rows(rows_per_cta)
    want = reference(x, w)
    close(k(x, w), want)
    close(jax.jit(k)(jnp.asarray(x), jnp.asarray(w)), want)


def test_vmap_over_any_axis_and_any_argument():
    k = scaled_rows(2)
    x, xs, w, ws = normal(3, 40), normal(5, 3, 40), normal(40), normal(5, 40)
    each = np.stack([reference(x, w) for x, w in zip(xs, ws, strict=True)])
    close(jax.vmap(k, (0, None))(xs, w), np.stack([reference(x, w) for x in xs]))
    close(jax.vmap(k, (None, 0))(x, ws), np.stack([reference(x, w) for w in ws]))
    close(jax.vmap(k)(xs, ws), each)
    moved = jax.vmap(k, (1, 1), 2)(np.moveaxis(xs, 0, 1), ws.T)
    close(np.moveaxis(moved, 2, 0), each)


def test_nested_vmap_with_a_weight_for_each_outer_element():
    k = scaled_rows(2)
    x, w = normal(4, 5, 3, 40), normal(4, 40)
    want = np.stack([[reference(a, b) for a in row] for row, b in zip(x, w, strict=True)])
    close(jax.vmap(jax.vmap(k, (0, None)))(x, w), want)
    outer_and_inner = jax.vmap(jax.vmap(k, (None, 0)), (0, None))(x[:, 0], w)
    close(outer_and_inner, np.stack([[reference(a, b) for b in w] for a in x[:, 0]]))


def test_a_mapped_axis_of_more_than_a_grid_s_y():
    k = scaled_rows()
    x, w = normal(65537, 1, 2), normal(2)
    close(jax.vmap(k, (0, None))(x, w), reference(x, w))


def test_a_mapped_axis_of_size_0():
    assert jax.vmap(scaled_rows(), (0, None))(normal(0, 3, 8), normal(8)).shape == (0, 3, 8)


def per_thread(n: int, dtype, *out_types):
    """A kernel of n threads: `body(i, load)` gives a value for each output, which thread i stores."""

    def decorate(body):
        def emit(x, *outputs):
            px, *pointers = ptx.global_ptrs(x, *outputs)
            i = reg.from_(ptx.special.tid.x(), u32)
            value = reg.scalar(dtype)
            getattr(ptx.inst.ld.global_, dtype.memory)(value, ptx.addr(px + i * (dtype.bits // 8)))
            results = body(i, value)
            for p, t, result in zip(pointers, out_types, results, strict=True):
                store = getattr(ptx.inst.st.global_, t.memory)
                store(ptx.addr(p + i * (t.bits // 8)), result)

        def one(x, y):
            emit(x, y)

        def two(x, y, z):
            emit(x, y, z)

        outputs = tuple(Tile(n, t) for t in out_types)
        declare = kernel(in_specs=(Tile(n, dtype),), out_specs=outputs, block=n)
        return declare(one if len(outputs) == 1 else two)

    return decorate


def test_loops_and_branches():
    @per_thread(64, u32, u32, u32)
    def collatz(i, value):
        """Steps to 1, at most 50; and the largest value on the way that is no multiple of 4."""
        n, steps, largest = reg.from_(value, u32), reg.scalar(u32, 0), reg.scalar(u32, 0)
        with ptx.while_(lambda: n != 1):
            ptx.break_(steps == 50)
            steps += 1
            with ptx.if_((n & 1) == 0):
                n >>= 1
            with ptx.else_():
                n *= 3
                n += 1
                with ptx.if_(n > 1000):
                    ptx.break_()
            ptx.continue_((n & 3) == 0)
            largest.assign(largest.max(n))
        return steps, largest

    def expected(n):
        steps = largest = 0
        while n != 1 and steps != 50:
            steps += 1
            if n % 2 == 0:
                n //= 2
            else:
                n = 3 * n + 1
                if n > 1000:
                    break
            if n % 4:
                largest = max(largest, n)
        return steps, largest

    values = np.arange(1, 65, dtype=np.uint32)
    steps, largest = collatz(values)
    want = np.array([expected(int(n)) for n in values])
    np.testing.assert_array_equal(steps, want[:, 0])
    np.testing.assert_array_equal(largest, want[:, 1])


def test_ranges_of_every_kind():
    @per_thread(32, s32, s32, s32)
    def sums(i, stop):
        up, rest = reg.scalar(s32, 0), reg.scalar(s32, 0)
        for k in ptx.range_(-3, stop, 2):
            ptx.continue_(k == 1)
            up += k
        for k in ptx.range_(stop, -5, -3):
            for j in ptx.range_(2):
                rest += k
                ptx.inst.add.s32(rest, rest, j)
        with ptx.loop(3):
            rest += 1000
        with ptx.loop(stop & 3):
            rest += 10000
        for _ in ptx.range_(7):
            rest += 5
            break
        return up, rest

    stops = np.arange(-8, 24, dtype=np.int32)
    up, rest = sums(stops)
    for stop, u, r in zip(stops.tolist(), up.tolist(), rest.tolist(), strict=True):
        assert u == sum(k for k in range(-3, stop, 2) if k != 1)
        assert r == sum(2 * k + 1 for k in range(stop, -5, -3)) + 3000 + (stop & 3) * 10000 + 5


INTEGERS = [0, 1, 2, 5, 31, 2**15 + 3, 2**31 - 1, 2**31, 2**32 - 5, 2**32 - 1]


@pytest.mark.parametrize(
    ("expression", "meaning"),
    [
        (lambda r: r + 7, lambda v: (v + 7) % 2**32),
        (lambda r: 3 - r, lambda v: (3 - v) % 2**32),
        (lambda r: r << 3, lambda v: (v << 3) % 2**32),
        (lambda r: r >> 3, lambda v: v >> 3),
        (lambda r: ~r ^ 5, lambda v: (2**32 - 1 - v) ^ 5),
        (lambda r: r // 7, lambda v: v // 7),
        (lambda r: r % 7, lambda v: v % 7),
        (lambda r: r.max(9).min(2**31), lambda v: min(max(v, 9), 2**31)),
        (lambda r: (r * 2**20) >> 20, lambda v: v),
        (lambda r: (r * -3) + (r * 2**33), lambda v: (v * -3 + v * 2**33) % 2**64),
        (lambda r: r * r, lambda v: v * v),
    ],
)
def test_unsigned_arithmetic(expression, meaning):
    @per_thread(len(INTEGERS), u32, u64)
    def k(i, value):
        result = expression(value)
        return (result if result.dtype.bits == 64 else reg.scalar(u64, 0) + result,)

    with jax.enable_x64(True):
        got = k(np.array(INTEGERS, np.uint32))
    assert [int(v) for v in got] == [meaning(v) for v in INTEGERS]


@pytest.mark.parametrize(
    ("expression", "meaning"),
    [
        (lambda r: r * -4, lambda v: v * -4),
        (lambda r: r >> 3, lambda v: v >> 3),
        (lambda r: abs(r) - 1, lambda v: abs(v) - 1),
        (lambda r: reg.scalar(s64, 2**40) + r, lambda v: 2**40 + v),
        (lambda r: r.min(-2), lambda v: min(v, -2)),
    ],
)
def test_signed_arithmetic(expression, meaning):
    values = [0, 1, -1, 77, -(2**30), 2**31 - 1, -(2**31) + 1]

    @per_thread(len(values), s32, s64)
    def k(i, value):
        result = expression(value)
        return (result if result.dtype.bits == 64 else reg.scalar(s64, 0) + result,)

    with jax.enable_x64(True):
        got = k(np.array(values, np.int32))
    assert [int(v) for v in got] == [meaning(v) for v in values]


def test_comparisons_and_predicates():
    @per_thread(8, f32, u32, u32)
    def k(i, value):
        one, two = reg.scalar(u32, 0), reg.scalar(u32, 0)
        inside = (value > -1.0) & (value <= 2)
        ptx.inst.add.u32(one, one, 1, pred=inside)
        ptx.inst.add.u32(one, one, 2, pred=~inside)
        ptx.inst.add.u32(two, two, 1, pred=value != value)
        ptx.inst.add.u32(two, two, 2, pred=(value == value) | ~(i < 4))
        return one, two

    values = np.array([-2, -1, 0, 2, 2.5, np.nan, np.inf, -0.5], np.float32)
    one, two = k(values)
    assert one.tolist() == [2, 2, 1, 1, 2, 2, 2, 1]
    assert two.tolist() == [2, 2, 2, 2, 2, 3, 2, 2]


@pytest.mark.parametrize("width", [2, 4, 8, 16, 32])
def test_warp_reductions(width):
    @per_thread(64, f32, f32, f32)
    def k(i, value):
        total, largest = reg.from_(value, f32), reg.from_(value, f32)
        ptx.warp.reduce_sum(total, width=width)
        ptx.warp.reduce_max(largest, width=width)
        return total, largest

    x = normal(64)
    total, largest = k(x)
    groups = x.reshape(-1, width)
    close(total, groups.sum(-1).repeat(width))
    np.testing.assert_array_equal(largest, groups.max(-1).repeat(width))


@pytest.mark.parametrize("rows", [4, 200])  # static, and one dynamic array
def test_shared_memory(rows):
    @kernel(in_specs=(Tile(64, b32),), out_specs=(Tile(64, b32),), block=64, smem=256)
    def reverse(x, y):
        px, py = ptx.global_ptrs(x, y)
        i = reg.from_(ptx.special.tid.x(), u32)
        wide, plain = smem.alloc(b32, (rows, 64)), smem.alloc(b32, 64)
        value = reg.scalar(b32)
        ptx.inst.ld.global_.b32(value, ptx.addr(px + i * 4))
        wide[rows - 1, i] = value
        plain[i] = value
        ptx.inst.st.shared.b32(ptx.addr(smem.base() + (i << 2)), value)
        ptx.bar.sync()
        total = wide[rows - 1, 63 - i]
        total += plain.part()[i]
        ptx.inst.ld.shared.b32(value, ptx.addr(smem.base() + (i << 2)))
        ptx.inst.st.global_.b32(ptx.addr(py + i * 4), total + value)

    x = np.arange(64, dtype=np.uint32)
    np.testing.assert_array_equal(reverse(x), x[::-1] + 2 * x)


def test_a_kernel_sees_its_own_grid_under_vmap():
    @kernel(in_specs=(Tile(3, 2, u32),), out_specs=(Tile(3, 2, 3, u32),), grid=(3, 2))
    def where(x, y):
        px, py = ptx.global_ptrs(x, y)
        cx = reg.from_(ptx.special.ctaid.x(), u32)
        cy = reg.from_(ptx.special.ctaid.y(), u32)
        at = cx * 2 + cy
        value = reg.scalar(u32)
        ptx.inst.ld.global_.u32(value, ptx.addr(px + at * 4))
        ptx.inst.st.global_.u32(ptx.addr(py + at * 12), cx)
        ptx.inst.st.global_.u32(ptx.addr(py + at * 12, 4), value)
        ptx.inst.st.global_.u32(ptx.addr(py + at * 12, 8), reg.from_(ptx.special.nctaid.x(), u32))

    x = jnp.arange(4 * 5 * 6, dtype=jnp.uint32).reshape(4, 5, 3, 2)
    y = jax.vmap(jax.vmap(where))(x)
    np.testing.assert_array_equal(y[..., 0], np.broadcast_to(np.arange(3)[:, None], (4, 5, 3, 2)))
    np.testing.assert_array_equal(y[..., 1], x)
    assert (y[..., 2] == 3).all()


def test_several_results_and_a_scalar():
    @kernel(in_specs=(Tile(f32),), out_specs=(Tile(f32), Tile(u32)))
    def k(x, y, z):
        px, py, pz = ptx.global_ptrs(x, y, z)
        value = reg.scalar(f32)
        ptx.inst.ld.global_.f32(value, ptx.addr(px))
        ptx.inst.st.global_.f32(ptx.addr(py), value * 2)
        ptx.inst.st.global_.u32(ptx.addr(pz), reg.scalar(u32, 7))

    y, z = k(jnp.float32(1.5))
    assert (float(y), int(z), y.shape) == (3.0, 7, ())
    ys, zs = jax.vmap(k)(jnp.array([1.0, 2.0]))
    assert (ys.tolist(), zs.tolist()) == ([2.0, 4.0], [7, 7])


def test_a_cluster_shares_its_memory():
    """Each CTA of a pair adds its neighbour's value, which it reads from the neighbour's memory."""

    @kernel(in_specs=(Tile(4, f32),), out_specs=(Tile(4, f32),), grid=4, cluster=2)
    def neighbours(x, y):
        px, py = ptx.global_ptrs(x, y)
        mine = smem.alloc(f32, 1)
        at = reg.from_(ptx.special.ctaid.x(), u32) * 4
        value, other, address = reg.scalar(f32), reg.scalar(f32), reg.scalar(u32)
        ptx.inst.ld.global_.f32(value, ptx.addr(px + at))
        mine[0] = value
        ptx.cluster.sync(aligned=True)
        peer = reg.from_(ptx.special.cluster_ctarank(), u32) ^ 1
        ptx.inst.mapa.shared__cluster.u32(address, reg.from_(mine, u32), peer)
        ptx.inst.ld.shared__cluster.f32(other, ptx.addr(address))
        ptx.inst.st.global_.f32(ptx.addr(py + at), value + 10 * other)
        ptx.cluster.sync(aligned=True)  # the memory must last until the neighbour has read it

    assert neighbours(jnp.arange(4.0)).tolist() == [10.0, 1.0, 32.0, 23.0]
    pairs = jax.vmap(neighbours)(jnp.arange(8.0).reshape(2, 4))
    assert pairs.tolist() == [[10.0, 1.0, 32.0, 23.0], [54.0, 45.0, 76.0, 67.0]]
