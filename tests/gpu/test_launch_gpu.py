"""The handlers, the cache and the PyTorch bridge against NVIDIA's driver."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_ptx.launch import Launch
from tests.ffi.test_launch_handlers import DOUBLE, double

pytestmark = pytest.mark.gpu

NUMBERS = itertools.count(1)


def on_gpu(*shape: int, index: int = 0) -> jax.Array:
    x = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    return jax.device_put(x, jax.devices("gpu")[index])


def unseen(text: str = DOUBLE) -> dict[str, Any]:
    """The kernel as a text that this process has not loaded yet."""
    number = next(NUMBERS)
    return {"ptx": f"{text}\n// text {number}\n", "key": number}


def failure(**changes: Any) -> str:
    """What the first call says."""
    with pytest.raises(jax.errors.JaxRuntimeError) as error:
        jax.block_until_ready(jax.jit(lambda x: double(x, **changes))(on_gpu(4, 8)))
    return str(error.value)


# ---- loading ----


def test_a_text_that_does_not_assemble_shows_the_jit_log() -> None:
    message = failure(**unseen(DOUBLE.replace("add.u32 %r4", "add.u31 %r4")))
    assert "kernel `double`: " in message
    assert "CUDA_ERROR_INVALID_PTX" in message
    assert "JIT log:" in message
    assert "u31" in message


def test_a_version_that_is_too_new() -> None:
    message = failure(**unseen(DOUBLE.replace(".version 8.0", ".version 99.0")))
    assert "The text needs PTX ISA 99.0 and target sm_80; this is device 0" in message
    assert "driver for CUDA" in message


def test_a_target_that_is_too_new() -> None:
    message = failure(
        **unseen(DOUBLE.replace(".version 8.0\n.target sm_80", ".version 9.0\n.target sm_121"))
    )
    assert "target sm_121" in message


def test_an_entry_that_is_not_there() -> None:
    assert "no .entry of that name; it has double" in failure(**unseen(), entry="triple")


def test_parameters_that_do_not_match() -> None:
    two = DOUBLE.replace(", .param .u64 rows", "").replace(
        "ld.param.u64 %rd5, [rows]", "mov.u64 %rd5, 4"
    )
    assert "has 2 parameters, and the launch record 2 tensors and 1 run-time" in failure(
        **unseen(two)
    )
    narrow = DOUBLE.replace(".param .u64 rows", ".param .u32 rows").replace(
        "ld.param.u64 %rd5, [rows]", "mov.u64 %rd5, 4"
    )
    assert "parameter 2 must be a .u64 of 8 bytes, got one of 4" in failure(**unseen(narrow))


def test_a_block_that_the_text_forbids() -> None:
    limited = DOUBLE.replace("rows)\n{", "rows)\n.maxntid 4, 1, 1\n{")
    assert "a block of 8 threads is too large" in failure(**unseen(limited))


def test_shared_memory_up_to_the_devices_limit() -> None:
    x = on_gpu(4, 8)
    np.testing.assert_array_equal(
        jax.jit(lambda x: double(x, smem_bytes=200 << 10, **unseen()))(x), 2 * x
    )


def test_clusters_of_sixteen() -> None:
    x = on_gpu(33, 8)  # the last cluster has one row
    function = jax.jit(lambda x: double(x, cluster=(16, 1, 1), **unseen()))
    np.testing.assert_array_equal(function(x), 2 * x)


# ---- CUDA graphs, threads, devices ----


@pytest.mark.parametrize("calls", [1, 12])
def test_the_first_call_ever_inside_a_loop_or_a_graph(calls: int) -> None:
    launch = unseen()

    @jax.jit
    def function(x):
        def body(_, x):
            for _ in range(calls):
                x = double(x, **launch)
            return x

        return jax.lax.fori_loop(0, 2, body, x)

    x = on_gpu(16, 8)
    for _ in range(4):
        np.testing.assert_array_equal(function(x), x * np.int32(4**calls))
    np.testing.assert_array_equal(jax.jit(lambda x: double(x, **unseen()))(x), 2 * x)
    np.testing.assert_array_equal(function(x), x * np.int32(4**calls))


def test_an_empty_launch_gives_zeros_also_in_a_graph() -> None:
    @jax.jit
    def function(x):
        for _ in range(10):
            x = x + 1 + double(x, grid=(0, 1, 1), rows_per_cta=0)
        return x

    x = on_gpu(4, 8)
    for _ in range(3):
        np.testing.assert_array_equal(function(x), x + 10)


@pytest.mark.parametrize("order", [(0, 0, 0), (0, 1, 0)])
def test_devices_in_turn_and_at_once(order: tuple[int, ...]) -> None:
    if max(order) >= len(jax.devices("gpu")):
        pytest.skip("needs two GPUs")
    launch = unseen()
    function = jax.jit(lambda x: double(x, **launch))
    for index in order:
        x = on_gpu(16, 8, index=index)
        np.testing.assert_array_equal(function(x), 2 * np.asarray(x))
    wrong: list[int] = []

    def work(index: int) -> None:
        x = on_gpu(16, 8, index=index)
        wrong.extend(index for _ in range(100) if not (function(x) == 2 * np.asarray(x)).all())

    threads = [threading.Thread(target=work, args=(index,)) for index in order]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# ---- PyTorch ----


def double_launch(**changes: Any) -> Launch:
    return Launch(
        ptx=changes.get("ptx", DOUBLE),
        entry="double",
        grid=(2**31 - 1, 1, 1),
        block=(8, 1, 1),
        cluster=(1, 1, 1),
        smem_bytes=0,
        unit_bytes=(32, 32),
        dims=(1, 1),
        rows_per_cta=1,
    )


@pytest.fixture
def torch():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch has no CUDA")
    return torch


def torch_double(x: Any, launch: Launch) -> Any:
    from jax_ptx import torch as bridge

    return bridge.call(launch, [x], [(tuple(x.shape), "int32")])[0]


def test_torch_on_its_current_stream(torch: Any) -> None:
    x = torch.arange(1 << 20, dtype=torch.int32, device="cuda").reshape(-1, 8)
    launch = double_launch(**unseen())
    assert torch.equal(torch_double(x, launch), 2 * x)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(10_000_000)
        y = x + 1  # done late: a launch on another stream would read the memory before
        z = torch_double(y, launch)
        assert not side.query(), "the call waited for the stream"
    torch.cuda.current_stream().wait_stream(side)
    assert torch.equal(z, 2 * (x + 1))


def test_the_first_call_ever_inside_a_torch_graph(torch: Any) -> None:
    x = torch.arange(64, dtype=torch.int32, device="cuda").reshape(8, 8)
    launch = double_launch(**unseen())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = torch_double(x, launch)
    for step in range(3):
        x.fill_(step)
        graph.replay()
        assert (y == 2 * step).all()


def test_torch_on_a_device_that_is_not_the_current_one(torch: Any) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    x = torch.arange(64, dtype=torch.int32, device="cuda:1").reshape(8, 8)
    y = torch_double(x, double_launch(**unseen()))
    assert y.device == x.device
    assert torch.equal(y, 2 * x)
    assert torch.cuda.current_device() == 0


def test_jax_and_torch_share_a_loaded_kernel(torch: Any) -> None:
    launch = unseen()
    x = torch.arange(64, dtype=torch.int32, device="cuda").reshape(8, 8)
    expected = 2 * np.arange(64, dtype=np.int32).reshape(8, 8)
    assert torch.equal(torch_double(x, double_launch(**launch)).cpu(), torch.from_numpy(expected))
    np.testing.assert_array_equal(double(jnp.asarray(on_gpu(8, 8)), **launch), expected)
