"""What is said of an instruction that the table does not have: what came, what is allowed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from jax_ptx.dsl.isa.nearest import nearest_form
from jax_ptx.dsl.isa.operands import (
    Operand,
    accepts,
    describe,
    describe_allowed,
    operand_patterns,
    resolve,
)
from jax_ptx.dsl.isa.reading import Reading, choices, forbidden
from jax_ptx.dsl.isa.row import Group, OperandSpec, Row
from jax_ptx.dsl.isa.spelling import spelled
from jax_ptx.dsl.isa.tables import OUTSIDE, OUTSIDE_WITH, ROWS_BY_OPCODE


class InstructionError(ValueError):
    """An instruction that the table does not have. `position` is that of the wrong operand, if one is."""

    position: int | None = None


def wrong_name(name: str) -> InstructionError:
    """The error for a name that no row has."""
    outside = _outside(name)
    if outside:
        return InstructionError(
            f"`{name}` is outside the instruction table ({outside}): "
            "write it as text with ptx.raw(line)"
        )
    opcode, *tokens = name.split(".")
    rows = ROWS_BY_OPCODE.get(opcode)
    if rows is None:
        near = get_close_matches(opcode, ROWS_BY_OPCODE, n=3, cutoff=0.5)
        verb = "is" if len(near) == 1 else "are"
        hint = f"; the nearest {verb} {_listed(near, 'and')}" if near else ""
        return InstructionError(
            f"`{name}`: there is no instruction `{opcode}` in the table{hint}; "
            "ptx.raw(line) writes what the table does not have"
        )
    what, allowed = _wrong_modifier(rows, opcode, tokens)
    near = nearest_form(name)
    nearest = f"the nearest valid form is `{near}`" if near else ""
    if near and spelled(near) != near:
        nearest += f", in Python `ptx.inst.{spelled(near)}`"
    parts = (what, nearest, allowed)
    return InstructionError(f"`{name}`: {'; '.join(filter(None, parts))}")


def wrong_operands(
    name: str, operands: Sequence[Operand], found: Sequence[Reading]
) -> InstructionError:
    """The error for operands that no row of this name allows."""
    patterns = [(r, p) for r in found for p in operand_patterns(r.row, frozenset(r.values))]
    counted = [(r, p) for r, p in patterns if len(p) == len(operands)]
    if not counted:
        expected = _listed(dict.fromkeys(f"`{_signature(name, p)}`" for _, p in patterns), "or")
        came = f"{len(operands)} operand{'' if len(operands) == 1 else 's'}"
        return InstructionError(f"`{name}` was given {came}; it is written {expected}")
    # The pattern whose first wrong operand comes last is the one that was meant.
    wrong = {i: _first_wrong(r, p, operands) for i, (r, p) in enumerate(counted)}
    last = max(wrong.values())
    allowed: dict[str, None] = {}
    for i, (reading, pattern) in enumerate(counted):
        if wrong[i] == last:
            for a in pattern[last].allowed:
                allowed[describe_allowed(resolve(a, reading.row, reading.values))] = None
    reading, pattern = counted[next(i for i in wrong if wrong[i] == last)]
    mend = ""
    if operands[last].kind in ("float", "number") and "immediate" not in " ".join(allowed):
        mend = ", and no immediate: reg.scalar(dtype, init=value) puts a value in a register"
    error = InstructionError(
        f"operand {last + 1} ({pattern[last].name}) of `{_signature(name, pattern)}` is "
        f"{describe(operands[last])}; allowed: {'; '.join(allowed)}{mend}"
    )
    error.position = last
    return error


def _first_wrong(
    reading: Reading, pattern: Sequence[OperandSpec], operands: Sequence[Operand]
) -> int:
    for i, (spec, operand) in enumerate(zip(pattern, operands, strict=True)):
        alternatives = (resolve(a, reading.row, reading.values) for a in spec.allowed)
        if not any(accepts(a, operand) for a in alternatives):
            return i
    return len(operands)


def _wrong_modifier(rows: Sequence[Row], opcode: str, tokens: list[str]) -> tuple[str, str]:
    """What is wrong with the first modifier that no row can read, and what may stand there."""
    for row in rows:
        for values in choices(row.groups, tokens):
            both = forbidden(row, values)
            if both:
                return _together(both), ""
    # How far any row reads the name, and what the rows that read so far would take next.
    reached, allowed = 0, {}
    for row in rows:
        for position, groups in _progress(row.groups, tokens, 0):
            if position > reached:
                reached, allowed = position, {}
            if position == reached:
                allowed.update(dict.fromkeys(_next_values(groups)))
    after = ".".join([opcode, *tokens[:reached]])
    choice = _listed((f".{a}" for a in allowed), "or")
    if reached == len(tokens):
        return f"`{after}` is incomplete", f"it goes on with {choice}"
    came = tokens[reached]
    if any(came in g.values for r in rows for g in r.groups):
        what = f"`.{came}` may not follow `{after}`"
    else:
        what = f"`.{came}` is no modifier of `{opcode}`"
    return what, f"after `{after}` may come {choice}" if choice else f"`{after}` is complete"


def _progress(groups: tuple[Group, ...], tokens: list[str], position: int):
    """How many tokens can be read, and the groups that are left then."""
    yield position, groups
    for i, group in enumerate(groups):
        if position < len(tokens) and tokens[position] in group.values:
            yield from _progress(groups[i + 1 :], tokens, position + 1)
        if not group.optional:
            return


def _next_values(groups: tuple[Group, ...]):
    for group in groups:
        yield from group.values
        if not group.optional:
            return


def _together(conditions: tuple[str, ...]) -> str:
    words = [c.rpartition("=")[2] for c in conditions]
    if len(words) == 1:
        return f"`.{words[0]}` is not allowed here"
    return f"`.{words[0]}` does not go with {_listed((f'`.{w}`' for w in words[1:]), 'and')}"


def _outside(name: str) -> str | None:
    for prefix, why in OUTSIDE.items():
        if name == prefix or name.startswith(prefix + "."):
            return why
    return next((OUTSIDE_WITH[m] for m in name.split(".")[1:] if m in OUTSIDE_WITH), None)


def _signature(name: str, pattern: Sequence[OperandSpec]) -> str:
    def shown(spec: OperandSpec) -> str:
        kinds = {a.kind for a in spec.allowed}
        return f"[{spec.name}]" if "address" in kinds else spec.name

    return f"{name} {', '.join(map(shown, pattern))}".rstrip()


def _listed(words: Iterable[str], last: str) -> str:
    words = list(words)
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} {last} {words[-1]}"
