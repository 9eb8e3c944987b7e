"""Samples of the instruction table: for every row, forms that between them use every modifier and operand."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from jax_ptx.dsl.isa import Operand
from jax_ptx.dsl.isa.operands import FLOATS, Resolved, operand_patterns, resolve
from jax_ptx.dsl.isa.reading import Reading, forbidden, least
from jax_ptx.dsl.isa.row import Row

# Rows with more forms than this are sampled: every pair of modifiers, not every combination.
FULL_PRODUCT = 600

_LEAVES = ("bra", "brx", "ret", "exit", "trap")
_REGISTERS = (
    *("pred", "b16", "b32", "b64", "b128", "u16", "u32", "u64"),
    *("s16", "s32", "s64", "f32", "f64"),
)


@dataclass(frozen=True)
class Sample:
    """One instruction: its name, and its operands as the table sees them and as text."""

    row: Row
    name: str
    operands: tuple[Operand, ...]
    texts: tuple[str, ...]

    @property
    def line(self) -> str:
        # The guard keeps what follows reachable, so that code is written for it too.
        guard = "@%pred_79 " if self.row.opcode in _LEAVES else ""
        return f"{guard}{self.name} {', '.join(self.texts)}".rstrip() + ";"

    def with_register(self, position: int, name: str) -> Sample | None:
        """The same with another register, or vector of them, at this position if one is there."""
        bits = int("".join(c for c in name if c.isdigit()) or 1)
        kind, width = self.operands[position].kind, self.operands[position].width
        if kind not in ("register", "predicate", "vector") or (kind == "vector" and bits == 1):
            return None
        text = ", ".join(f"%{name}_{8 * position + i}" for i in range(width))
        if kind == "vector":
            text = "{" + text + "}"
        else:
            kind = "predicate" if name == "pred" else "register"
        operands, texts = list(self.operands), list(self.texts)
        operands[position], texts[position] = Operand(kind, Type(name, bits), width), text
        return Sample(self.row, self.name, tuple(operands), tuple(texts))


@dataclass(frozen=True)
class Type:
    """Stands for a register type of the language."""

    name: str
    bits: int


def samples(row: Row, *, registers_too: bool = False) -> Iterator[Sample]:
    """Sampled forms of a row; operand lists and alternatives take turns over the forms.

    With `registers_too`, every form comes with its first operand list and alternatives as well, which
    are registers wherever there may be one.
    """
    for number, values in enumerate(_modifiers(row)):
        reading = Reading(row, values, least(row, values))
        variants = list(_variants(reading))
        turn = number % len(variants)
        chosen = variants if number == 0 else [variants[turn]]
        if registers_too and number and turn:
            chosen.insert(0, variants[0])
        name = ".".join([row.opcode, *filter(None, values)])
        for variant in chosen:
            operands, texts = [], []
            for position, resolved in enumerate(variant):
                operand, text = _operand(resolved, position, name)
                operands.append(operand)
                texts.append(text)
            yield Sample(row, name, tuple(operands), tuple(texts))


def _modifiers(row: Row) -> Iterable[tuple[str, ...]]:
    places = [("", *g.values) if g.optional else g.values for g in row.groups]
    size = 1
    for place in places:
        size *= len(place)
    chosen = itertools.product(*places) if size <= FULL_PRODUCT else _pairs(places)
    return [v for v in dict.fromkeys(chosen) if forbidden(row, v) is None]


def _pairs(places: list[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """Every value of every place with every value of every other, the rest at their first."""
    usual = [p[0] for p in places]
    for i, j in itertools.combinations(range(len(places)), 2):
        for a, b in itertools.product(places[i], places[j]):
            yield tuple(a if k == i else b if k == j else u for k, u in enumerate(usual))


def _variants(reading: Reading) -> Iterator[list[Resolved]]:
    """Every operand list, and every alternative of every operand once."""
    row, values = reading.row, reading.values
    for pattern in operand_patterns(row, frozenset(values)):
        alternatives = [
            [r for a in spec.allowed for r in _choices(resolve(a, row, values))] for spec in pattern
        ]
        for turn in range(max(map(len, alternatives), default=1)):
            yield [options[turn % len(options)] for options in alternatives]


def _choices(to: Resolved) -> list[Resolved]:
    """Itself; a wider register where one is taken; a float where untyped bits are."""
    wider = {16: 32, 32: 64}.get(to.bits)
    if to.relaxed and wider and to.type not in FLOATS:
        return [to, to._replace(type=f"b{wider}", bits=wider)]
    if to.kind == "immediate" and to.type in ("b32", "b64"):
        return [to, to._replace(kind="float")]
    return [to]


def _register(resolved: Resolved, position: int) -> tuple[Type, str]:
    name = resolved.type if resolved.type in _REGISTERS else f"b{resolved.bits}"
    return Type(name, resolved.bits or 1), f"%{name}_{position}"


def _operand(to: Resolved, position: int, name: str) -> tuple[Operand, str]:
    dtype, text = _register(to, 8 * position)
    match to.kind:
        case "register" | "predicate":
            return Operand(to.kind, dtype), text
        case "vector":
            names = [_register(to, 8 * position + i)[1] for i in range(to.width)]
            return Operand("vector", dtype, to.width), "{" + ", ".join(names) + "}"
        case "pair":
            return Operand("pair", dtype), f"{text}|%pred_1"
        case "float":
            return Operand("float"), "0d3FF0000000000000" if to.bits == 64 else "0f3F800000"
        case "immediate" if to.type in FLOATS:
            return _operand(to._replace(kind="float"), position, name)
        case "immediate" | "integer":
            return Operand("integer"), to.sample or "1"
        case "special":
            return Operand("special", dtype), "%clock64" if to.bits == 64 else "%tid.x"
        case "sink":
            return Operand("symbol"), "_"
        case "symbol":
            return Operand("symbol"), _symbol(name)
        case "address":
            if re.search(r"\.param\b", name):
                return Operand("address"), "[p]"
            return Operand("address", Type("b64", 64)), f"[%b64_{60 + position}]"
    raise ValueError(to.kind)


def _symbol(name: str) -> str:
    if name.startswith("br"):
        return "targets" if name.startswith("brx") else "done"
    for space in ("const", "global", "local"):
        if f".{space}" in name:
            return f"in_{space}"
    if ".param" in name:
        return "p"
    # The only space whose addresses fit in 32 bits.
    return "in_shared"


def module(lines: Iterable[str], version: tuple[int, int], target: str) -> tuple[str, int]:
    """PTX text with one instruction a line, and the number of the first one's line."""
    head = [
        f".version {version[0]}.{version[1]}",
        f".target {target}",
        ".address_size 64",
        ".const .align 16 .b8 in_const[64];",
        ".global .align 16 .b8 in_global[64];",
        ".shared .align 16 .b8 in_shared[64];",
        ".visible .entry k(.param .align 32 .b8 p[64]) {",
        ".local .align 16 .b8 in_local[64];",
        "targets: .branchtargets done;",
        # An earlier PTX version has no .b128; only the forms that need it are then refused.
        *(f".reg .{t} %{t}_<80>;" for t in _REGISTERS if t != "b128" or version >= (8, 3)),
    ]
    return "\n".join([*head, *lines, "done: ret;", "}", ""]), len(head) + 1
