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
    r"mma\.(?!sync\.aligned\.m16n8k(8|16)\.row\.col\.(f32\.(b?f16\.b?f16|tf32\.tf32)\.f32|f16\.f16\.f16\.f16)$)"
    r"|(ld|st)matrix\..*b8"  # 8-bit and 4-bit elements
    r"|(atom|red)\..*\.v\d"
    r"|(red\.async|cp\.reduce|st\.async\.(release|mmio)|st\.bulk)\b"
    r"|cp\..*cp_mask"
    r"|(add|sub|fma)(\..*)?\.f32\.b?f16$|fma\..*\.oob"  # of sm_100
    r"|cvt\.(pack|rs)\b|cvt\..*(e2m1|e2m3|e3m2|ue8m0|x4|bf16x2\.e|x2\.bf16x2)"
    r"|createpolicy\.(range|cvt)|set\..*f16x2|fence\..*sync_restrict|cvta\.param|pmevent\.mask"
)
# .abs without .xorsign, and three operands.
MIN_MAX = re.compile(r"(min|max)\..*f32$")


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
            if ".param" in sample.name or NOT_EMULATED.match(sample.name):
                continue
            if MIN_MAX.match(sample.name) and (".abs" in sample.name or len(sample.operands) == 4):
                continue
            lines.append(sample.line)
    # Of the largest groups a part: an odd stride meets all of their modifiers.
    assert [line for line in lines[:: len(lines) // 150 | 1] if not decodes(line)] == []
