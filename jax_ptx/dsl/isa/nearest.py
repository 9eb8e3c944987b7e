"""The valid form that is nearest to a wrong name."""

from __future__ import annotations

from difflib import SequenceMatcher
from functools import cache

from jax_ptx.dsl.isa.reading import forbidden
from jax_ptx.dsl.isa.row import Group, Row
from jax_ptx.dsl.isa.tables import ROWS_BY_OPCODE

# What a change of one modifier costs. Moving one to another place costs a drop and a move.
_DROP, _INSERT, _MOVE = 1.0, 0.6, -0.3
_USUAL = ("rn", "lo", "f32", "b32", "u32", "gpu", "global")


def nearest_form(name: str) -> str | None:
    """The valid name with the same opcode that needs the fewest changes."""
    opcode, *tokens = name.split(".")
    found = [_nearest_in(row, tuple(tokens)) for row in ROWS_BY_OPCODE.get(opcode, ())]
    if not found:
        return None
    # Among equals the first row: the more usual forms come first in the table.
    _, values = min(found, key=lambda f: f[0])
    return ".".join([opcode, *values])


def _nearest_in(
    row: Row, tokens: tuple[str, ...], cost: float = 0
) -> tuple[float, tuple[str, ...]]:
    changes, values = _align(row.groups, tokens)
    both = forbidden(row, values)
    if not both:
        return cost + changes, tuple(v for v in values if v)
    # One of those that do not go together has to go, if that is possible.
    fewer = []
    for condition in both:
        rest = tuple(t for t in tokens if t != condition.rpartition("=")[2])
        if len(rest) < len(tokens):
            fewer.append(_nearest_in(row, rest, cost + _DROP))
    return min(fewer, key=lambda f: f[0], default=(float("inf"), ()))


def _align(groups: tuple[Group, ...], tokens: tuple[str, ...]) -> tuple[float, tuple[str, ...]]:
    """The cheapest edit that makes the tokens readable: its cost, a value for each group."""

    @cache
    def best(i: int, g: int) -> tuple[float, tuple[str, ...]]:
        if g == len(groups):
            return (len(tokens) - i) * _DROP, ()
        group = groups[g]
        options: list[tuple[float, tuple[str, ...]]] = []

        def add(cost: float, chosen: tuple[str, ...], rest: tuple[float, tuple[str, ...]]) -> None:
            options.append((cost + rest[0], chosen + rest[1]))

        if i < len(tokens):
            if tokens[i] in group.values:
                add(0, (tokens[i],), best(i + 1, g + 1))
            likeness, value = max(((_likeness(tokens[i], v), v) for v in group.values), key=_first)
            add(2 - 1.5 * likeness, (value,), best(i + 1, g + 1))
            add(_DROP, (), best(i + 1, g))
        if group.optional:
            add(0, ("",), best(i, g + 1))
        elsewhere = [v for v in group.values if v in tokens and tokens.count(v) == 1]
        if elsewhere:
            add(_MOVE, (elsewhere[0],), best(i, g + 1))
        elif not group.optional:
            usual = next((v for v in _USUAL if v in group.values), group.values[0])
            add(_INSERT, (usual,), best(i, g + 1))
        return min(options, key=_first)

    return best(0, 0)


def _first(pair: tuple[float, object]) -> float:
    return pair[0]


def _likeness(a: str, b: str) -> float:
    """From 0 to 1. Types of one size are near (untyped bits most), then types of one kind."""
    if a[1:].isdigit() and b[1:].isdigit():
        if a[1:] == b[1:]:
            return 0.92 if b[0] == "b" else 0.9
        return 0.8 if a[0] == b[0] else 0.3
    return SequenceMatcher(None, a.lower(), b.lower()).ratio()
