"""Shared memory: `smem.alloc`, and element access by `s[row, col]`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NoReturn

from jax_ptx.dsl.module import SharedVariable
from jax_ptx.dsl.operands import SYMBOL, Address, Value, plain
from jax_ptx.dsl.operators import prepare
from jax_ptx.dsl.reg import Reg, from_
from jax_ptx.dsl.trace import Trace, current
from jax_ptx.types import DType, u32

_DEFAULT_ALIGNMENT = 16  # the widest access of a thread, and what bulk copies need


class SharedArray(Value):
    """An array in shared memory: `s[i, j]` loads, `s[i, j] = r` stores; as an operand, its symbol.

    Attributes:
        shape: its dimensions.
        dtype: the type of its elements.
    """

    __slots__ = ("_index", "_offset", "dtype", "shape")

    def __init__(
        self, trace: Trace, index: int, offset: int, shape: tuple[int, ...], dtype: DType
    ) -> None:
        # Where the array is placed is known at the end of the trace: the text holds a reference.
        super().__init__(trace, f"\0{index}+{offset}\0", SYMBOL)
        self._index, self._offset = index, offset
        self.shape: tuple[int, ...] = shape
        self.dtype: DType = dtype

    @property
    def name(self) -> str:
        """The array's name."""
        return self.trace.shared[self._index].name

    @property
    def n_bytes(self) -> int:
        """Its size in bytes."""
        return math.prod(self.shape) * self.dtype.bits // 8

    def __repr__(self) -> str:
        return f"SharedArray({self.name}, {self.shape}, {self.dtype})"

    def symbol(self, offset_bytes: int = 0) -> str:
        """The array's symbol plus an offset."""
        return f"\0{self._index}+{self._offset + offset_bytes}\0"

    def __getitem__(self, index: int | Reg | tuple[int | Reg, ...]) -> Reg:
        address = self._address(self._indices(index))
        value = Reg(self.trace, self.trace.register_name(self.dtype), self.dtype)
        self.trace.emit(f"ld.shared.{self.dtype.memory}", (value, address))
        return value

    def __setitem__(
        self, index: int | Reg | tuple[int | Reg, ...], value: Reg | int | float
    ) -> None:
        indices = self._indices(index)
        trace, dtype, value = self.trace, self.dtype, plain(value)
        if isinstance(value, int | float) and not isinstance(value, bool):
            value = from_(value, dtype)
        if not isinstance(value, Reg):
            raise trace.error(
                TypeError, f"{self.name}[…] = {value!r}: what is stored is a register or a number"
            )
        untyped = "bits" in (value.dtype.kind, dtype.kind)
        same_kind = (value.dtype.kind == "float") == (dtype.kind == "float")
        if value.dtype.bits != dtype.bits or not (untyped or same_kind):
            raise trace.error(
                TypeError,
                f"{self.name} holds {dtype}, and what is stored, {value.text}, is {value.dtype}; "
                "convert it with ptx.inst.cvt",
            )
        trace.emit(f"st.shared.{dtype.memory}", (self._address(indices), value))

    def part(self, *indices: int) -> SharedArray:
        """The part of the array that leading constant indices select, such as one stage of several."""
        if len(indices) > len(self.shape):
            self._wrong_rank(len(indices))
        offset = self._offset
        for axis, (i, stride) in enumerate(zip(indices, self._strides_bytes(), strict=False)):
            offset += self._constant(axis, i) * stride
        shape = self.shape[len(indices) :]
        return SharedArray(self.trace, self._index, offset, shape, self.dtype)

    def _indices(self, index: object) -> tuple[int | Reg, ...]:
        indices = index if isinstance(index, tuple) else (index,)
        if len(indices) != len(self.shape):
            self._wrong_rank(len(indices))
        checked: list[int | Reg] = []
        for axis, i in enumerate(indices):
            if not isinstance(i, Reg):
                i = self._constant(axis, i)
            elif i.dtype.bits not in (32, 64) or i.dtype.kind == "float":
                raise self.trace.error(
                    TypeError, f"index {axis} of {self.name} is {i!r}; it takes 32 or 64 bits"
                )
            checked.append(i)
        return tuple(checked)

    def _constant(self, axis: int, index: object) -> int:
        index = plain(index)
        if isinstance(index, bool) or not isinstance(index, int):
            raise self.trace.error(
                TypeError,
                f"index {axis} of {self.name} is {index!r}; it takes an int or a register",
            )
        if not 0 <= index < self.shape[axis]:
            raise self.trace.error(
                IndexError,
                f"index {axis} of {self.name} is {index}; the dimension has size {self.shape[axis]}",
            )
        return index

    def _wrong_rank(self, came: int) -> NoReturn:
        raise self.trace.error(
            IndexError, f"{self.name} has {len(self.shape)} dimensions, got {came} indices"
        )

    def _strides_bytes(self) -> list[int]:
        element = self.dtype.bits // 8
        return [math.prod(self.shape[axis + 1 :]) * element for axis in range(len(self.shape))]

    def _address(self, indices: Sequence[int | Reg]) -> Address:
        """`[symbol+offset]`, or `[register+offset]`: a `mov`, and a `mad.lo` a register index."""
        trace, offset, base = self.trace, 0, None
        for i, stride in zip(indices, self._strides_bytes(), strict=True):
            if isinstance(i, int):
                offset += i * stride
                continue
            i = prepare("index", i)
            if i.dtype.bits == 64:
                narrow = i.fresh(u32)
                trace.emit("cvt.u32.u64", (narrow, i))
                i = narrow
            if base is None:
                base = i.fresh(u32)
                trace.emit("mov.u32", (base, self))
            address = i.fresh(u32)
            trace.emit("mad.lo.u32", (address, i, stride, base))
            base = address
        if base is None:
            return Address(trace, self.symbol(offset), None, 0, "shared")
        return Address(trace, base.text, base.dtype, offset)


