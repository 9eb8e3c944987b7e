"""rms_norm and user kernels on a real GPU: values against float64, and the emulator's bits."""

from __future__ import annotations

import functools
import importlib.util
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_ptx
from tests.ops import oracle
from tests.ops.test_rms_norm_values import LONG_LENGTHS, ODD_LENGTHS, draw
from tests.tolerance import assert_close

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]
LENGTHS = (*ODD_LENGTHS, *LONG_LENGTHS, 4, 8, 48, 65, 96, 130, 192, 384, 500, 513, 1000, 1024, 1536)
LENGTHS += (2047, 2048, 2560, 3072, 5120, 7168, 8192, 10007, 12288, 12289, 32767, 58113, 2**20)


def gpu():
    return jax.devices("gpu")[0]


def on_gpu(*arrays):
    return tuple(jax.device_put(a, gpu()) for a in arrays)


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_lengths(dtype: str, n: int) -> None:
    x, w = on_gpu(draw((5, n), dtype), draw(n, dtype, 1))
    y = jax_ptx.rms_norm(x, w, implementation="ptx")
    assert y.devices() == {gpu()}
    assert_close(y, oracle.rms_norm(x, w, eps=1e-6), n)


def test_float64(x64) -> None:
    x, w = on_gpu(draw((5, 1001), "float64"), draw(1001, "float64", 1))
    assert_close(jax_ptx.rms_norm(x, w), oracle.rms_norm(x, w, eps=1e-6), 1001)


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_gradients(dtype: str, n: int) -> None:
    x, w, dy = on_gpu(draw((37, n), dtype), draw(n, dtype, 1), draw((37, n), dtype, 2))
    pull = jax.jit(lambda x, w, dy: jax.vjp(jax_ptx.rms_norm, x, w)[1](dy))
    dx, dw = pull(x, w, dy)
    exact_dx, exact_dw, size = oracle.rms_norm_grad(x, w, dy, eps=1e-6)
    assert_close(dx, exact_dx, n, scale=size)
    assert_close(dw, exact_dw.sum(0), n, scale=np.abs(exact_dw).sum(0))
    assert np.asarray(pull(x, w, dy)[1]).tobytes() == np.asarray(dw).tobytes()


def check_gradients(rows: int, n: int) -> None:
    x, w, dy = (draw(shape, "bfloat16", i) for i, shape in enumerate([(rows, n), (n,), (rows, n)]))
    pull = jax.jit(lambda x, w, dy: jax.vjp(jax_ptx.rms_norm, x, w)[1](dy))
    dx, dw = pull(*on_gpu(x, w, dy))
    exact_dx, exact_dw, size = oracle.rms_norm_grad(x, w, dy, eps=1e-6)
    assert_close(dx, exact_dx, n, scale=size)
    assert_close(dw, exact_dw.sum(0), n, scale=np.abs(exact_dw).sum(0))


@pytest.mark.parametrize("rows", [1, 47, 131, 132, 133, 264, 265, 1000, 75600])
@pytest.mark.parametrize("n", [8, 96, 768, 1536])
def test_gradients_of_any_number_of_rows(rows: int, n: int) -> None:
    check_gradients(rows, n)


def test_gradients_per_example_and_of_mapped_weights() -> None:
    x, w = on_gpu(draw((3, 40, 96), "float32"), draw((3, 96), "float32", 1))
    loss = lambda x, w: (jax_ptx.rms_norm(x, w) ** 2).sum()
    for axes, weight in (((0, None), w[0]), ((0, 0), w)):
        dw = jax.jit(jax.vmap(jax.grad(loss, 1), axes))(x, weight)
        for i in range(3):
            alone = jax.grad(loss, 1)(x[i], weight if weight.ndim == 1 else weight[i])
            np.testing.assert_allclose(dw[i], alone, rtol=2e-5, atol=2e-4)


