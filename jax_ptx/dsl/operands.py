"""What an instruction is given: values of a trace, and Python numbers and strings as literals."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from jax_ptx.dsl.isa import Operand
from jax_ptx.dsl.isa.operands import Resolved
from jax_ptx.types import ALL, DType, f32, f64, float_bits, pred

if TYPE_CHECKING:
    from jax_ptx.dsl.trace import Trace

SYMBOL = Operand("symbol")
INTEGER = Operand("integer")
FLOAT = Operand("float")
NUMBER = Operand("number")  # an int, until the table says what it is written as
ADDRESS = Operand("address")
REGISTER = {t: Operand("predicate" if t is pred else "register", t) for t in ALL}
SPECIAL = {t: Operand("special", t) for t in ALL}
_ADDRESS_IN = {t: Operand("address", t) for t in ALL}


class Value:
    """Something that belongs to one trace and may stand in an operand list."""

    __slots__ = ("operand", "text", "trace")

    def __init__(self, trace: Trace, text: str, operand: Operand) -> None:
        self.trace: Trace = trace
        self.text: str = text
        self.operand: Operand = operand

    def __str__(self) -> str:
        return self.text


class Address(Value):
    """`[base+offset]`, made by `ptx.addr`.

    Attributes:
        symbol: the base, if it is a symbol.
        place: what restricts where it points: "param", "shared", or "narrow" for a base of 32 bits.
    """

    __slots__ = ("place", "symbol")

    def __init__(
        self, trace: Trace, base: str, base_type: DType | None, offset: int, place: str = ""
    ) -> None:
        text = f"[{base}+{offset}]" if offset else f"[{base}]"
        super().__init__(trace, text, _ADDRESS_IN[base_type] if base_type else ADDRESS)
        self.symbol: str | None = None if base_type else base
        self.place: str = "narrow" if base_type and base_type.bits == 32 else place


def plain(value: Any) -> Any:
    """A number of NumPy, say, as Python's own int or float; anything else as it is."""
    if isinstance(value, int | float | str | Value):
        return value
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else value


def encode(trace: Trace, operand: object) -> tuple[str | None, Operand]:
    """The text and the kind of an operand; no text if `literal` writes it, for its place.

    Raises:
        TypeError, ValueError: it cannot be one.
    """
    operand = plain(operand)
    if isinstance(operand, Value):
        return operand.text, operand.operand
    if isinstance(operand, str):
        special = trace.special_operand(operand[1:]) if operand.startswith("%") else None
        return special or encode_text(trace, operand)
    if isinstance(operand, int):
        return None, NUMBER
    if isinstance(operand, float):
        return None, FLOAT
    if isinstance(operand, tuple) and _is_pair(operand):
        return _encode_pair(trace, operand)
    if isinstance(operand, Sequence):
        return _encode_vector(trace, operand)
    raise TypeError(
        f"{type(operand).__name__} is not an operand, which is a register, int, float, str, "
        "ptx.addr(…), shared array, list of registers (a vector) or pair (d, p)"
    )


def encode_text(trace: Trace, text: str) -> tuple[str, Operand]:
    """A string: an immediate if it begins with a digit or `-`, else a symbol."""
    if not text[:1].isdigit() and not text.startswith("-"):
        trace.mention(text)
        return text, SYMBOL
    is_float = text[:2].lower() in ("0f", "0d")
    return text, FLOAT if is_float else INTEGER


def literal(operand: object, to: Resolved) -> str:
    """A number, or a vector with numbers in it, as the table has it at this place.

    Raises:
        ValueError: it does not fit.
    """
    operand = plain(operand)
    if isinstance(operand, float):
        if to.type not in ("f32", "f64", "b32", "b64"):
            raise TypeError(f"the float {operand} is no operand of type .{to.type}")
        return float_text(operand, f64 if to.bits == 64 else f32, hexadecimal=to.type[0] == "b")
    if isinstance(operand, int):
        if to.type in ("f32", "f64"):
            return float_text(float(operand), f32 if to.type == "f32" else f64)
        return str(_checked(int(operand), to))
    if isinstance(operand, Sequence) and not isinstance(operand, str):
        return "{" + ", ".join(literal(element, to) for element in operand) + "}"
    return str(operand)


def _checked(value: int, to: Resolved) -> int:
    bits = _immediate_bits(to.type)
    low, high = -(1 << (bits - 1)), (1 << bits) - 1
    if not low <= value <= high:
        raise ValueError(f"{value} does not fit in {bits} bits ({low} to {high})")
    if not to.limit:
        return value
    by, _, limit = to.limit.partition("|") if "|" in to.limit else (to.limit[:1], "", to.limit[1:])
    if by == "%" and value % int(limit):
        raise ValueError(f"{value} is not a multiple of {limit}")
    if by == "<" and not 0 <= value < int(limit):
        raise ValueError(f"{value} is not between 0 and {int(limit) - 1}")
    if "|" in to.limit and str(value) not in limit.split("|"):
        raise ValueError(f"{value} must be {' or '.join(dict.fromkeys(limit.split('|')))} here")
    return value


@cache
def _immediate_bits(name: str) -> int:
    return int(re.sub(r"\D", "", name) or 64)


def float_text(value: float, dtype: DType, *, hexadecimal: bool = False) -> str:
    """The exact bits of a float as an immediate."""
    digits = f"{float_bits(value, dtype):0{dtype.bits // 4}X}"
    prefix = {f32: "0f", f64: "0d"}.get(dtype, "0x")
    return f"{'0x' if hexadecimal else prefix}{digits}"


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
        if half.text.startswith("!"):
            raise TypeError(f"{half.text} is no destination: give the predicate register itself")
        trace.check_owner(half)
        texts.append(half.text)
        if index == 0:
            dtype = half.operand.dtype
    return "|".join(texts), Operand("pair", dtype)


def _encode_vector(trace: Trace, elements: Sequence[object]) -> tuple[str | None, Operand]:
    texts, dtype = [], None
    for element in elements:
        if not isinstance(element, Value):
            if isinstance(element, str):
                texts.append(element)
            elif encode(trace, element)[1].kind == "vector":
                raise TypeError("an element of a vector is a register or a number, got a vector")
            continue
        trace.check_owner(element)
        if element.operand.kind != "register":
            raise TypeError(f"an element of a vector is a register, got {element.text}")
        other = element.operand.dtype
        if dtype is not None and other is not dtype and (other is None or other.bits != dtype.bits):
            raise TypeError(f"the elements of a vector have types {dtype} and {other}")
        dtype = dtype or other
        texts.append(element.text)
    width = len(elements)
    text = "{" + ", ".join(texts) + "}" if len(texts) == width else None  # else it has numbers
    return text, Operand("vector", dtype, width)
