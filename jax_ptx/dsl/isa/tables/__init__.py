"""The instruction table of the PTX ISA, as data: one file per family of instructions."""

from __future__ import annotations

from dataclasses import replace

from jax_ptx.dsl.isa.row import Row
from jax_ptx.dsl.isa.tables import (
    atomic,
    barrier,
    compare,
    control,
    convert,
    copy,
    floating,
    integer,
    matrix,
    mbarrier,
    memory,
    warp,
)
from jax_ptx.dsl.isa.tables.outside import OUTSIDE as OUTSIDE
from jax_ptx.dsl.isa.tables.outside import OUTSIDE_WITH as OUTSIDE_WITH

FAMILIES = (
    *(integer, floating, compare, convert, memory, atomic),
    *(warp, barrier, mbarrier, copy, matrix, control),
)


def _by_opcode() -> dict[str, tuple[Row, ...]]:
    """Every row under its opcode. A row written for "min|max" is one row of each."""
    table: dict[str, tuple[Row, ...]] = {}
    for family in FAMILIES:
        for row in family.ROWS:
            for opcode in row.opcode.split("|"):
                table[opcode] = (*table.get(opcode, ()), replace(row, opcode=opcode))
    return table


ROWS_BY_OPCODE: dict[str, tuple[Row, ...]] = _by_opcode()
