"""Axes as Flax's layers take them."""

from __future__ import annotations

from collections.abc import Iterable


def canonical_axes(rank: int, axes: int | Iterable[int]) -> tuple[int, ...]:
    """The axes counted from 0, each once and in order."""
    axes = axes if isinstance(axes, Iterable) else (axes,)
    return tuple(sorted({axis + rank if axis < 0 else axis for axis in axes}))
