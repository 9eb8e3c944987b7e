"""Assembling what the library emits, with NVIDIA's own assembler."""

from __future__ import annotations

import pytest

from jax_ptx import toolkit

TARGETS = ("sm_80", "sm_89", "sm_90", "sm_100", "sm_120")


def assemble(text: str, target: str) -> dict[str, toolkit.Assembly]:
    """What ptxas makes of a module, by entry; skips the test where there is no ptxas."""
    try:
        toolkit.find("ptxas")
    except toolkit.ToolkitError as e:
        pytest.skip(str(e))
    return toolkit.assemble(text, target)


def assemble_everywhere(text: str) -> None:
    """Assembles for each of `TARGETS` that is not older than the module's own target."""
    least = int(text.split(".target sm_", 1)[1].split()[0].rstrip("abcdefghijklmnopqrstuvwxyz"))
    for target in TARGETS:
        if int(target.removeprefix("sm_")) >= least:
            assemble(text, target)
