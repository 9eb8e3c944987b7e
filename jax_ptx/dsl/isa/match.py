"""Finds the form of an instruction in the table, or says why there is none."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from jax_ptx.dsl.isa import errors
from jax_ptx.dsl.isa.operands import Operand, Resolved, accepts, operand_patterns, resolve
from jax_ptx.dsl.isa.reading import Reading, readings
from jax_ptx.dsl.isa.row import Version


class Form(NamedTuple):
    """One instruction form.

    Attributes:
      name: the dotted name, as it is printed.
      version: the least PTX version that has the form.
      target: the least target that has it, as a number: 90 is sm_90.
      suffix: "a" if only architecture-specific targets have it, as in sm_90a; else "".
      also: the other architecture-specific targets that have it, such as (100, "a").
      places: what the table has at the place of each operand: the type of an immediate is there.
    """

    name: str
    version: Version
    target: int
    suffix: str
    also: tuple[tuple[int, str], ...] = ()
    places: tuple[Resolved, ...] = ()


def find(name: str, operands: tuple[Operand, ...], *, predicated: bool = False) -> Form:
    """The form that `name` has with these operands.

    Args:
      name: the dotted name as it is printed, such as "ld.global.nc.v4.f32".
      operands: what the instruction is given, destinations first.
      predicated: whether a predicate guards it. (Every instruction may be guarded.)

    Raises:
      InstructionError: there is no such form; the text says what came, what is allowed, and the
        nearest valid form.
    """
    del predicated
    return _find(name, operands)


@lru_cache(maxsize=65536)
def _find(name: str, operands: tuple[Operand, ...]) -> Form:
    found = readings(name)
    if not found:
        raise errors.wrong_name(name)
    for reading in found:
        places = fit(reading, operands)
        if places is not None:
            return Form(name, *reading.since, reading.row.also, places)
    raise errors.wrong_operands(name, operands, found)


def fit(reading: Reading, operands: tuple[Operand, ...]) -> tuple[Resolved, ...] | None:
    """What the reading has at the place of each operand; None if one is not allowed there."""
    for pattern in operand_patterns(reading.row, frozenset(reading.values)):
        if len(pattern) != len(operands):
            continue
        places = []
        for spec, operand in zip(pattern, operands, strict=True):
            alternatives = (resolve(a, reading.row, reading.values) for a in spec.allowed)
            place = next((to for to in alternatives if accepts(to, operand)), None)
            if place is None:
                break
            places.append(place)
        else:
            return tuple(places)
    return None
