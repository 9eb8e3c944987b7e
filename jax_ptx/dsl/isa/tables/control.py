"""Control flow, and instructions about the CTA as a whole."""

from __future__ import annotations

from jax_ptx.dsl.isa.row import row

ROWS = (
    row("bra [uni]", "target:sym"),
    row("ret [uni]"),
    row("exit"),
    row("trap"),
    row("brkpt"),
    row("nanosleep u32", "t:u32+"),
    row("pmevent", "a:int=3"),
    row("griddepcontrol launch_dependents|wait", since="7.8 sm_90"),
)
