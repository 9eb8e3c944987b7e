"""The PTX types: how each is spelled in a register, in memory and in a conversion, and in NumPy.

The three spellings differ: a bfloat16 lives in a `.b16` register, is loaded as `.b16` and converted
as `.bf16`. Nothing lives in a register of less than 16 bits (PTX ISA, "Restricted Use of Sub-Word
Sizes").
"""

from __future__ import annotations

import struct
from typing import Literal

Kind = Literal["pred", "bits", "unsigned", "signed", "float"]

_REGISTERS = {16: ("b16", "%h"), 32: ("b32", "%r"), 64: ("b64", "%rd")}


class DType:
    """A PTX type. The instances below are the only ones; they are compared by identity.

    Attributes:
        name: the name in PTX, without the dot.
        bits: the size of one value, in memory.
        kind: "pred", "bits", "unsigned", "signed" or "float".
        numpy_name: the NumPy (or ml_dtypes) dtype of an array of these, or None: no array has it.
        register: the type of the register that holds a value.
        prefix: what names of such registers begin with.
        memory: the type of a load or store of a value.
        move: the type of a `mov` between registers that hold values.
        conversion: the type in a `cvt`.
    """

    __slots__ = (
        "bits",
        "conversion",
        "kind",
        "memory",
        "move",
        "name",
        "numpy_name",
        "prefix",
        "register",
    )

    def __init__(self, name: str, bits: int, kind: Kind, numpy_name: str | None) -> None:
        self.name: str = name
        self.bits: int = bits
        self.kind: Kind = kind
        self.numpy_name: str | None = numpy_name
        self.conversion: str = name
        self.register: str
        self.prefix: str
        if kind == "pred":
            self.register, self.prefix = "pred", "%p"
        elif name in ("f32", "f64"):
            self.register, self.prefix = name, "%f" if bits == 32 else "%fd"
        else:
            self.register, self.prefix = _REGISTERS[max(bits, 16)]
        untyped = kind == "float" and name not in ("f32", "f64")
        self.memory: str = f"b{bits}" if untyped else name
        self.move: str
        if untyped or bits < 16:
            self.move = name if kind == "pred" else self.register
        else:
            self.move = name

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> str:  # pickled by name, so that identity survives
        return self.name


pred: DType = DType("pred", 1, "pred", None)
b8: DType = DType("b8", 8, "bits", "uint8")
b16: DType = DType("b16", 16, "bits", "uint16")
b32: DType = DType("b32", 32, "bits", "uint32")
b64: DType = DType("b64", 64, "bits", "uint64")
u8: DType = DType("u8", 8, "unsigned", "uint8")
u16: DType = DType("u16", 16, "unsigned", "uint16")
u32: DType = DType("u32", 32, "unsigned", "uint32")
u64: DType = DType("u64", 64, "unsigned", "uint64")
s8: DType = DType("s8", 8, "signed", "int8")
s16: DType = DType("s16", 16, "signed", "int16")
s32: DType = DType("s32", 32, "signed", "int32")
s64: DType = DType("s64", 64, "signed", "int64")
f16: DType = DType("f16", 16, "float", "float16")
f16x2: DType = DType("f16x2", 32, "float", None)
bf16: DType = DType("bf16", 16, "float", "bfloat16")
bf16x2: DType = DType("bf16x2", 32, "float", None)
f32: DType = DType("f32", 32, "float", "float32")
f64: DType = DType("f64", 64, "float", "float64")
e4m3: DType = DType("e4m3", 8, "float", "float8_e4m3fn")
e5m2: DType = DType("e5m2", 8, "float", "float8_e5m2")

ALL: tuple[DType, ...] = (
    *(pred, b8, b16, b32, b64, u8, u16, u32, u64, s8, s16, s32, s64),
    *(f16, f16x2, bf16, bf16x2, f32, f64, e4m3, e5m2),
)
BY_NAME: dict[str, DType] = {dtype.name: dtype for dtype in ALL}
_BY_NUMPY_NAME = {t.numpy_name: t for t in ALL if t.numpy_name and t.kind != "bits"}


def by_numpy_name(name: str) -> DType:
    """The type of the elements of an array whose dtype has this name, such as "bfloat16".

    Raises:
        TypeError: no PTX type holds such elements.
    """
    if name not in _BY_NUMPY_NAME:
        raise TypeError(
            f"no PTX type holds elements of dtype {name}; one of {', '.join(_BY_NUMPY_NAME)}"
        )
    return _BY_NUMPY_NAME[name]


def float_bits(value: float, dtype: DType) -> int:
    """The bits of `value` rounded once, to nearest even, to a float type of 16 bits or more.

    A packed type holds the value in both halves.
    """
    if dtype is f64:
        return int.from_bytes(struct.pack(">d", value), "big")
    if dtype in (f16x2, bf16x2):
        half = float_bits(value, f16 if dtype is f16x2 else bf16)
        return half << 16 | half
    layout = {f32: (8, 23), f16: (5, 10), bf16: (8, 7)}
    if dtype not in layout:
        raise TypeError(f"a float cannot be written as {dtype}: give its bits as an int")
    return _round_bits(value, *layout[dtype])


def _round_bits(value: float, exponent_bits: int, fraction_bits: int) -> int:
    # In integers: `struct` refuses what rounds to infinity, and knows no bfloat16.
    double = int.from_bytes(struct.pack(">d", value), "big")
    sign = double >> 63 << (exponent_bits + fraction_bits)
    exponent, fraction = double >> 52 & 0x7FF, double & (1 << 52) - 1
    infinity = (1 << exponent_bits) - 1 << fraction_bits
    if exponent == 0x7FF:
        quiet_nan = infinity | 1 << (fraction_bits - 1)
        return sign | (quiet_nan if fraction else infinity)
    significand = fraction | (1 << 52 if exponent else 0)
    # Biased exponent in the narrow format; below 1 the value is subnormal there.
    biased = max(exponent, 1) - 1023 + (1 << exponent_bits - 1) - 1
    shift = 52 - fraction_bits + max(0, 1 - biased)
    kept, rest, half = significand >> shift, significand & (1 << shift) - 1, 1 << (shift - 1)
    kept += rest > half or (rest == half and kept & 1)
    # The implicit bit of a normal significand adds one to the exponent; so does a carry out of it.
    bits = kept + (max(biased, 1) - 1 << fraction_bits)
    return sign | min(bits, infinity)
