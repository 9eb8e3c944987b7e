"""What reaches XLA: custom calls, sizes of texts, the same text everywhere; CUDA without a GPU."""

from __future__ import annotations

import contextlib
import hashlib
import io
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_ptx
from jax_ptx import ahead
from jax_ptx.ops.rms_norm.kernels import forward_launch
from jax_ptx.ops.rms_norm.options import Options
from tests.ops.test_rms_norm_values import draw

SNIPPET = """
import hashlib, sys
from jax_ptx.ops.rms_norm.kernels import forward_launch
from jax_ptx.ops.rms_norm.options import Options
facts = {"options": Options(1e-6), "residual": True, "out_dtype": None, "with_rstd": False}
texts = [
    forward_launch(n=n, x_dtype=d, weight_dtype=w, grouped=g, **facts).ptx
    for n in (7, 512, 4096, 100000) for d in ("float32", "bfloat16") for w in (None, d) for g in (False, True)
    if w or not g
]
print(hashlib.sha256("".join(texts).encode()).hexdigest())
"""


def lowered(f, *args, platform: str = "cuda") -> str:
    return jax.jit(f).trace(*args).lower(lowering_platforms=(platform,)).as_text()


def test_a_gpu_gets_the_kernel_and_a_cpu_the_formula_by_default() -> None:
    x, w = draw((4, 64), "float32"), draw(64, "float32")
    f = lambda x, w: jax_ptx.rms_norm(x, w)
    assert "custom_call @jax_ptx_launch" in lowered(f, x, w, platform="cuda")
    assert "custom_call" not in lowered(f, x, w, platform="cpu")
    explicit = lambda x, w: jax_ptx.rms_norm(x, w, implementation="xla")
    assert "custom_call" not in lowered(explicit, x, w, platform="cuda")
    emulated = lambda x, w: jax_ptx.rms_norm(x, w, implementation="ptx")
    assert "custom_call @jax_ptx_launch" in lowered(emulated, x, w, platform="cpu")


def test_other_platforms_take_the_formula_and_refuse_ptx() -> None:
    x = draw((4, 64), "float32")
    assert "custom_call" not in lowered(jax_ptx.rms_norm, x, platform="tpu")
    with pytest.raises(NotImplementedError, match="implementation='ptx' runs on an NVIDIA GPU"):
        lowered(lambda x: jax_ptx.rms_norm(x, implementation="ptx"), x, platform="tpu")


def test_call_sites_that_are_alike_share_one_text() -> None:
    x, w = draw((4, 64), "float32"), draw(64, "float32")
    f = lambda x, w: jax_ptx.rms_norm(jax_ptx.rms_norm(jax_ptx.rms_norm(x, w), w), w)
    assert lowered(f, x, w).count(".visible .entry") == 1


def test_the_call_carries_text_and_record_and_nothing_of_this_process() -> None:
    text = lowered(jax_ptx.rms_norm, draw((4, 64), "float32"))
    for name in ("ptx =", "entry =", "grid =", "block =", "unit_bytes =", "rows_per_cta ="):
        assert name in text
    assert ".version" in text


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("residual", [False, True])
def test_the_text_does_not_grow_with_the_row(dtype: str, residual: bool) -> None:
    facts = {"x_dtype": dtype, "weight_dtype": dtype, "grouped": False, "residual": residual}
    facts |= {"options": Options(1e-6), "out_dtype": None, "with_rstd": False}
    size = lambda n: len(forward_launch(n=n, **facts).ptx)
    for n in (2**20, 2**28, 2**28 - 1):
        assert size(n) <= 2 * max(size(4096), size(4097))


@pytest.mark.parametrize(("n", "rows"), [(64, (5, 300)), (8192, (70, 300)), (8192, (1, 16))])
def test_the_number_of_rows_is_not_in_the_text(n: int, rows: tuple[int, int]) -> None:
    a, b = (lowered(jax_ptx.rms_norm, draw((count, n), "float32")) for count in rows)
    cut = lambda text: re.findall(r'ptx = "([^"]*)"', text)
    assert cut(a) == cut(b)
    assert len(cut(a)) == 1


