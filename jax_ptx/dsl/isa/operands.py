"""Operands: what an instruction was given, what the table allows, and whether they agree."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from jax_ptx.dsl.isa.row import Allowed, OperandSpec, Row

if TYPE_CHECKING:
    from jax_ptx.types import DType


class Operand(NamedTuple):
    """One operand of an instruction, as far as the table is concerned.

    Attributes:
      kind: "register"; "predicate" (a register of type pred, negated or not); "integer" and "float"
        (immediates); "number" (an integer immediate that is not written yet, and may become a float
        where the table has one); "symbol" (a label, a variable, a parameter, or `_`); "vector" (`{a, b}`);
        "address" (`[base+offset]`); "special" (a special register); "pair" (`d|p`, a destination
        and a second, predicate destination).
      dtype: the type of a register, predicate or special register, of the elements of a vector, of
        the first half of a pair (None if that is `_`), of an address' base (None for a symbol).
      width: how many elements a vector has.
    """

    kind: str
    dtype: DType | None = None
    width: int = 1


class Resolved(NamedTuple):
    """What an operand may be, once the modifiers are known."""

    kind: str
    type: str
    bits: int
    relaxed: bool
    width: int
    sample: str
    limit: str = ""


FLOATS = frozenset({"f16", "f16x2", "bf16", "bf16x2", "f32", "f32x2", "f64"})
# Register types that PTX itself has; every other type lives in an untyped register of its size.
_TYPED_FLOAT_REGISTERS = frozenset({"f32", "f64"})
_BITS = {"e4m3": 16, "e5m2": 16}


def type_bits(name: str) -> int:
    """The bits of a register that holds this type; nothing lives in less than 16."""
    if name in _BITS:
        return _BITS[name]
    scalar, _, count = name.partition("x")
    return max(16, int(scalar.lstrip("abfisu")) * int(count or 1))


def is_float(name: str) -> bool:
    """Whether an instruction type computes with floats, so that integers do not agree with it."""
    return name in FLOATS


def resolve(allowed: Allowed, row: Row, values: tuple[str, ...]) -> Resolved:
    """What `allowed` means for the form of `row` with these modifiers."""
    chosen = {g.name: v for g, v in zip(row.groups, values, strict=True) if g.name}
    name, kind, width = chosen.get(allowed.type, allowed.type), allowed.kind, 1
    count = chosen.get(allowed.elements, allowed.elements)
    if count:
        kind, width = "vector", int(count.lstrip("vx"))
    elif kind == "vector":
        kind = "register"
    if not name or name == "pred":
        return Resolved(kind, name, 0, False, width, allowed.sample, allowed.limit)
    bits = type_bits(name)
    if allowed.wide:
        bits *= 2
        name = f"{name.rstrip('0123456789')}{bits}"
    return Resolved(kind, name, bits, allowed.relaxed, width, allowed.sample, allowed.limit)


def agrees(register: DType, to: Resolved) -> bool:
    """Whether a register of this type may stand for an instruction type.

    As in the ISA, "Type Checking of Operands": sizes are equal, or the register's is larger where
    an instruction on integers allows that; untyped bits agree with everything, signed with unsigned
    integers, a float with itself and with untyped bits.
    """
    name = register.name
    if name == "pred":
        return to.type == "pred"
    bits = max(register.bits, 16)
    if bits != to.bits and not (to.relaxed and bits > to.bits and not is_float(to.type)):
        return False
    if to.type.startswith("b") and not is_float(to.type):
        return True
    if is_float(to.type):
        return name == to.type or name == f"b{bits}"
    return name not in _TYPED_FLOAT_REGISTERS


def accepts(to: Resolved, operand: Operand) -> bool:
    """Whether the operand is what is allowed."""
    kind, dtype = operand.kind, operand.dtype
    if to.kind == "immediate":
        if kind == "number" or to.type in ("b32", "b64"):
            return kind in ("integer", "float", "number")
        return kind == ("float" if is_float(to.type) else "integer")
    if to.kind == "integer":
        return kind in ("integer", "number")
    if to.kind == "sink":
        return kind == "symbol"
    if kind != to.kind:
        return False
    if kind == "vector" and operand.width != to.width:
        return False
    if kind == "address":
        return dtype is None or (dtype.bits in (32, 64) and not is_float(dtype.name))
    if kind in ("register", "vector", "pair"):
        # Without a type: the sink in a pair, or a vector of nothing but sinks and immediates.
        return agrees(dtype, to) if dtype else kind != "register"
    if kind == "special":
        return dtype is None or dtype.bits == to.bits
    return True


def describe(operand: Operand) -> str:
    """What came, in words."""
    kind, dtype = operand.kind, operand.dtype
    of = f".{dtype.name}" if dtype else "untyped"
    match kind:
        case "register":
            return f"a {of} register"
        case "predicate":
            return "a predicate register"
        case "vector":
            return f"a vector of {operand.width} {of} registers"
        case "pair":
            return f"a pair d|p with a {of} d"
        case "special":
            return f"a special register ({of})"
        case "integer" | "number":
            return "an integer immediate"
        case "float":
            return "a float immediate"
        case "address" if dtype:
            return f"an address in a {of} register"
        case _:
            return {"address": "an address", "symbol": "a symbol"}.get(kind, kind)


def describe_allowed(to: Resolved) -> str:
    """What is allowed, in words."""
    wider = ", or a wider one" if to.relaxed and not is_float(to.type) else ""
    match to.kind:
        case "register":
            return f"a {_types(to)} register{wider}"
        case "predicate":
            return "a predicate register"
        case "vector":
            return f"a vector of {to.width}, each a {_types(to)} register{wider}"
        case "pair":
            return f"a pair d|p with a {_types(to)} d" if to.bits else "a pair p|q of predicates"
        case "immediate" if to.type in ("b32", "b64"):
            return "an immediate"
        case "immediate":
            return "a float immediate" if is_float(to.type) else "an integer immediate"
        case "integer":
            return "an integer immediate"
        case "address":
            return "an address [base+offset], its base a symbol or a register of 32 or 64 bits"
        case "special":
            return f"a special register of {to.bits} bits"
        case "sink":
            return "`_`"
        case _:
            return "a symbol"


def _types(to: Resolved) -> str:
    if is_float(to.type):
        return f".{to.type} or .b{to.bits}"
    if to.type.startswith("b"):
        return f"{to.bits}-bit"
    return f".u{to.bits}, .s{to.bits} or .b{to.bits}"


def operand_patterns(row: Row, modifiers: frozenset[str]) -> list[tuple[OperandSpec, ...]]:
    """The operand lists that a form may have, the longest first."""
    patterns: list[tuple[OperandSpec, ...]] = [()]
    for spec in row.operands:
        if spec.only_with and spec.only_with not in modifiers:
            continue
        longer = [(*p, spec) for p in patterns]
        patterns = longer + patterns if spec.optional else longer
    return sorted(patterns, key=len, reverse=True)
