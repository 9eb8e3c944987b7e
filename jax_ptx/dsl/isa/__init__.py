"""The instruction table of the PTX ISA, and the check of an instruction against it.

isa.find("fma.rn.f32", (d, a, b, c))  ->  Form, with the least PTX version and target
"""

from __future__ import annotations

from collections.abc import Iterator

from jax_ptx.dsl.isa.errors import InstructionError as InstructionError
from jax_ptx.dsl.isa.match import Form as Form
from jax_ptx.dsl.isa.match import find as find
from jax_ptx.dsl.isa.operands import Operand as Operand
from jax_ptx.dsl.isa.row import TARGETS as TARGETS
from jax_ptx.dsl.isa.row import Row as Row
from jax_ptx.dsl.isa.tables import OUTSIDE as OUTSIDE
from jax_ptx.dsl.isa.tables import ROWS_BY_OPCODE


def rows() -> Iterator[Row]:
    """Every row of the table, one per opcode."""
    for group in ROWS_BY_OPCODE.values():
        yield from group