def alloc(
    dtype: DType,
    shape: int | Sequence[int],
    align: int | None = None,
    name: str | None = None,
) -> SharedArray:
    """Declares an array in the CTA's shared memory. Its contents are undefined at first.

    Over 48 KiB in total, all arrays of the kernel become parts of one dynamic array, by themselves.

    Args:
        dtype: the type of an element.
        shape: the dimensions.
        align: alignment in bytes, a power of two; None: 16.
        name: the name in the text; None: the next number.
    """
    trace = current()
    if not isinstance(dtype, DType) or dtype.bits < 8:
        raise trace.error(
            TypeError, f"smem.alloc takes the type of an element, such as f32; got {dtype!r}"
        )
    shape, align = plain(shape), plain(align)
    dims = (shape,) if isinstance(shape, int) else tuple(map(plain, shape))
    if any(isinstance(d, bool) or not isinstance(d, int) or d < 1 for d in dims):
        raise trace.error(
            ValueError, f"smem.alloc: the dimensions must be ints of 1 or more, got {shape}"
        )
    alignment = _DEFAULT_ALIGNMENT if align is None else align
    if alignment < dtype.bits // 8 or alignment & (alignment - 1):
        raise trace.error(
            ValueError,
            f"smem.alloc: align must be a power of two of at least {dtype.bits // 8}, got {align}",
        )
    index = len(trace.shared)
    if name is not None:
        trace.claim(name)
    n_bytes = math.prod(dims) * dtype.bits // 8
    trace.add_shared(SharedVariable(name or f"smem_{index}", n_bytes, alignment))
    return SharedArray(trace, index, 0, dims, dtype)


def base() -> Reg:
    """The address of the dynamic memory that `@kernel(smem=)` asks for, in a new u32 register."""
    trace = current()
    if not trace.dynamic_bytes:
        raise trace.error(
            ValueError, "smem.base(): the kernel asks for no dynamic memory; @kernel(smem=…)"
        )
    return from_("smem", u32)
