"""The examples that train: both norms give one curve, and rows stay on their devices."""

from __future__ import annotations

import importlib
import runpy
import sys
from collections.abc import Iterator
from types import ModuleType

import jax
import numpy as np
import pytest

from tests.test_examples import ROOT

# Gemma's stack has all that Llama's has, and more norms.
TINY = "--norm both --style gemma --width 32 --layers 1 --heads 2 --context 8 --batch 2 --steps 3 --every 2"


@pytest.fixture
def load(monkeypatch) -> Iterator:
    """Imports an example by its name."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    # Flax promotes dtypes by itself, as it may in a user's program.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield importlib.import_module
    for name in {"transformer", "train_transformer", "sharded_training"} - before:
        sys.modules.pop(name, None)


def test_a_transformer_trains_alike_with_both_norms(load, tmp_path, capsys) -> None:
    pytest.importorskip("flax")
    example: ModuleType = load("train_transformer")
    image = tmp_path / "loss.png"
    curves = example.main([*TINY.split(), "--plot", str(image)])
    assert set(curves) == {"xla", "ptx"}
    assert curves["ptx"].shape == (3,)
    # Each norm rounds to bfloat16 once; over these steps a rounding that differs moves the loss by less.
    np.testing.assert_allclose(curves["ptx"], curves["xla"], rtol=2e-3)
    assert np.ptp(curves["ptx"]) > 0.01, "the steps change nothing"
    out = capsys.readouterr().out
    assert "norm=ptx style=gemma" in out
    assert "step time" in out
    assert "mean loss of the last 3 steps" in out
    if importlib.util.find_spec("matplotlib"):
        assert image.read_bytes().startswith(b"\x89PNG")
    else:
        assert "pip install matplotlib" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--every 0", "argument --every: must be 1 or more, got 0"),
        ("--batch 0", "argument --batch: must be 1 or more, got 0"),
        ("--steps -3", "argument --steps: must be 1 or more, got -3"),
        ("--layers many", "argument --layers: invalid positive value: 'many'"),
        ("--width 33 --heads 2", "--width must be a multiple of 2 x heads"),
        ("--width 36 --heads 4", "--width must be a multiple of 2 x heads"),
        ("--context 100000000", "--context must be at most"),
        ("--seed -1", "--seed must be 0 or more, got -1"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments, message, load, capsys) -> None:
    pytest.importorskip("flax")
    with pytest.raises(SystemExit) as stop:
        load("train_transformer").parse(arguments.split())
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_a_package_that_is_missing_is_named(load, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "optax", None)
    with pytest.raises(SystemExit, match=r"needs optax: pip install '\.\[examples\]'"):
        load("train_transformer")


def test_the_model_as_a_program_names_what_trains_it() -> None:
    with pytest.raises(SystemExit, match=r"train_transformer.py"):
        runpy.run_path(str(ROOT / "examples/transformer.py"), run_name="__main__")


@pytest.mark.parametrize("steps", [0, -1])
def test_sharded_training_refuses_no_steps(steps, load, capsys) -> None:
    with pytest.raises(SystemExit):
        load("sharded_training").main(["--steps", str(steps)])
    assert f"argument --steps: must be 1 or more, got {steps}" in capsys.readouterr().err


@pytest.mark.parametrize("style", ["llama", "gemma"])
def test_the_norms_of_a_style_start_as_the_identity(style, load) -> None:
    pytest.importorskip("flax")
    example: ModuleType = load("transformer")
    config = example.Config(style=style, norm="xla", width=8, dtype="float32")
    norm = example.make_norm(config)
    x = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
    expected = x / np.sqrt(np.mean(x**2, -1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(norm(x), expected, rtol=1e-5)
    assert np.all(np.asarray(norm.scale[...]) == (0 if style == "gemma" else 1))


@pytest.mark.parametrize("mesh", ["explicit", "auto"])
def test_sharded_training_communicates_by_all_reduce_alone(mesh, load, monkeypatch, capsys) -> None:
    example: ModuleType = load("sharded_training")
    monkeypatch.setattr(example, "LAYERS", 1)
    losses = example.main(["--mesh", mesh, "--norm", "ptx", "--steps", "3"])
    assert losses[2] < losses[1] < losses[0]
    assert "'all-reduce': 1}" in capsys.readouterr().out


def test_sharded_training_finds_a_gather(load) -> None:
    example: ModuleType = load("sharded_training")
    text = (
        "  %g = f32[8,4]{1,0} all-gather(f32[1,4]{1,0} %x), dimensions={0}\n"
        "  %r = (f32[4]{0}, f32[]) all-reduce-start(f32[4]{0} %y), to_apply=%add\n"
        '  %n = f32[8,4]{1,0} add(%g, %g), metadata={op_name="all-gather("}\n'
    )
    assert example.collectives(text) == {"all-gather": 1, "all-reduce": 1}
