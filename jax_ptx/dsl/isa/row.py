"""How a row of the instruction table is written, and what it is once read.

A row states one line of the PTX ISA's syntax summary:

    row("fma rn|rz|rm|rp [ftz] [sat] f32", "d:f32, a:f32+, b:f32+, c:f32+", since="6.3 sm_75")

The first word is the opcode. Every other word is a *group*: the modifiers allowed at that place,
in square brackets where the place may stay empty. `T:u32|s32` names the group, so that the operands
can refer to the modifier chosen there.

Operands are `name:what`, in order, where `what` is one or more of these, joined by `/`:

    u32, T, T.wide   a register of that type, of the type chosen in group T, of twice its width
    i32              a register of that size that is of no float type
    T+               the same, or an immediate of that type
    T~               the same register, or a wider one (loads, stores and conversions only)
    T*4, T*V         a vector of four, of as many as group V says (`v2`, `x4`; a scalar if empty);
                     `T*V+` takes an immediate where it is a scalar
    T|pred, T||pred  a register with an optional, with a required second destination, `d|p`
    pred             a predicate register
    int              an integer immediate
    T%               the same, or a special register of that size
    addr, sym, _     an address, a symbol, the sink `_` for a result that is not wanted

An immediate may be followed by a value that fits the instruction, for the samples, and by what a
value must be: `u32+=64`, `u32+=64%32` (a multiple of 32), `u32+=1<16`, `int=4|8|16` (one of these).

`name?` may be left out; `name@modifier` is there if and only if that modifier is; `name?@modifier`
may be there only with that modifier.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

Version = tuple[int, int]

# The least PTX version that knows a target. The list ends where ptxas 13 does; sm_75 is its oldest.
TARGETS: dict[tuple[int, str], Version] = {
    (75, ""): (6, 3),
    (80, ""): (7, 0),
    (86, ""): (7, 1),
    (87, ""): (7, 4),
    (88, ""): (9, 0),
    (89, ""): (7, 8),
    (90, ""): (7, 8),
    (90, "a"): (8, 0),
    (100, ""): (8, 6),
    (100, "a"): (8, 6),
    (103, ""): (8, 8),
    (103, "a"): (8, 8),
    (110, ""): (9, 0),
    (110, "a"): (9, 0),
    (120, ""): (8, 7),
    (120, "a"): (8, 7),
    (121, ""): (8, 8),
    (121, "a"): (8, 8),
}
FLOOR = "6.3 sm_75"
# What sm_100a has and the later architecture-specific targets kept.
ALSO_BLACKWELL = "sm_103a sm_110a sm_120a sm_121a"


class Since(NamedTuple):
    """The least PTX version and target that have something."""

    version: Version
    target: int
    suffix: str = ""

    def at_least(self, other: Since) -> Since:
        """The least that has both."""
        target = max((self.target, self.suffix), (other.target, other.suffix))
        return Since(max(self.version, other.version), *target)


class Group(NamedTuple):
    """The modifiers allowed at one place of an instruction's name."""

    name: str
    values: tuple[str, ...]
    optional: bool


class Allowed(NamedTuple):
    """One thing an operand may be."""

    kind: str
    type: str = ""
    wide: bool = False
    relaxed: bool = False
    elements: str = ""
    sample: str = ""
    limit: str = ""


class OperandSpec(NamedTuple):
    """One place in the operand list."""

    name: str
    allowed: tuple[Allowed, ...]
    optional: bool
    only_with: str


@dataclass(frozen=True)
class Row:
    """One row of the table, read; see `row` for what the parts mean."""

    opcode: str
    groups: tuple[Group, ...]
    operands: tuple[OperandSpec, ...]
    since: Since
    needs: tuple[tuple[tuple[str, ...], Since], ...]
    forbid: tuple[tuple[str, ...], ...]
    also: tuple[tuple[int, str], ...]

    @cached_property
    def modifiers(self) -> frozenset[str]:
        """Every modifier that the row has at any place."""
        return frozenset(value for group in self.groups for value in group.values)

    def __str__(self) -> str:
        words = [self.opcode]
        for group in self.groups:
            text = "|".join("." + value for value in group.values)
            words.append("{" + text + "}" if group.optional else text)
        names = (f"[{o.name}]" if o.allowed[0].kind == "address" else o.name for o in self.operands)
        return " ".join(words) + "  " + ", ".join(names)


