"""The four examples as kernels: under jit, vmap, and vmap of vmap with mapped operands."""

from __future__ import annotations

import importlib
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
NAMES = ("rms_norm", "layer_norm", "softmax", "swiglu")
B, N = 3, 200


@pytest.fixture(params=NAMES)
def example(request, monkeypatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    yield importlib.import_module(request.param)
    for loaded in (*NAMES, "row", "runner"):
        sys.modules.pop(loaded, None)


def formula(example: Any, *arrays: Any) -> np.ndarray:
    """The example's own formula in float64, so that it is an oracle."""
    name = example.__name__
    with jax.enable_x64(True), jax.numpy_rank_promotion("allow"):
        wide = [jnp.asarray(np.asarray(a), jnp.float64) for a in arrays]
        return np.asarray(
            jax.nn.softmax(*wide) if name == "softmax" else example.jax_formula(*wide)
        )


def check(got: Any, expected: np.ndarray) -> None:
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-5)


def draw(shape: tuple[int, ...], seed: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape, dtype=np.float32))


def operands(example: Any, *lead: int) -> list[jax.Array]:
    """An example's operands with more leading dimensions."""
    shapes = [a.shape for a in example.inputs(B, N)]
    return [draw((*lead, *shape), seed) for seed, shape in enumerate(shapes)]


def kernel_of(example: Any) -> Any:
    return getattr(example, f"build_{example.__name__}")(B, N)


def run_all(example: Any) -> None:
    kernel = kernel_of(example)
    single = operands(example)
    check(jax.jit(kernel)(*single), formula(example, *single))

    # Rows mapped, weights shared.
    rows = [i for i, a in enumerate(single) if a.ndim == 2]
    axes = tuple(0 if i in rows else None for i in range(len(single)))
    mapped = [draw((4, *a.shape), 10 + i) if i in rows else a for i, a in enumerate(single)]
    got = jax.jit(jax.vmap(kernel, axes))(*mapped)
    for i in range(4):
        part = [a[i] if j in rows else a for j, a in enumerate(mapped)]
        check(got[i], formula(example, *part))

    # Twice, every operand mapped inside, the rows alone outside.
    inner = operands(example, 2)
    outer = [draw((5, *a.shape), 20 + i) if i in rows else a for i, a in enumerate(inner)]
    got = jax.jit(jax.vmap(jax.vmap(kernel), axes))(*outer)
    for i in range(5):
        for k in range(2):
            part = [a[i, k] if j in rows else a[k] for j, a in enumerate(outer)]
            check(got[i, k], formula(example, *part))


def test_values_in_the_emulator(example: Any) -> None:
    run_all(example)


@pytest.mark.gpu
def test_values_on_a_gpu(example: Any) -> None:
    with jax.default_device(jax.devices("gpu")[0]):
        run_all(example)


def test_a_map_is_one_custom_call_and_copies_nothing(example: Any) -> None:
    kernel, single = kernel_of(example), operands(example)
    axes = tuple(0 if a.ndim == 2 else None for a in single)
    mapped = [jnp.stack([a] * 4) if a.ndim == 2 else a for a in single]
    for platform in ("cpu", "cuda"):
        traced = jax.jit(jax.vmap(kernel, axes)).trace(*mapped)
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        assert text.count("stablehlo.custom_call @jax_ptx_launch") == 1
        assert "broadcast" not in text


def test_layer_norm_of_a_mean_that_is_a_thousand_times_the_spread(monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    module = importlib.import_module("layer_norm")
    x, w, b = operands(module)
    x = x + 1000
    check(jax.jit(kernel_of(module))(x, w, b), formula(module, x, w, b))
    sys.modules.pop("layer_norm")


def test_the_script_says_where_it_ran_and_what_it_found() -> None:
    run = subprocess.run(
        [sys.executable, "examples/softmax.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert len(lines) >= 5
    assert all(line.endswith("OK") for line in lines)
    assert all("emulator" in line or "NVIDIA" in line for line in lines)


def test_the_script_has_a_line_of_help(monkeypatch, capsys) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    monkeypatch.setattr(sys, "argv", ["softmax.py", "--help"])
    runpy.run_path(str(ROOT / "examples" / "softmax.py"), run_name="__main__")
    line = "softmax.py runs its cases and compares them; it takes no arguments\n"
    assert capsys.readouterr().out.endswith(line)
    for loaded in ("row", "runner"):
        sys.modules.pop(loaded, None)


def test_the_script_fails_when_a_value_is_wrong(monkeypatch, capsys) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    runner, softmax = importlib.import_module("runner"), importlib.import_module("softmax")
    wrong = runner.Example(
        build=lambda *case: lambda x: softmax.build_softmax(*case)(x) + 1,
        inputs=softmax.inputs,
        jax_formula=jax.nn.softmax,
        torch_formula=lambda x: x.softmax(-1),
        cases=((4, 64),),
    )
    monkeypatch.setattr(runner.app, "run", lambda main: main(["prog"]))
    with pytest.raises(SystemExit) as stop:
        runner.run(wrong)
    assert stop.value.code == 1
    assert "FAIL" in capsys.readouterr().out
    for loaded in (*NAMES, "row", "runner"):
        sys.modules.pop(loaded, None)
