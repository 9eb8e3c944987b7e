"""What the examples share: run each case under jax.jit and on PyTorch tensors, compare, print a line."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from absl import app, logging

ATOL, RTOL = 1e-4, 1e-3


@dataclass(frozen=True)
class Example:
    """A kernel and what it is compared with.

    Attributes:
        build: makes the kernel for a case, `build(*case)`.
        inputs: makes a case's numpy arrays.
        jax_formula: the framework's own way, on jax arrays.
        torch_formula: the same on PyTorch tensors.
        cases: sizes, by the names in `labels`.
    """

    build: Callable[..., Callable]
    inputs: Callable[..., tuple[np.ndarray, ...]]
    jax_formula: Callable
    torch_formula: Callable
    cases: Sequence[tuple[int, ...]]
    labels: tuple[str, ...] = ("B", "N")


def run_jax(example: Example, case: tuple[int, ...]) -> tuple[str, Any, Any]:
    """Where the kernel ran, its result and the formula's."""
    arrays = [jax.numpy.asarray(value) for value in example.inputs(*case)]
    got = jax.jit(example.build(*case))(*arrays)
    device = jax.devices()[0]
    where = device.device_kind if device.platform == "gpu" else "emulator"
    return where, np.asarray(got), np.asarray(jax.jit(example.jax_formula)(*arrays))


def run_torch(example: Example, case: tuple[int, ...]) -> tuple[str, Any, Any]:
    """The same with PyTorch tensors."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    tensors = [torch.from_numpy(value).to(device) for value in example.inputs(*case)]
    got = example.build(*case)(*tensors)
    where = torch.cuda.get_device_name() if device == "cuda" else "emulator"
    return where, got.cpu().numpy(), example.torch_formula(*tensors).cpu().numpy()


def run(example: Example) -> None:
    """Runs every case as a program: exit status 1 if any fails."""

    def main(argv: list[str]) -> None:
        if len(argv) > 1:
            raise app.UsageError(f"unexpected argument {argv[1]!r}: the script takes none")
        logging.set_verbosity(
            logging.WARNING
        )  # absl would show what JAX looks for and does not find
        runs = {"jax": run_jax}
        if importlib.util.find_spec("torch"):
            runs["torch"] = run_torch
        failed = False
        for framework, runner in runs.items():
            for case in example.cases:
                where, got, expected = runner(example, case)
                ok = np.allclose(got, expected, atol=ATOL, rtol=RTOL)
                failed |= not ok
                sizes = " ".join(
                    f"{name}={size:<5}" for name, size in zip(example.labels, case, strict=True)
                )
                error = np.max(np.abs(got - expected))
                print(
                    f"{framework:5}  {where}  {sizes}  max error {error:.2e}  {'OK' if ok else 'FAIL'}"
                )
        sys.exit(1 if failed else 0)

    if {"-h", "--help"} & set(sys.argv[1:]):
        print(f"usage: {sys.argv[0]} runs its cases and compares them; it takes no arguments")
        return
    app.run(main)
