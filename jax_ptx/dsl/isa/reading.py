"""Reads the dotted name of an instruction against the rows of the table."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from jax_ptx.dsl.isa.row import Group, Row, Since
from jax_ptx.dsl.isa.tables import ROWS_BY_OPCODE


class Reading(NamedTuple):
    """A row that a name belongs to, with the modifier chosen in each group (or "")."""

    row: Row
    values: tuple[str, ...]
    since: Since


@cache
def readings(name: str) -> tuple[Reading, ...]:
    """The rows that have this name; none if the name is wrong."""
    opcode, *tokens = name.split(".")
    return tuple(
        Reading(row, values, least(row, values))
        for row in ROWS_BY_OPCODE.get(opcode, ())
        if row.modifiers.issuperset(tokens)
        for values in choices(row.groups, tokens)
        if forbidden(row, values) is None
    )


def choices(groups: tuple[Group, ...], tokens: list[str]) -> Iterator[tuple[str, ...]]:
    """Every way to hand out the tokens to the groups, in order."""
    if not groups:
        if not tokens:
            yield ()
        return
    first, rest = groups[0], groups[1:]
    if tokens and tokens[0] in first.values:
        yield from ((tokens[0], *tail) for tail in choices(rest, tokens[1:]))
    if first.optional:
        yield from (("", *tail) for tail in choices(rest, tokens))


def has(row: Row, values: tuple[str, ...], condition: str) -> bool:
    """Whether "bf16" (anywhere) or "D=bf16" (in group D) holds."""
    group, _, value = condition.rpartition("=")
    if not group:
        return value in values
    return any(g.name == group and v == value for g, v in zip(row.groups, values, strict=True))


def least(row: Row, values: tuple[str, ...]) -> Since:
    """The least PTX version and target for this choice of modifiers."""
    since = row.since
    for conditions, needed in row.needs:
        if all(has(row, values, c) for c in conditions):
            since = since.at_least(needed)
    return since


def forbidden(row: Row, values: tuple[str, ...]) -> tuple[str, ...] | None:
    """The combination of modifiers that the ISA does not have, if this is one."""
    for conditions in row.forbid:
        if all(has(row, values, c) for c in conditions):
            return conditions
    return None
