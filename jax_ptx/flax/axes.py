"""Axes as Flax's layers take them."""

from __future__ import annotations

from collections.abc import Iterable

from numpy.exceptions import AxisError


def canonical_axes(rank: int, axes: int | Iterable[int], name: str) -> tuple[int, ...]:
    """The axes counted from 0, each once and in order.

    Raises:
        numpy.exceptions.AxisError: an IndexError and a ValueError, of which the originals raise one or the
            other, for an axis that x does not have.
        TypeError: for what is no axis.
        ValueError: for one axis that is named in two ways, where the originals refuse it.
    """
    given = tuple(axes) if isinstance(axes, Iterable) else (axes,)
    if not all(hasattr(axis, "__index__") for axis in given):
        raise TypeError(f"RMSNorm: {name} must be an integer or several, got {axes!r}")
    # Like the originals: -1 may stand beside rank - 1, and what is negative still counts from the end again.
    shifted = {axis + rank if axis < 0 else axis for axis in given}
    for axis in shifted:
        if not -rank <= axis < rank:
            raise AxisError(f"RMSNorm: {name} must be axes of x, which has rank {rank}, got {axes}")
    found = sorted(axis % rank for axis in shifted)
    if len(set(found)) < len(found):
        raise ValueError(f"RMSNorm: {name} must differ from each other, got {axes}")
    return tuple(found)
