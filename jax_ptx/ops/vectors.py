"""Pieces of row-wise kernels: vectors of elements between memory, packed registers and wide values.

A vector stays in the registers that it was loaded into (two 16-bit elements share one), and is
widened where it is used: registers are what limits how many loads a thread keeps in flight.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from jax_ptx.dsl import ptx, reg
from jax_ptx.dsl.operands import Address
from jax_ptx.dsl.reg import Reg
from jax_ptx.dsl.tile import Tensor
from jax_ptx.ops.layout import ACCESS_BYTES
from jax_ptx.types import DType, b8, b16, b32, bf16, e4m3, e5m2, f16, f32, f64, u64

Evict = Literal["first", "last"] | None

# What a kernel streams through. L2 then evicts what was written rather than what was read, and so writes it
# to memory all the while (forward, bfloat16 rows of 4,096 on an H200: 125 us, 131 without and 138 with
# `evict_first`; of 131,072: 139 and 141). What comes next is no slower, whether it reads x, y, or neither.
READ: Evict = "last"


def wide_type(dtype: DType) -> DType:
    """The type that `dtype` is computed in."""
    return f64 if dtype is f64 else f32


@dataclass(frozen=True)
class Elements:
    """A run of elements in global memory: where this thread's first one is, and their type.

    Offsets and counts are in elements. A vector's address must be aligned to the vector, or to 16 bytes
    where the vector is longer.

    Attributes:
        pointer: the first one's address.
        dtype: their type.
        policy: what L2 does with them (`createpolicy`); None: what it does with everything.
        no_allocate: whether L1 keeps none of what is loaded, for others to stay there.
    """

    pointer: Reg
    dtype: DType
    policy: Reg | None = None
    no_allocate: bool = False

    @property
    def bytes(self) -> int:
        """The size of one element."""
        return self.dtype.bits // 8

    def skip(self, count: int | Reg, stride: int = 1) -> None:
        """Moves on by `count * stride` elements; a count in a register may be 32 or 64 bits wide."""
        pointer = self.pointer
        pointer += count * (stride * self.bytes)

    def copy(self) -> Elements:
        """The same elements, to be moved on by themselves."""
        return Elements(reg.from_(self.pointer, u64), self.dtype, self.policy, self.no_allocate)

    def load(
        self,
        offset: int,
        count: int,
        pred: Reg | None = None,
        *,
        written: bool = False,
        zeros: bool = True,
    ) -> list[Reg]:
        """Loads a vector into packed registers; where the predicate is false, zeros.

        Args:
            offset: of the vector.
            count: its elements.
            pred: a predicate, or None.
            written: whether the load stays in its place among others like it and among stores: this thread
                stored these elements before, or the order saves registers. One through the read-only cache
                would not see what was stored, and ptxas moves it.
            zeros: False: where the predicate is false the registers have no value, and nobody reads them.
        """
        packed_type, n_packed = _packed(self.dtype, count)
        init = None if pred is None or not zeros else 0
        registers = [reg.scalar(packed_type, init=init) for _ in range(n_packed)]
        for at, part in self._accesses(offset, registers):
            instruction = ptx.inst.ld.global_ if written else ptx.inst.ld.global_.nc
            if self.no_allocate:
                instruction = instruction.L1__no_allocate
            instruction, operands = self.hinted(instruction, _operand(part), at)
            _access(instruction, packed_type, len(part))(*operands, pred=pred)
        return registers

    def load_shared(self, offset_bytes: int, count: int, pred: Reg | None = None) -> list[Reg]:
        """The same from shared memory: the pointer is a shared address, the offset in bytes."""
        packed_type, n_packed = _packed(self.dtype, count)
        init = None if pred is None else 0
        registers = [reg.scalar(packed_type, init=init) for _ in range(n_packed)]
        for at, part in self._accesses(0, registers, offset_bytes):
            _access(ptx.inst.ld.shared, packed_type, len(part))(_operand(part), at, pred=pred)
        return registers

    def store_shared(
        self, offset_bytes: int, registers: Sequence[Reg], count: int, pred: Reg | None = None
    ) -> None:
        """Stores packed registers to shared memory as a vector of so many elements."""
        packed_type, _ = _packed(self.dtype, count)
        for at, part in self._accesses(0, registers, offset_bytes):
            _access(ptx.inst.st.shared, packed_type, len(part))(at, _operand(part), pred=pred)

    def store(self, offset: int, values: Sequence[Reg], pred: Reg | None = None) -> None:
        """Rounds wide values to the elements' type and stores them as a vector."""
        self.store_packed(offset, pack(values, self.dtype), len(values), pred)

    def store_packed(
        self, offset: int, registers: Sequence[Reg], count: int, pred: Reg | None = None
    ) -> None:
        """Stores packed registers as a vector of so many elements."""
        packed_type, _ = _packed(self.dtype, count)
        for at, part in self._accesses(offset, registers):
            instruction, operands = self.hinted(ptx.inst.st.global_, at, _operand(part))
            _access(instruction, packed_type, len(part))(*operands, pred=pred)

    def hinted(self, instruction: Any, *operands: Any) -> tuple[Any, tuple[Any, ...]]:
        """An access to global memory as an instruction and operands, with the policy if there is one."""
        if self.policy is None:
            return instruction, operands
        return instruction.L2__cache_hint, (*operands, self.policy)

    def _accesses(
        self, offset: int, registers: Sequence[Reg], offset_bytes: int = 0
    ) -> Iterator[tuple[Address, list[Reg]]]:
        """The widest accesses that cover a vector: address and registers of each."""
        register_bytes = registers[0].dtype.bits // 8
        width = min(len(registers), ACCESS_BYTES // register_bytes)
        for first in range(0, len(registers), width):
            at = ptx.addr(self.pointer, offset_bytes + offset * self.bytes + first * register_bytes)
            yield at, list(registers[first : first + width])


def elements_of(tensor: Tensor, evict: Evict = None, *, no_allocate: bool = False) -> Elements:
    """A kernel's tensor at its first element.

    Args:
        tensor: the tensor.
        evict: what L2 evicts it before or behind (PTX ISA, "Cache Eviction Priority Hints").
        no_allocate: whether L1 keeps none of what is loaded.
    """
    if tensor.dtype is None:
        raise TypeError(f"{tensor.name} has no tile, and so no type")
    policy = None
    if evict:
        policy = reg.scalar(u64)
        getattr(ptx.inst.createpolicy.fractional, f"L2__evict_{evict}").b64(policy)
    return Elements(ptx.global_ptrs(tensor)[0], tensor.dtype, policy, no_allocate)


def first_of(tensor: Tensor | None, evict: Evict = None) -> Elements | None:
    """The same of a tensor that a kernel may not have."""
    return None if tensor is None else elements_of(tensor, evict)


def widen(registers: Sequence[Reg], dtype: DType) -> list[Reg]:
    """The elements of a loaded vector, in order, as `wide_type(dtype)`."""
    if dtype not in (f16, bf16):
        return list(registers)
    values = []
    for packed in registers:
        halves = [packed] if packed.dtype.bits == 16 else [reg.scalar(b16), reg.scalar(b16)]
        if dtype is bf16 and len(halves) == 2:
            # A bf16 is the upper half of the f32 of the same value: no conversion is needed.
            low, high = reg.scalar(f32), reg.scalar(f32)
            ptx.inst.shl.b32(low, packed, 16)
            ptx.inst.and_.b32(high, packed, 0xFFFF0000)
            values += [low, high]
            continue
        if len(halves) == 2:
            ptx.inst.mov.b32(halves, packed)
        for half in halves:
            value = reg.scalar(f32)
            if dtype is f16:
                ptx.inst.cvt.f32.f16(value, half)
            else:
                zero = reg.scalar(b16, init=0)
                ptx.inst.mov.b32(value, [zero, half])
            values.append(value)
    return values


def convert(value: Reg, dtype: DType) -> Reg:
    """A wide value as the other wide type, rounded to nearest; the value itself if it has that type."""
    if value.dtype is dtype:
        return value
    result = reg.scalar(dtype)
    if dtype is f64:
        ptx.inst.cvt.f64.f32(result, value)
    else:
        ptx.inst.cvt.rn.f32.f64(result, value)
    return result


def pack(values: Sequence[Reg], dtype: DType) -> list[Reg]:
    """Wide values rounded to `dtype`, as a vector's registers.

    What is past the largest value of an 8-bit type becomes that; 8-bit vectors are stored, never loaded.
    """
    if dtype in (e4m3, e5m2):
        return _pack_bytes([convert(value, f32) for value in values], dtype)
    if dtype not in (f16, bf16):
        return list(values)
    if len(values) == 1:
        half = reg.scalar(b16)
        getattr(ptx.inst.cvt.rn, dtype.name).f32(half, values[0])
        return [half]
    registers = []
    for low, high in zip(values[::2], values[1::2], strict=True):
        pair = reg.scalar(b32)
        getattr(ptx.inst.cvt.rn, f"{dtype.name}x2").f32(pair, high, low)
        registers.append(pair)
    return registers


def _pack_bytes(values: Sequence[Reg], dtype: DType) -> list[Reg]:
    pairs = []
    # There is no conversion of one value; the second of a lone one is never stored.
    for low, high in zip(values[::2], values[1::2] or values, strict=True):
        pair = reg.scalar(b16)
        getattr(ptx.inst.cvt.rn.satfinite, f"{dtype.name}x2").f32(pair, high, low)
        pairs.append(pair)
    if len(pairs) == 1:
        return pairs
    registers = []
    for low, high in zip(pairs[::2], pairs[1::2], strict=True):
        quad = reg.scalar(b32)
        ptx.inst.mov.b32(quad, [low, high])
        registers.append(quad)
    return registers


def _packed(dtype: DType, count: int) -> tuple[DType, int]:
    """The type of an access to a vector's registers, and how many registers it takes."""
    if dtype in (e4m3, e5m2):
        return {1: b8, 2: b16}.get(count, b32), max(1, count // 4)
    if dtype in (f16, bf16):
        return (b16, 1) if count == 1 else (b32, count // 2)
    return dtype, count


def _access(instruction, dtype: DType, width: int):
    vector = {1: instruction, 2: instruction.v2, 4: instruction.v4}[width]
    return getattr(vector, dtype.name)


def _operand(registers: Sequence[Reg]):
    return registers[0] if len(registers) == 1 else list(registers)