@pytest.mark.parametrize("rows", [1, 7, 255, 256, 300])
@pytest.mark.parametrize("n", [1024, 4097, 8192, 40000, 100_000])
def test_a_rows_bits_do_not_depend_on_its_batch(n: int, rows: int) -> None:
    x, w = on_gpu(draw((512, n), "bfloat16"), draw(n, "bfloat16", 1))
    whole = np.asarray(jax_ptx.rms_norm(x, w)[:rows].view(jnp.uint16))
    np.testing.assert_array_equal(np.asarray(jax_ptx.rms_norm(x[:rows], w).view(jnp.uint16)), whole)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("n", [5, 257, 4096, 40000])
def test_the_emulator_agrees(dtype: str, n: int) -> None:
    x, w = draw((3, n), dtype), draw(n, dtype, 1)
    real = np.asarray(jax_ptx.rms_norm(*on_gpu(x, w), implementation="ptx")).astype(np.float64)
    with jax.default_device(jax.devices("cpu")[0]):
        x, w = (jax.device_put(a, jax.devices("cpu")[0]) for a in (x, w))
        emulated = np.asarray(jax_ptx.rms_norm(x, w, implementation="ptx")).astype(np.float64)
    # rsqrt.approx alone may differ, by a unit of float32: the rounding to 16 bits seldom shows it.
    assert_close(jnp.asarray(real).astype(dtype), emulated, 1)


def test_vmap_nested_and_batched_weights() -> None:
    x, w = on_gpu(draw((3, 2, 4, 96), "float32"), draw((2, 96), "float32", 1))
    f = jax.jit(jax.vmap(jax.vmap(jax_ptx.rms_norm), (0, None)))
    assert_close(f(x, w), oracle.rms_norm(x, np.asarray(w)[:, None], eps=1e-6), 96)


ODD = (1, 7, 33, 257, 1000, 1025, 4096, 8193, 16384, 32768, 65536, 100003)


@pytest.mark.parametrize("n", ODD)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_residual_addition(dtype: str, n: int) -> None:
    x, r, dy, ds = on_gpu(*(draw((37, n), dtype, i) for i in range(4)))
    (w,) = on_gpu(draw(n, "float32", 4))
    f = functools.partial(jax_ptx.add_rms_norm, weight_offset=1.0)
    y, added = f(x, r, w)
    np.testing.assert_array_equal(added, x + r)
    np.testing.assert_array_equal(y, jax_ptx.rms_norm(x + r, w, weight_offset=1.0))
    assert_close(y, oracle.rms_norm(added, w, eps=1e-6, weight_offset=1.0), n)
    pull = jax.jit(lambda *a: jax.vjp(f, *a[:3])[1](a[3:]))
    dx, dr, dw = pull(x, r, w, dy, ds)
    exact_dx, exact_dw, size = oracle.rms_norm_grad(added, w, dy, eps=1e-6, weight_offset=1.0)
    ds = np.asarray(ds).astype(np.float64)
    assert_close(dx, exact_dx + ds, n, scale=size + np.abs(ds))
    assert_close(dw, exact_dw.sum(0), n, scale=np.abs(exact_dw).sum(0))
    np.testing.assert_array_equal(dx, dr)


