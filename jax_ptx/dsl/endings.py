"""Mistakes that show at the end of a trace: what was made and never used, or named and never made."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jax_ptx.dsl.trace import Trace


def check_unused(trace: Trace) -> None:
    """Refuses a branch or a loop that no statement entered."""
    for block, where in trace.unused.items():
        what = block.what
        raise trace.error(
            ValueError, f"{what} alone does nothing: write `{block.statement} {what}(…):`", where
        )


def check_symbols(trace: Trace) -> None:
    """Refuses a symbol that the author wrote and that nothing has."""
    if trace.raw:  # a line of the author's own may define anything
        return
    known = {*trace.names, *(array.name for array in trace.shared), "smem"}
    known.update(line[:-1] for line in trace.body if line.endswith(":"))
    for name, where in trace.mentioned.items():
        if name in known or trace.gives_out(name):
            continue
        near = get_close_matches(name, known, n=1)
        hint = f"; the nearest is {near[0]!r}" if near else ""
        if name.startswith("%"):
            hint = "; ptx.special has the special registers, and ptx.raw takes any line"
        raise trace.error(
            ValueError, f"there is no label or symbol {name!r} in this kernel{hint}", where
        )
