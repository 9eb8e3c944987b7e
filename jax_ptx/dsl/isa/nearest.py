"""The valid form that is nearest to a wrong name."""

from __future__ import annotations

from difflib import SequenceMatcher
from functools import lru_cache

from jax_ptx.dsl.isa.reading import readings
from jax_ptx.dsl.isa.row import Group, Row
from jax_ptx.dsl.isa.tables import ROWS_BY_OPCODE

_DROP, _INSERT, _MOVED = 1.0, 1.0, 0.1


def nearest_forms(name: str, count: int = 1) -> list[str]:
    """The valid names that need the fewest changes, with the same opcode."""
    opcode, *tokens = name.split(".")
    costs: dict[str, float] = {}
    for row in ROWS_BY_OPCODE.get(opcode, ()):
        cost, values = _align(row, tuple(tokens))
        near = ".".join([opcode, *values])
        if readings(near):
            costs[near] = min(cost, costs.get(near, cost))
    return sorted(costs, key=lambda n: (costs[n], n))[:count]


def _align(row: Row, tokens: tuple[str, ...]) -> tuple[float, tuple[str, ...]]:
    """The cheapest edit of the tokens that the row's groups read, and its cost."""
    groups = row.groups

    @lru_cache(maxsize=None)
    def best(i: int, g: int) -> tuple[float, tuple[str, ...]]:
        if g == len(groups):
            return (len(tokens) - i) * _DROP, ()
        group = groups[g]
        options: list[tuple[float, tuple[str, ...]]] = []

        def add(cost: float, chosen: tuple[str, ...], i: int, g: int) -> None:
            rest, values = best(i, g)
            options.append((cost + rest, chosen + values))

        if i < len(tokens):
            if tokens[i] in group.values:
                add(0, (tokens[i],), i + 1, g + 1)
            add(_DROP, (), i + 1, g)
            likeness, value = max((_likeness(tokens[i], v), v) for v in group.values)
            add(2 - 1.5 * likeness, (value,), i + 1, g + 1)
        if group.optional:
            add(0, (), i, g + 1)
        # A modifier that stands at another place is moved, at the price of dropping it there.
        moved = [v for v in group.values if v in tokens]
        if moved:
            add(_MOVED, (moved[0],), i, g + 1)
        elif not group.optional:
            add(_INSERT, (_usual(group),), i, g + 1)
        return min(options, key=lambda o: o[0])

    return best(0, 0)


def _usual(group: Group) -> str:
    """What a reader would expect in a required group that was left out."""
    for value in ("rn", "f32", "b32", "u32", "gpu"):
        if value in group.values:
            return value
    return group.values[0]


def _likeness(a: str, b: str) -> float:
    """From 0 to 1; types of one size are near, and so are words of one spelling."""
    if a[1:] == b[1:] and a[1:].isdigit():
        return 0.9
    return SequenceMatcher(None, a.lower(), b.lower()).ratio()