@pytest.mark.parametrize("n", ODD)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_options_against_the_emulator(dtype: str, n: int) -> None:
    x, w = draw((5, n), dtype), draw(n, dtype, 1)
    options = [{"round_before_weight": True}, {"weight_offset": 1.0}]
    options += [{"out_dtype": o, "scale": 0.03} for o in ("float8_e4m3fn", "float8_e5m2")]
    for each in options:
        f = functools.partial(jax_ptx.rms_norm, implementation="ptx", **each)
        real = np.asarray(f(*on_gpu(x, w)))
        formula = np.asarray(jax_ptx.rms_norm(*on_gpu(x, w), implementation="xla", **each))
        with jax.default_device(jax.devices("cpu")[0]):
            cpu = (jax.device_put(a, jax.devices("cpu")[0]) for a in (x, w))
            emulated = np.asarray(f(*cpu))
        # rsqrt.approx alone may differ, by a unit of float32, which a rounding seldom shows.
        tolerance = 0.3 if "out_dtype" in each else 2**-6 if dtype != "float32" else 1e-5
        for other in (emulated, formula):
            if dtype != "float32" or "scale" in each:
                assert np.sum(real != other) <= 3 + real.size / 100
            wide = (v.astype(np.float64) for v in (real, other))
            np.testing.assert_allclose(*wide, rtol=tolerance, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_misaligned_buffers_are_refused_before_a_kernel_runs(dtype: str) -> None:
    """XLA asks 16 bytes of every operand of a program, and no vector of the kernels is longer."""
    torch = pytest.importorskip("torch")
    whole = torch.randn(489, device="cuda").to(getattr(torch, dtype))
    x = jax.dlpack.from_dlpack(whole[1:97])
    with pytest.raises(jax.errors.JaxRuntimeError, match="must be a multiple of"):
        jax.block_until_ready(jax.jit(jax_ptx.rms_norm)(x))


@pytest.mark.parametrize(
    "n", [1025, 1536, 2048, 4096, 4097, 5120, 8192, 10007, 16384, 18432, 32768, 65536, 131072]
)
def test_gradients_of_rows_by_turns(n: int) -> None:
    """Each CTA or cluster takes several rows, one after the other, and so its buffers are used again."""
    rows = 3000 if n < 2048 else 1500 if n <= 8192 else 500 if n <= 32768 else 100
    check_gradients(rows, n)


def test_first_call_in_a_fresh_process_is_in_a_captured_loop() -> None:
    code = """
import jax, jax.numpy as jnp, numpy as np, jax_ptx
x = jax.random.normal(jax.random.key(0), (64, 1024)); w = jnp.full(1024, 1.5)
f = jax.jit(lambda x: jax.lax.fori_loop(0, 20, lambda _, y: jax_ptx.rms_norm(y, w), x))
def many(x):
    for _ in range(8):
        x = jax_ptx.rms_norm(x, w)
    return x
g = jax.jit(many)
first, second = f(x), g(x)
for n in (64, 128, 4096):
    jax.jit(jax_ptx.rms_norm)(jnp.ones((2, n)))
jax.clear_caches()
for _ in range(5):
    np.testing.assert_array_equal(f(x), first)
    np.testing.assert_array_equal(g(x), second)
np.testing.assert_allclose(first, second, rtol=1e-5)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


BAD = ".version {version}\n.target {target}\n.address_size 64\n.visible .entry f({params})\n{{\n{body}\n}}\n"


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        (
            BAD.format(
                version="7.0", target="sm_80", params=".param .u64 x, .param .u64 y", body="oops;"
            ),
            r"(?s)refused the PTX.*ptxas.*oops",
        ),
        (
            BAD.format(
                version="99.0", target="sm_80", params=".param .u64 x, .param .u64 y", body="ret;"
            ),
            r"(?s)99\.0.*driver",
        ),
        (
            BAD.format(
                version="8.6", target="sm_100", params=".param .u64 x, .param .u64 y", body="ret;"
            ),
            r"(?s)sm_100",
        ),
    ],
)
def test_what_the_driver_refuses_is_an_error_with_its_log(text: str, pattern: str) -> None:
    f32 = jax_ptx.types.f32
    k = jax_ptx.ptx_kernel(
        text,
        in_specs=(jax_ptx.Tile(8, f32),),
        out_specs=(jax_ptx.Tile(8, f32),),
        grid=(1, 1, 1),
        block=(32, 1, 1),
    )
    (x,) = on_gpu(jnp.ones(8))
    with pytest.raises(jax.errors.JaxRuntimeError, match=pattern):
        jax.block_until_ready(jax.jit(k)(x))
    assert float(jax_ptx.rms_norm(x).sum()) == pytest.approx(8, rel=1e-5), (
        "the context must survive"
    )


def test_the_example() -> None:
    run = subprocess.run(
        [sys.executable, "examples/rms_norm.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    lines = run.stdout.splitlines()
    assert len(lines) == 5 * (1 + (importlib.util.find_spec("torch") is not None))
    assert all("NVIDIA" in line and line.endswith("OK") for line in lines)
