"""Kernel times in JAX, by CUPTI."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any


class _Rotating:
    """A compiled function that takes the next set of operands at each call.

    The profiler calls what it measures once before, and would find those operands in L2.
    """

    def __init__(self, call: Callable[..., Any], sets: Sequence[Any]) -> None:
        self._call, self._sets = call, itertools.cycle(sets)

    def __call__(self) -> Any:
        return self._call(*next(self._sets))

    def trace(self) -> Any:  # with `lower`, what makes it a jax.stages.Wrapped
        raise NotImplementedError("it is compiled")

    lower = trace


def jax_kernels(
    call: Callable[..., Any], sets: Sequence[Any], runs: int
) -> list[list[tuple[str, float]]]:
    """Names and microseconds of the kernels of each of `runs` calls, two or more."""
    found = _measured(_Rotating(call, sets), (), iterations=runs)
    return [[(name, ms * 1e3) for name, ms in run] for run in found]


def kernels_of(call: Callable[..., Any], operands: Sequence[Any]) -> list[tuple[str, float]]:
    """Names and microseconds of the kernels of one call, which follows another of the same."""
    return [(name, ms * 1e3) for name, ms in _measured(call, operands)]


def _measured(call: Callable[..., Any], operands: Sequence[Any], **options: Any) -> Any:
    from jax.experimental.mosaic.gpu import profiler

    measure = profiler.Cupti(finalize=False).measure(call, aggregate=False, **options)
    _, found = measure(*operands)
    if not found:
        raise RuntimeError("CUPTI saw no kernel: is another profiler attached?")
    return found
