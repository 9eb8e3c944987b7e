"""The emulator against the language's instruction table: it decodes what the language can write, but for the
groups that are listed here."""

from __future__ import annotations

import re

import numpy as np
import pytest

from jax_ptx.dsl import isa
from tests.dsl.isa_samples import module, samples
from tests.ffi.emulation import emulate

# Not emulated: forms of recent chips, and what has no use without the hardware behind it.
NOT_EMULATED = re.compile(
    r"mma\..*kind::f8f6f4.*\.e[23]m[123]"  # 6-bit and 4-bit elements
    r"|(ld|st)matrix\..*b8"
    r"|cvt\.rs\b"  # rounds by random bits
    r"|fma\..*\.oob"  # a NaN that means out of bounds
)


def decodes(line: str) -> bool:
    """Whether the emulator accepts the line; it is never reached."""
    text, _ = module(["ret;", line], (9, 3), "sm_100a")
    text = text.replace(".param .align 32 .b8 p[64]", ".param .u64 p")
    try:
        emulate(text, [np.zeros(1, np.uint64)])
    except (NotImplementedError, ValueError):
        return False
    return True


@pytest.mark.parametrize("opcode", sorted({row.opcode for row in isa.rows()}))
def test_forms_of_the_language_are_emulated(opcode: str):
    lines = []
    for row in isa.rows():
        if row.opcode != opcode:
            continue
        for sample in samples(row):
            if NOT_EMULATED.match(sample.name):
                continue
            lines.append(sample.line)
    # Of the largest groups a part: an odd stride meets all of their modifiers.
    assert [line for line in lines[:: len(lines) // 150 | 1] if not decodes(line)] == []


def test_what_is_not_emulated_is_refused_by_name():
    for row in isa.rows():
        if row.opcode not in ("mma", "ldmatrix", "stmatrix", "cvt", "fma"):
            continue
        left_out = [s for s in samples(row) if NOT_EMULATED.match(s.name)]
        assert not any(decodes(sample.line) for sample in left_out[:3])
