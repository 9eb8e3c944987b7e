"""What an instruction needs of .version and .target, against the instruction table of the language, which
ptxas has judged: the emulator takes every form where the table does, and hardly one before."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest

from jax_ptx.dsl import isa
from tests.dsl.isa_samples import Sample, module, samples
from tests.dsl.test_isa_ptxas import PLAIN, VERSIONS
from tests.ffi.emulation import emulate
from tests.ffi.test_emulator_table import NOT_EMULATED

# What depends on more than the modifiers (their order, the operands), and a few versions of no weight.
LENIENT = re.compile(
    r"(min|max)\.(.*\.)?f32$|set\.|cvt\.(ftz\.)?f32\.bf16|cvt\..*bf16x2\.e|fence\.acq|fence\.rel|mma\.sync.*m16n8k8"
    r"|mbarrier\.(arrive|arrive_drop)\b|cp\.async\.(ca|cg|mbarrier)"
)


def refusal(sample: Sample, version: tuple[int, int], target: str) -> str | None:
    text, _ = module(["ret;", sample.line], version, target)
    text = text.replace(".param .align 32 .b8 p[64]", ".param .u64 p")
    text = re.sub(r"^\.reg \.b128.*\n", "", text, flags=re.MULTILINE)
    try:
        emulate(text, [np.zeros(1, np.uint64)])
    except (NotImplementedError, ValueError) as error:
        return str(error)
    return None


@pytest.mark.parametrize("opcode", sorted({row.opcode for row in isa.rows()}))
def test_forms_need_what_the_table_says(opcode: str):
    for row in isa.rows():
        if row.opcode != opcode:
            continue
        emulated = (s for s in samples(row) if not NOT_EMULATED.match(s.name))
        for sample in itertools.islice(emulated, 0, None, 97):
            form = isa.find(sample.name, sample.operands)
            target = f"sm_{form.target}{form.suffix}"
            assert refusal(sample, form.version, target) is None
            if LENIENT.match(sample.name):
                continue
            least = isa.TARGETS[form.target, form.suffix]
            if form.version > least:
                said = refusal(sample, VERSIONS[VERSIONS.index(form.version) - 1], target)
                assert said is not None, sample.line
                assert "needs .version" in said
            if form.suffix or form.target > PLAIN[0]:
                before = form.target if form.suffix else PLAIN[PLAIN.index(form.target) - 1]
                said = refusal(sample, (9, 3), f"sm_{before}")
                assert said is not None, sample.line
                assert (
                    f".target {target}, the text has .version 9.3 and .target sm_{before}" in said
                )


def test_targets_need_versions_too():
    with pytest.raises(
        ValueError, match=r"line 2, column 9: the target needs \.version 7\.8, the text has"
    ):
        emulate(".version 7.7\n.target sm_90\n.address_size 64\n.entry k() { ret; }", [], 0)
    with pytest.raises(ValueError, match=r"no \.target directive"):
        emulate(".version 7.7\n.address_size 64\n.entry k() { ret; }", [], 0)
