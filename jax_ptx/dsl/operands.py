"""What an instruction is given: values of a trace, and Python numbers and strings as literals."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from jax_ptx.dsl.isa import Operand
from jax_ptx.types import ALL, BY_NAME, DType, b32, b64, f32, f64, float_bits, pred

if TYPE_CHECKING:
    from jax_ptx.dsl.trace import Trace

SYMBOL = Operand("symbol")
INTEGER = Operand("integer")
FLOAT = Operand("float")
ADDRESS = Operand("address")
REGISTER = {t: Operand("predicate" if t is pred else "register", t) for t in ALL}
SPECIAL = {t: Operand("special", t) for t in ALL}
_ADDRESS_IN = {t: Operand("address", t) for t in ALL}

# In these an integer operand is a count or a size, whatever type the last modifier names.
_COUNTED = ("cp.", "bar.", "barrier.", "mbarrier.", "prefetch.")


class Value:
    """Something that belongs to one trace and may stand in an operand list."""

    __slots__ = ("operand", "text", "trace")

    def __init__(self, trace: Trace, text: str, operand: Operand) -> None:
        self.trace = trace
        self.text = text
        self.operand = operand

    def __str__(self) -> str:
        return self.text


class Address(Value):
    """`[base+offset]`, made by `ptx.addr`. `symbol` is the base if it is one."""

    __slots__ = ("symbol",)

    def __init__(self, trace: Trace, base: str, base_type: DType | None, offset: int) -> None:
        text = f"[{base}+{offset}]" if offset else f"[{base}]"
        super().__init__(trace, text, _ADDRESS_IN[base_type] if base_type else ADDRESS)
        self.symbol = None if base_type else base


@lru_cache(maxsize=4096)
def literal_type(name: str) -> DType | None:
    """The type of an immediate operand of the instruction, as far as its name tells."""
    found = [BY_NAME[m] for m in name.split(".")[1:] if m in BY_NAME]
    if not found or name.startswith(_COUNTED):
        return None
    return found[0] if name.startswith("slct.") else found[-1]


def plain(value: Any) -> Any:
    """A number of NumPy, say, as Python's own int or float; anything else as it is."""
    if isinstance(value, int | float | str | Value):
        return value
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else value


def encode(trace: Trace, name: str, operand: object) -> tuple[str, Operand]:
    """The text and the kind of an operand of the instruction `name`.

    Raises:
        TypeError, ValueError: it cannot be one.
    """
    operand = plain(operand)
    if isinstance(operand, Value):
        return operand.text, operand.operand
    if isinstance(operand, str):
        if operand.startswith("%") and trace.batch is not None:
            replaced = trace.batch.special(trace, operand[1:])
            operand = operand if replaced is None else replaced.text
        return encode_text(operand)
    if isinstance(operand, int):
        return encode_int(name, operand)
    if isinstance(operand, float):
        return encode_float(name, operand)
    if isinstance(operand, tuple) and _is_pair(operand):
        return _encode_pair(trace, operand)
    if isinstance(operand, Sequence):
        return _encode_vector(trace, name, operand)
    raise TypeError(
        f"{type(operand).__name__} is not an operand, which is a register, int, float, str, "
        "ptx.addr(…), shared array, list of registers (a vector) or pair (d, p)"
    )


def encode_text(text: str) -> tuple[str, Operand]:
    """A string: an immediate if it begins with a digit or `-`, else a symbol."""
    if not text[:1].isdigit() and not text.startswith("-"):
        return text, SYMBOL
    is_float = text[:2].lower() in ("0f", "0d")
    return text, FLOAT if is_float else INTEGER


def encode_int(name: str, value: int) -> tuple[str, Operand]:
    """An int: decimal, or the exact bits of a float where the instruction computes with floats."""
    dtype = literal_type(name)
    if dtype is not None and dtype.kind == "float":
        return encode_float(name, float(value))
    # A wide product takes one 64-bit operand, and `cvt` narrows: only there the width is not known.
    bits = 64 if dtype is None or ".wide" in name else max(dtype.bits, 32)
    if not -(1 << (bits - 1)) <= value < 1 << bits:
        raise ValueError(f"{value} does not fit in {bits} bits")
    return str(int(value)), INTEGER


def encode_float(name: str, value: float) -> tuple[str, Operand]:
    """A float: its exact bits in the type of the instruction."""
    dtype = literal_type(name)
    if dtype is not None and dtype in (f32, f64):
        return float_text(value, dtype), FLOAT
    if dtype is not None and dtype in (b32, b64):  # untyped bits take the float of their size
        return f"0x{float_bits(value, f32 if dtype is b32 else f64):0{dtype.bits // 4}X}", INTEGER
    if dtype is not None and dtype.kind == "float":
        raise TypeError(
            f"a .{dtype.name} instruction takes no immediates; "
            f"reg.scalar({dtype.name}, init={value}) puts the value in a register"
        )
    raise TypeError(f"the float {value} is no operand of an instruction without a float type")


def float_text(value: float, dtype: DType) -> str:
    """The exact bits of a float as an immediate."""
    if dtype is f32:
        return f"0f{float_bits(value, f32):08X}"
    if dtype is f64:
        return f"0d{float_bits(value, f64):016X}"
    return f"0x{float_bits(value, dtype):0{dtype.bits // 4}X}"


def _is_pair(operand: tuple[object, ...]) -> bool:
    """(d, p): its second half is a predicate register or the sink `_`; other tuples are vectors."""
    if len(operand) != 2:
        return False
    second = operand[1]
    return second == "_" if isinstance(second, str) else getattr(second, "dtype", None) is pred


def _encode_pair(trace: Trace, pair: tuple[object, ...]) -> tuple[str, Operand]:
    texts, dtype = [], None
    for index, half in enumerate(pair):
        if isinstance(half, str) and half == "_":
            texts.append("_")
            continue
        if not isinstance(half, Value) or half.operand.kind not in ("register", "predicate"):
            raise TypeError("a pair is (d, p): a register or '_', and a predicate register or '_'")
        trace.check_owner(half)
        texts.append(half.text)
        if index == 0:
            dtype = half.operand.dtype
    return "|".join(texts), Operand("pair", dtype)


def _encode_vector(trace: Trace, name: str, elements: Sequence[object]) -> tuple[str, Operand]:
    texts, dtype = [], None
    for element in elements:
        if isinstance(element, Value):
            trace.check_owner(element)
            if element.operand.kind != "register":
                raise TypeError(f"an element of a vector is a register, got {element.text}")
            if dtype is not None and element.operand.dtype is not dtype:
                other = element.operand.dtype
                if other is None or other.bits != dtype.bits:
                    raise TypeError(f"the elements of a vector have types {dtype} and {other}")
            else:
                dtype = element.operand.dtype
            texts.append(element.text)
        elif isinstance(element, str) and element == "_":
            texts.append("_")
        else:
            texts.append(encode(trace, name, element)[0])
    return "{" + ", ".join(texts) + "}", Operand("vector", dtype, len(texts))