def test_the_text_is_the_same_in_every_process_and_thread() -> None:
    run = subprocess.run(
        [sys.executable, "-c", SNIPPET],
        env={"PYTHONHASHSEED": "4242", "PATH": "", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    here = io.StringIO()
    with contextlib.redirect_stdout(here):
        exec(SNIPPET, {})
    assert run.stdout == here.getvalue()

    from jax_ptx.ops.rms_norm import kernels

    def trace(_: int) -> str:
        launch = kernels.forward_launch.__wrapped__(
            n=4096,
            x_dtype="bfloat16",
            weight_dtype="float32",
            grouped=True,
            options=Options(1e-6),
            residual=True,
            out_dtype=None,
            with_rstd=True,
        )
        return hashlib.sha256(launch.ptx.encode()).hexdigest()

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(trace, range(16)))) == 1


def test_export_to_both_platforms_and_back() -> None:
    x, w = draw((6, 48), "float32"), draw(48, "float32", 1)
    f = jax.jit(lambda x, w: jax_ptx.rms_norm(x, w, implementation="ptx"))
    exported = jax.export.export(
        f, platforms=("cpu", "cuda"), disabled_checks=jax_ptx.export_checks()
    )(x, w)
    assert exported.mlir_module().count("custom_call @jax_ptx_launch") == 2
    np.testing.assert_array_equal(exported.call(x, w), f(x, w))


def test_export_with_a_symbolic_number_of_rows() -> None:
    w = draw(48, "float32", 1)
    f = jax.jit(lambda x: jax_ptx.rms_norm(x, w, implementation="ptx"))
    (b,) = jax.export.symbolic_shape("b")
    spec = jax.ShapeDtypeStruct((b, 48), jnp.float32)
    exported = jax.export.export(f, disabled_checks=jax_ptx.export_checks())(spec)
    for rows in (1, 5, 300):
        x = draw((rows, 48), "float32", rows)
        np.testing.assert_array_equal(exported.call(x), f(x))


def test_bad_text_is_refused_when_xla_compiles() -> None:
    bad = jax_ptx.ptx_kernel(
        ".version 7.0\n.target sm_80\n.address_size 64\n"
        ".visible .entry f(.param .u64 x, .param .u64 y)\n{\n  frobnicate.u32 %r1;\n}\n",
        in_specs=(jax_ptx.Tile(8, jax_ptx.types.f32),),
        out_specs=(jax_ptx.Tile(8, jax_ptx.types.f32),),
        grid=(1, 1, 1),
        block=(32, 1, 1),
    )
    lowered = jax.jit(bad).lower(jnp.ones(8, jnp.float32))
    with pytest.raises(jax.errors.JaxRuntimeError, match="frobnicate"):
        lowered.compile()


def test_a_gpus_driver_compiles_while_xla_does(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[tuple[str, int]] = []

    def load(attributes: dict[str, Any], device: int) -> None:
        loaded.append((attributes["entry"], device))
        raise RuntimeError("what the first call will say")

    def after(n: int, platform: str) -> list[tuple[str, int]]:
        lowered(jax_ptx.rms_norm, draw((4, n), "float32"), platform=platform)
        ahead._loaders().shutdown()  # when they are done
        ahead._loaders.cache_clear()
        return loaded

    monkeypatch.setattr(ahead._ext, "load", load)
    monkeypatch.setattr(ahead, "_first_gpu", lambda: None)
    assert after(72, "cuda") == []
    monkeypatch.setattr(ahead, "_first_gpu", lambda: 3)
    assert after(73, "cpu") == []
    assert after(74, "cuda") == [("rms_norm", 3)]


@pytest.mark.parametrize("shape", [(2**31, 1), (1, 2**31)])
def test_dimensions_past_32_bits(shape: tuple[int, int]) -> None:
    arguments = (
        jax.ShapeDtypeStruct(shape, "bfloat16"),
        jax.ShapeDtypeStruct(shape[1:], "bfloat16"),
    )
    gradient = jax.grad(lambda *a: jax_ptx.rms_norm(*a).astype("float32").sum(), (0, 1))
    for function in (jax_ptx.rms_norm, gradient):
        lowered = jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",))
        assert "jax_ptx_launch" in lowered.as_text()
