"""Grid, block and cluster: what a kernel may declare, and the limits that hold on every GPU."""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

Dim3: TypeAlias = tuple[int, int, int]
Size: TypeAlias = int | tuple[int, ...] | list[int]


class GridOfKeywords(Protocol):
    """A function that takes the variables as `**dims`."""

    def __call__(self, **dims: int) -> Size: ...


# The variables come as keywords. It is by their number that a type checker knows a lambda's parameters, which
# `Callable[..., Size]` leaves unknown.
GridFunction: TypeAlias = (
    Callable[[], Size]
    | Callable[[int], Size]
    | Callable[[int, int], Size]
    | Callable[[int, int, int], Size]
    | Callable[[int, int, int, int], Size]
    | GridOfKeywords
)
Grid: TypeAlias = Size | GridFunction

# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
MAX_GRID = (2**31 - 1, 65535, 65535)
MAX_BLOCK = (1024, 1024, 64)
MAX_BLOCK_THREADS = 1024
MAX_CLUSTER_CTAS = 16  # beyond 8 the launch must ask for it, and the device must have it


def block_size(kernel: str, value: Any) -> Dim3:
    """Checks `block=`.

    Raises:
        TypeError, ValueError: it is not up to three positive ints, or more than a CTA may have.
    """
    block = _dim3(kernel, "block", value)
    if any(n < 1 or n > limit for n, limit in zip(block, MAX_BLOCK, strict=True)):
        raise ValueError(f"{kernel}: block must lie between (1, 1, 1) and {MAX_BLOCK}, got {block}")
    if math.prod(block) > MAX_BLOCK_THREADS:
        raise ValueError(
            f"{kernel}: a CTA has at most {MAX_BLOCK_THREADS} threads, and block={block} asks for "
            f"{math.prod(block)}"
        )
    return block


def cluster_size(kernel: str, value: Any) -> Dim3:
    """Checks `cluster=`.

    Raises:
        TypeError, ValueError: it is not up to three positive ints, or more than a cluster may have.
    """
    cluster = _dim3(kernel, "cluster", value)
    if any(n < 1 for n in cluster) or math.prod(cluster) > MAX_CLUSTER_CTAS:
        raise ValueError(
            f"{kernel}: a cluster has 1 to {MAX_CLUSTER_CTAS} CTAs, got cluster={cluster}"
        )
    return cluster


def grid_size(kernel: str, grid: Grid, dims: Mapping[str, Any], cluster: Dim3) -> Dim3:
    """The grid of a launch.

    Args:
        kernel: the kernel's name, for messages.
        grid: what was declared; a callable gets the variables as keywords.
        dims: the variables, and the constants that a callable may name besides.
        cluster: the cluster, of which the grid is a multiple.

    Raises:
        TypeError, ValueError: it is not up to three ints within the limits.
    """
    value = _evaluated(kernel, grid, dims) if callable(grid) else grid
    size = _dim3(kernel, "grid", value)
    if callable(grid) and 0 in size and all(n != 0 for n in dims.values() if type(n) is int):
        raise ValueError(
            f"{kernel}: grid {size} is empty for {dict(dims)}, and no result would be written; a division "
            "that rounds up is -(-n // 128)"
        )
    if any(not 0 <= n <= limit for n, limit in zip(size, MAX_GRID, strict=True)):
        raise ValueError(f"{kernel}: grid must lie between (0, 0, 0) and {MAX_GRID}, got {size}")
    if any(n % c for n, c in zip(size, cluster, strict=True)):
        raise ValueError(f"{kernel}: grid {size} is not a multiple of cluster {cluster}")
    return size


def _evaluated(kernel: str, grid: Callable[..., Size], dims: Mapping[str, Any]) -> Size:
    parameters = inspect.signature(grid).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return grid(**dims)
    unknown = [p.name for p in parameters if p.default is p.empty and p.name not in dims]
    if unknown:
        raise TypeError(
            f"{kernel}: grid takes {unknown[0]!r}, which is no variable of a tile and no constant of the "
            f"call; those are {', '.join(dims) or 'none'}"
        )
    return grid(**{p.name: dims[p.name] for p in parameters if p.name in dims})


def _dim3(kernel: str, what: str, value: Any) -> Dim3:
    values = value if isinstance(value, tuple | list) else (value,)
    try:
        ints = [operator.index(v) for v in values if not isinstance(v, bool)]
    except TypeError:
        ints = []
    if len(ints) != len(values) or not 1 <= len(values) <= 3:
        raise TypeError(
            f"{kernel}: {what} must be an int or a tuple of one to three ints, got {value!r}"
        )
    x, y, z = [*ints, 1, 1][:3]
    return x, y, z
