"""Launches of kernels whose tensors depend on what is asked for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from jax_ptx.dsl.tile import Tensor, Tile
from jax_ptx.kernel import kernel
from jax_ptx.launch import Launch

MAX_GRID = 2**31 - 1


def launch_of(
    name: str,
    inputs: Mapping[str, Tile],
    outputs: Mapping[str, Tile],
    body: Callable[..., None],
    **declaration: Any,
) -> Launch:
    """The launch of a kernel with these tensors.

    Args:
        name: the entry's.
        inputs: the operands' tiles.
        outputs: the results' tiles.
        body: emits the kernel; gets the tensors by name.
        **declaration: the other arguments of `jax_ptx.kernel`.
    """
    names = (*inputs, *outputs)

    def function(*tensors: Tensor) -> None:
        body(**dict(zip(names, tensors, strict=True)))

    function.__name__ = name
    positional = inspect.Parameter.POSITIONAL_ONLY
    signature = inspect.Signature([inspect.Parameter(each, positional) for each in names])
    function.__signature__ = signature  # pyright: ignore[reportFunctionMemberAccess]
    specs = {"in_specs": tuple(inputs.values()), "out_specs": tuple(outputs.values())}
    return kernel(**specs, **declaration)(function).launch()
