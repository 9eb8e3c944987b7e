"""What a kernel says about its tensors: tiles, dimensions, and what the body sees of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, TypeAlias

from jax_ptx.dsl.operands import SYMBOL, Value, plain
from jax_ptx.types import DType

if TYPE_CHECKING:
    from jax_ptx.dsl.trace import Trace


@dataclass(frozen=True)
class RunTime:
    """A leading dimension whose size the kernel learns at the launch, as one more parameter.

    `ptx.run_time_dim(name)` reads it. The text does not depend on it, while a string dimension is
    bound at the call and specialises the text.
    """

    name: str

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.isidentifier():
            raise ValueError(f"RunTime takes a name that is an identifier, got {self.name!r}")


Dim: TypeAlias = int | str | RunTime


@dataclass(frozen=True, init=False)
class Tile:
    """A tensor of a kernel: `Tile("rows", 4096, bf16)` or `Tile("rows", 4096, dtype=bf16)`.

    Attributes:
        shape: the dimensions: ints; strings, variables that the call binds; in front, a `RunTime`.
        dtype: the type of the elements.
    """

    shape: tuple[Dim, ...]
    dtype: DType

    def __init__(self, *dims: Dim | DType, dtype: DType | None = None) -> None:
        if dims and isinstance(dims[-1], DType):
            if dtype is not None:
                raise TypeError(f"Tile got two dtypes, {dims[-1]} and dtype={dtype}")
            dtype, dims = dims[-1], dims[:-1]
        if not isinstance(dtype, DType):
            got = f"dtype={dtype!r}" if dtype is not None else repr(dims[-1]) if dims else "nothing"
            raise TypeError(
                "Tile takes a dtype of jax_ptx.types last, as in Tile('rows', 4096, f32); got "
                + got
            )
        if dtype.numpy_name is None:
            raise TypeError(
                f"Tile: no array has elements of type {dtype}; give the type of one element"
            )
        shape: list[Dim] = []
        for index, dim in enumerate(map(plain, dims)):
            if isinstance(dim, bool) or not isinstance(dim, int | str | RunTime):
                raise TypeError(
                    f"Tile: dimension {index} is {dim!r}; a dimension is an int, a string (a "
                    "variable) or a RunTime, and the dtype comes last"
                )
            if isinstance(dim, int) and dim < 0:
                raise ValueError(f"Tile: dimension {index} is {dim}; it must be 0 or more")
            if isinstance(dim, str) and not dim.isidentifier():
                raise ValueError(
                    f"Tile: the variable {dim!r} of dimension {index} is not an identifier"
                )
            if isinstance(dim, RunTime) and index:
                raise ValueError(
                    f"Tile: {dim} is dimension {index}; only the leading dimension may be a RunTime"
                )
            shape.append(dim)
        object.__setattr__(self, "shape", tuple(shape))
        object.__setattr__(self, "dtype", dtype)

    def __repr__(self) -> str:
        dims = "".join(f"{dim!r}, " for dim in self.shape)
        return f"Tile({dims}{self.dtype})"

    @property
    def variables(self) -> tuple[str, ...]:
        """The string variables among the dimensions, in order."""
        return tuple(dim for dim in self.shape if isinstance(dim, str))

    @property
    def run_time_dim(self) -> str | None:
        """The name of the leading run-time dimension, if there is one."""
        leading = self.shape[0] if self.shape else None
        return leading.name if isinstance(leading, RunTime) else None


class Tensor(Value):
    """A tensor as the kernel's body sees it: its parameter's name, its shape and its type.

    Attributes:
        shape: ints, and a `RunTime` in front where the tile has one; None without a tile.
        dtype: the type of the elements; None without a tile.
    """

    __slots__ = ("dtype", "shape")

    def __init__(
        self, trace: Trace, name: str, shape: tuple[int | RunTime, ...] | None, dtype: DType | None
    ) -> None:
        super().__init__(trace, name, SYMBOL)
        self.shape: tuple[int | RunTime, ...] | None = shape
        self.dtype: DType | None = dtype

    @property
    def name(self) -> str:
        """The name of the entry's parameter."""
        return self.text

    def _no_elements(self, *_: object) -> NoReturn:
        raise self.trace.error(
            TypeError,
            f"{self.text} is a tensor, which has no arithmetic and no elements here: "
            f"`({self.text}_ptr,) = ptx.global_ptrs({self.text})` gives its address, and "
            "ptx.inst.ld and ptx.inst.st load and store at ptx.addr(address + offset)",
        )

    __add__: Callable[..., NoReturn] = _no_elements
    __radd__: Callable[..., NoReturn] = _no_elements
    __sub__: Callable[..., NoReturn] = _no_elements
    __mul__: Callable[..., NoReturn] = _no_elements
    __rmul__: Callable[..., NoReturn] = _no_elements
    __getitem__: Callable[..., NoReturn] = _no_elements
    __setitem__: Callable[..., NoReturn] = _no_elements

    def __repr__(self) -> str:
        return f"Tensor({self.text}, {self.shape}, {self.dtype})"
