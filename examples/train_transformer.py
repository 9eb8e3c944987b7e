"""Trains a small transformer on the text that Python's standard library ships, with either RMS norm.

    python examples/train_transformer.py --norm ptx --steps 200      # the kernel
    python examples/train_transformer.py --norm both --steps 200     # both norms, the same seed, compared

Prints the loss as it goes, the time of a step, and the mean loss of the last 10 steps; draws the losses
in loss.png where matplotlib is installed. On a machine without a GPU the kernel is emulated, which is slow:
take tiny sizes there (`--width 32 --layers 1 --context 16 --batch 2 --steps 5`), or `--norm xla`.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib.util
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

try:
    import optax
    from flax import nnx
    from transformer import Config, Transformer
except ModuleNotFoundError as missing:
    raise SystemExit(
        f"this example needs {missing.name}: pip install '.[examples]' in the checkout, or pip install "
        "flax optax"
    ) from None

LAST = 10  # steps whose mean loss is printed at the end


def read_text() -> np.ndarray:
    """The bytes of pydoc's topics: half a megabyte of English and Python."""
    text = "\n\n".join(topics[name] for name in sorted(topics))
    return np.frombuffer(text.encode(), np.uint8)


def draw(text: np.ndarray, rng: np.random.Generator, batch: int, context: int) -> np.ndarray:
    """`[batch, context + 1]`: pieces of the text, from anywhere."""
    starts = rng.integers(0, len(text) - context - 1, batch)
    return text[starts[:, None] + np.arange(context + 1)].astype(np.int32)


def make_step(config: Config, seed: int, rate: float, steps: int) -> tuple[Callable, Any]:
    """The jitted training step, `step(state, pieces) -> (state, loss)`, and the first state."""
    model = Transformer(config, nnx.Rngs(seed))
    schedule = optax.warmup_cosine_decay_schedule(0.0, rate, min(20, steps // 4), steps)
    rule = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, b2=0.95))
    graph, state = nnx.split((model, nnx.Optimizer(model, rule, wrt=nnx.Param)))

    def loss_of(model: Transformer, pieces: jax.Array) -> jax.Array:
        logits = model(pieces[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, pieces[:, 1:]).mean()

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state: Any, pieces: jax.Array) -> tuple[Any, jax.Array]:
        model, optimizer = nnx.merge(graph, state)
        loss, gradient = nnx.value_and_grad(loss_of)(model, pieces)
        optimizer.update(model, gradient)
        return nnx.state((model, optimizer)), loss

    return step, state


def train(config: Config, options: argparse.Namespace) -> np.ndarray:
    """Trains, prints progress, and returns the loss of each step."""
    text, rng = read_text(), np.random.default_rng(options.seed)
    step, state = make_step(config, options.seed, options.rate, options.steps)
    losses: list[jax.Array] = []
    times: list[float] = []  # of a step, the mean of each stretch between two lines
    began, counted = time.perf_counter(), 0
    for number in range(1, options.steps + 1):
        state, loss = step(state, jnp.asarray(draw(text, rng, options.batch, options.context)))
        losses.append(loss)
        # The first step compiles, and is not timed.
        if number == 1 or number % options.every == 0 or number == options.steps:
            value = float(loss)  # waits for the step
            now = time.perf_counter()
            line = f"{config.norm:4} step {number:5}/{options.steps}  loss {value:.4f}"
            if number > 1:
                times.append((now - began) / (number - counted))
                line += f"  {times[-1] * 1e3:.2f} ms/step"
            print(line, flush=True)
            began, counted = now, number
    result = np.asarray(jnp.stack(losses))
    # The first step is for the most part compilation.
    step_time = f"{statistics.median(times) * 1e3:.3f} ms" if times else "not measured in one step"
    device = jax.devices()[0]
    print(
        f"norm={config.norm} style={config.style} dtype={config.dtype} width={config.width} "
        f"layers={config.layers} context={options.context} batch={options.batch} "
        f"on {device.device_kind}: step time {step_time}, "
        f"mean loss of the last {len(result[-LAST:])} steps {result[-LAST:].mean():.4f}"
    )
    return result


def plot(curves: dict[str, np.ndarray], path: Path) -> None:
    """Draws the losses, one line for each norm."""
    if not importlib.util.find_spec("matplotlib"):
        print(f"{path.name} is not drawn: pip install matplotlib")
        return
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for (name, losses), dash in zip(curves.items(), ("-", "--"), strict=False):
        axes.plot(np.arange(1, len(losses) + 1), losses, dash, label=f"norm={name}")
    axes.set(xlabel="step", ylabel="loss (nats per byte)")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)
    print(f"drew {path}")


def positive(text: str) -> int:
    """An argument that is 1 or more."""
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, got {text}")
    return int(text)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    on_gpu = jax.default_backend() == "gpu"
    parser.add_argument(
        "--norm", choices=("ptx", "xla", "both"), default="ptx" if on_gpu else "xla"
    )
    parser.add_argument("--style", choices=("llama", "gemma"), default="llama")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    for name, default in (("steps", 200), ("batch", 16), ("context", 256), ("every", 20)):
        parser.add_argument(f"--{name}", type=positive, default=default)
    for name, default in (("width", 256), ("layers", 4), ("heads", 4)):
        parser.add_argument(f"--{name}", type=positive, default=default)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rate", type=float, default=2e-3, help="the highest learning rate")
    parser.add_argument("--plot", type=Path, default=Path("loss.png"))
    options = parser.parse_args(arguments)
    if options.width % (2 * options.heads):
        parser.error(
            f"--width must be a multiple of 2 x heads, each of which rotates pairs: got --width "
            f"{options.width} --heads {options.heads}"
        )
    if options.seed < 0:
        parser.error(f"--seed must be 0 or more, got {options.seed}")
    longest = len(read_text()) - 2
    if options.context > longest:
        parser.error(f"--context must be at most {longest}, as the text is, got {options.context}")
    return options


def main(arguments: list[str] | None = None) -> dict[str, np.ndarray]:
    """Runs the program; returns the losses by norm."""
    options = parse(arguments)
    config = Config(
        style=options.style,
        width=options.width,
        layers=options.layers,
        heads=options.heads,
        dtype=options.dtype,
    )
    norms = ("xla", "ptx") if options.norm == "both" else (options.norm,)
    curves = {norm: train(dataclasses.replace(config, norm=norm), options) for norm in norms}
    if len(curves) == 2:
        apart = np.abs(curves["ptx"] / curves["xla"] - 1)
        print(f"the two losses differ by at most {apart.max():.2%}, at the end by {apart[-1]:.2%}")
    plot(curves, options.plot)
    return curves


if __name__ == "__main__":
    main()
