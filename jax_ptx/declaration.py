"""What a kernel declares beside its body, checked: tiles, grid, block, cluster, shared memory, aliases.

A kernel in Python and one from a text have this in common, and what can be read off a text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Self

from jax_ptx import toolkit
from jax_ptx.dsl.tile import Tile
from jax_ptx.geometry import Dim3, Grid, Size, block_size, cluster_size, grid_size
from jax_ptx.report import Report, report
from jax_ptx.signature import Signature


class Declared:
    """A kernel's declaration. `@kernel` and `ptx_kernel` make what derives from it."""

    def __init__(
        self, signature: Signature, *, grid: Grid, block: Size, cluster: Size, smem: int
    ) -> None:
        name = signature.kernel
        self._signature = signature
        self._block = block_size(name, block)
        self._cluster = cluster_size(name, cluster)
        self._grid: Grid = grid
        if not callable(grid):
            grid_size(name, grid, {}, self._cluster)
        if isinstance(smem, bool) or not isinstance(smem, int):
            raise TypeError(
                f"{name}: smem must be a number of bytes, an int, got {smem!r} of type "
                f"{type(smem).__name__}"
            )
        if smem < 0:
            raise ValueError(f"{name}: smem must be a number of bytes, 0 or more, got {smem}")
        self._smem = smem

    def __copy__(self) -> Self:
        return self  # as a function's: nothing of it changes but what it keeps for the next call

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> Any:
        """By name, as functions are; what has none is not pickled."""
        name = getattr(self, "__qualname__", None)
        if name is None:
            raise TypeError(
                f"{self._signature.kernel}: a kernel of a text cannot be pickled; pickle the text, and call "
                "ptx_kernel again"
            )
        return name

    @property
    def in_specs(self) -> tuple[Tile, ...]:
        """The tiles of the inputs."""
        return self._signature.in_specs

    @property
    def out_specs(self) -> tuple[Tile, ...]:
        """The tiles of the outputs."""
        return self._signature.out_specs

    @property
    def grid(self) -> Grid:
        """The grid, or the callable that gives it."""
        return self._grid

    @property
    def block(self) -> Dim3:
        """Threads of a CTA along x, y, z."""
        return self._block

    @property
    def cluster(self) -> Dim3:
        """CTAs of a cluster along x, y, z."""
        return self._cluster

    @property
    def smem(self) -> int:
        """Dynamic shared memory asked for, in bytes."""
        return self._smem

    def _report(self, text: str, smem_bytes: int) -> Report:
        return report(text, self._signature.kernel, math.prod(self._block), smem_bytes)

    def _sass(self, text: str, target: str) -> str:
        return toolkit.disassemble(toolkit.assemble(text, target)[self._signature.kernel].cubin)


def tiles(kernel: str, argument: str, specs: Any) -> tuple[Tile, ...]:
    """Checks `in_specs=` or `out_specs=`.

    Raises:
        TypeError: it is no tuple or list of `Tile`.
    """
    expected = f"{kernel}: {argument} must be a tuple of Tile"
    if isinstance(specs, Tile):
        raise TypeError(f"{expected}, got {specs!r} alone; write ({specs!r},)")
    if not isinstance(specs, tuple | list):
        raise TypeError(f"{expected}, got {specs!r}; () where there is no tensor")
    for index, tile in enumerate(specs):
        if not isinstance(tile, Tile):
            raise TypeError(f"{expected}, got {tile!r} at position {index}")
    return tuple(specs)


def alias_pairs(kernel: str, aliases: Any) -> tuple[tuple[int, int], ...]:
    """Checks the form of `input_output_aliases=`; what it names, `Signature.check_aliases` does.

    Raises:
        TypeError: it is no mapping of positions to positions.
    """
    if aliases is None:
        return ()
    pairs = tuple(aliases.items()) if isinstance(aliases, Mapping) else ((aliases, None),)
    if any(type(position) is not int for pair in pairs for position in pair):
        raise TypeError(
            f"{kernel}: input_output_aliases must be a dict {{input: output}} of positions, got "
            f"{aliases!r}"
        )
    return pairs