@cache
def parse_since(text: str) -> Since:
    """Reads "8.0", "sm_90", "sm_90a" or "8.0 sm_90"; a target brings its own least version."""
    version, target, suffix = (0, 0), 75, ""
    for word in text.split():
        if word.startswith("sm_"):
            suffix = "a" if word.endswith("a") else ""
            target = int(word[3:].removesuffix("a"))
        else:
            major, minor = word.split(".")
            version = (int(major), int(minor))
    return Since(max(version, TARGETS[target, suffix]), target, suffix)


def row(
    syntax: str,
    operands: str = "",
    *,
    since: str = FLOOR,
    needs: Mapping[str, str] | None = None,
    forbid: Iterable[str] = (),
    also: str = "",
) -> Row:
    """One row of the table.

    Args:
      syntax: the opcode and its groups of modifiers.
      operands: the operand list.
      since: the least PTX version and target of every form of the row.
      needs: what a combination of modifiers needs beyond that: "bf16" is the modifier anywhere,
        "D=bf16" in group D, "rn bf16" both at once.
      forbid: combinations, written in the same way, that the ISA does not have.
      also: the other architecture-specific targets that have the row, if `since` names one. Such a
        target's features are not those of the next: "sm_103a" is no superset of "sm_100a".
    """
    opcode, *words = syntax.split()
    return Row(
        opcode,
        tuple(_parse_group(word) for word in words),
        tuple(_parse_operand(word) for word in re.split(r",\s+", operands) if word),
        parse_since(since),
        tuple((tuple(k.split()), parse_since(v)) for k, v in (needs or {}).items()),
        tuple(tuple(f.split()) for f in forbid),
        tuple(parse_since(target)[1:] for target in also.split()),
    )


@cache
def _parse_group(word: str) -> Group:
    optional = word.startswith("[")
    word = word.strip("[]")
    # `::` belongs to a modifier, a single colon ends the group's name.
    named = re.match(r"(\w+):(?!:)", word)
    values = word[named.end() :] if named else word
    return Group(named[1] if named else "", tuple(values.split("|")), optional)


@cache
def _parse_operand(word: str) -> OperandSpec:
    name, what = re.split(r"(?<!:):(?!:)", word, maxsplit=1)
    name, _, only_with = name.partition("@")
    allowed = tuple(a for part in what.split("/") for a in _parse_allowed(part))
    return OperandSpec(name.removesuffix("?"), allowed, name.endswith("?"), only_with)


def _parse_allowed(text: str) -> list[Allowed]:
    text, _, sample = text.partition("=")
    sample, limit = re.fullmatch(r"(-?\d*)(.*)", sample).groups()  # type: ignore[union-attr]
    if limit.startswith("|"):
        limit = f"|{sample}{limit}"
    if text == "int":
        return [Allowed("integer", sample=sample, limit=limit)]
    if text in ("addr", "sym", "_"):
        return [Allowed({"addr": "address", "sym": "symbol", "_": "sink"}[text])]
    destination, _, second = text.partition("|")
    destination, special = destination.removesuffix("%"), destination.endswith("%")
    text, immediate = destination.removesuffix("+"), destination.endswith("+")
    text, _, count = text.partition("*")
    text, relaxed = text.removesuffix("~"), text.endswith("~")
    text, wide = text.removesuffix(".wide"), text.endswith(".wide")
    kind = "vector" if count else "predicate" if text == "pred" else "register"
    result = [Allowed(kind, text, wide, relaxed, count)]
    if second:
        result.append(Allowed("pair", text, wide))
    if second.startswith("|"):
        del result[0]
    if special:
        result.append(Allowed("special", text))
    if immediate:
        result.append(Allowed("immediate", text, wide, elements=count, sample=sample, limit=limit))
    return result
