"""Compiled ahead, donated operands, several threads, several devices: in this process."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_ptx import Tile, kernel, ptx, reg
from jax_ptx.types import f32, u32
from tests.processes.programs import PROGRAMS, N, forward, gradient, operands

NAMES = tuple(PROGRAMS)


def assert_same(got, expected) -> None:
    jax.tree.map(np.testing.assert_array_equal, got, expected)


@pytest.mark.parametrize("name", NAMES)
def test_compiled_ahead_of_time_from_shapes(name: str) -> None:
    x, w = operands()
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in (x, w)]
    compiled = jax.jit(PROGRAMS[name]).lower(*shapes).compile()
    assert "jax_ptx_launch" in (compiled.as_text() or "")
    assert_same(compiled(x, w), jax.jit(PROGRAMS[name])(x, w))
    with pytest.raises(TypeError):
        compiled(x[:3], w)


def test_a_donated_operand_is_taken_and_the_result_right() -> None:
    x, w = operands()
    for f in (forward, gradient):
        donated = jnp.asarray(x) + 0
        got = jax.jit(f, donate_argnums=0)(donated, w)
        assert donated.is_deleted()
        assert_same(got, jax.jit(f)(x, w))


@kernel(
    in_specs=(Tile(N, f32),),
    out_specs=(Tile(N, f32),),
    block=(N, 1, 1),
    input_output_aliases={0: 0},
)
def doubled(x, y):
    (p,) = ptx.global_ptrs(y)
    p += reg.from_(ptx.special.tid.x(), u32) * 4
    a = reg.scalar(f32)
    ptx.inst.ld.global_.f32(a, ptx.addr(p))
    ptx.inst.st.global_.f32(ptx.addr(p), a + a)


@pytest.mark.parametrize("donate", [True, False])
def test_a_kernel_writes_in_place_only_what_was_donated(donate: bool) -> None:
    x = operands()[0][0]
    operand = jnp.asarray(x) + 0
    address = operand.unsafe_buffer_pointer()
    y = jax.jit(doubled, donate_argnums=(0,) if donate else ())(operand)
    np.testing.assert_array_equal(y, 2 * x)
    assert operand.is_deleted() == donate
    assert (y.unsafe_buffer_pointer() == address) == donate
    if not donate:
        np.testing.assert_array_equal(operand, x)


def test_threads_share_one_executable() -> None:
    """Eight callers at once, more than XLA's pool has threads."""
    compiled = jax.jit(gradient).lower(*operands(40)).compile()
    inputs = [(operands(40)[0] * np.float32(i + 1), operands(40)[1]) for i in range(8)]
    expected = [compiled(*each) for each in inputs]
    together = threading.Barrier(8)

    def call(each):
        together.wait()
        return [compiled(*each) for _ in range(5)]

    with ThreadPoolExecutor(8) as pool:
        for results, alone in zip(pool.map(call, inputs), expected, strict=True):
            for result in results:
                assert_same(result, alone)


def test_threads_trace_and_compile_the_same_new_function_at_once() -> None:
    x, w = np.ones((3, 59), np.float32), np.arange(59, dtype=np.float32)  # a length of its own
    together = threading.Barrier(8)

    def call(index: int):
        together.wait()
        f = forward if index % 2 else jax.jit(forward)  # eager calls too
        return f(x, w), jax.grad(lambda w: forward(x, w).sum())(w)

    with ThreadPoolExecutor(8) as pool:
        for y, dw in pool.map(call, range(8)):
            np.testing.assert_allclose(y, np.broadcast_to(w, y.shape), rtol=1e-5)
            np.testing.assert_allclose(dw, np.full(59, 3), rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_devices_in_turn_and_at_once(name: str) -> None:
    f, (x, w) = jax.jit(PROGRAMS[name]), operands()
    expected = f(x, w)
    together = threading.Barrier(2)

    def call(index: int) -> None:
        device = jax.devices("cpu")[index]
        placed = jax.device_put((x, w), device)
        result = f(*placed)
        assert all(leaf.devices() == {device} for leaf in jax.tree.leaves(result))
        assert_same(result, expected)

    for index in (0, 1, 0):
        call(index)

    def many(index: int) -> None:
        together.wait()
        for _ in range(5):
            call(index)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(many, (0, 1)))
