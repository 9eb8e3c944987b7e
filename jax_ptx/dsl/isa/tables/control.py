"""Control flow, and what concerns the CTA or the grid as a whole."""

from __future__ import annotations

from jax_ptx.dsl.isa.row import ALSO_BLACKWELL, row

ROWS = (
    row("bra [uni]", "target:sym"),
    row("brx idx [uni]", "index:u32, targets:sym"),
    row("ret [uni]"),
    row("exit"),
    row("trap"),
    row("brkpt"),
    row("nanosleep u32", "t:u32+"),
    row("pmevent [mask]", "a:int=3"),
    row("griddepcontrol launch_dependents|wait", since="7.8 sm_90"),
    row(
        "setmaxnreg inc|dec sync aligned u32",
        "n:int=64%8",
        since="8.0 sm_90a",
        also=f"sm_100a {ALSO_BLACKWELL}",
    ),
)
