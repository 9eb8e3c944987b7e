"""Forms that read or write memory: a slot of 32 bytes for each thread, in the space that is named.

The slot's address is in %slot_<space>; `texts` declares it. Generic addresses take turns over the spaces.
"""

from __future__ import annotations

import itertools
import re

from benchmarks.exactness.forms import Form, register_kind, registers
from tests.dsl.isa_samples import Sample

SLOT_BYTES = 32
WORDS = tuple(f"%word_{i}" for i in range(4))
_turns = itertools.cycle(("global", "shared", "local"))
# What only global memory has.
_GLOBAL_ALONE = re.compile(
    r"L[12]::|\.nc\b|mmio|relaxed|acquire|release|acq_rel|\.(c[agsv]|lu|wb|wt)\b"
)


def form(sample: Sample, types: list[str]) -> Form:
    """The code around a load, store, atomic operation or matrix move."""
    opcode = sample.row.opcode
    place = next(i for i, o in enumerate(sample.operands) if o.kind == "address")
    space = _space(sample)
    texts = list(sample.texts)
    base = f"%slot_{space}"
    if not re.search(r"\.(global|shared|local|const)\b", sample.name):
        base = f"%generic_{space}"
    texts[place] = f"[{base}]"
    if "L2::cache_hint" in sample.name:
        texts[-1] = "%policy"
    line = f"{sample.name} {', '.join(texts)};"
    if opcode in ("ld", "ldmatrix"):
        return _load(sample, line)
    values = [
        (r, t if t in ("f16", "bf16", "f16x2", "bf16x2") else register_kind(r))
        for text, t in zip(texts[place + 1 :], types[place + 1 :], strict=True)
        for r in registers(text)
        if r != "%policy"
    ]
    if opcode in ("st", "stmatrix"):
        return _store(sample, line, values, space)
    return _atomic(sample, line, values, space, types)


def _space(sample: Sample) -> str:
    if sample.row.opcode in ("ldmatrix", "stmatrix"):
        return "shared"
    named = re.search(r"\.(global|shared|local|const)\b", sample.name)
    if named:
        return named[1]
    if _GLOBAL_ALONE.search(sample.name):
        return "global"
    space = next(_turns)
    if sample.row.opcode in ("atom", "red"):
        is_vector = any(operand.kind == "vector" for operand in sample.operands)
        return "global" if space == "local" or is_vector else space
    return space


def _load(sample: Sample, line: str) -> Form:
    """The slots of every space hold the same words, but that of `.const`, which the text fills."""
    results = tuple(registers(sample.texts[0]))
    kinds = tuple(register_kind(r) for r in results)
    return Form(sample, tuple((w, "i64") for w in WORDS), (line,), results, kinds, "ld")


def _store(sample: Sample, line: str, values: list[tuple[str, str]], space: str) -> Form:
    halves = ((f"[%slot_{space}]", WORDS[:2]), (f"[%slot_{space}+16]", WORDS[2:]))
    clear = [f"st.{space}.v2.b64 {at}, {{0, 0}};" for at, _ in halves]
    back = [f"ld.{space}.v2.b64 {{{', '.join(words)}}}, {at};" for at, words in halves]
    code: tuple[str, ...] = (*clear, line, *back)
    if sample.row.opcode == "stmatrix":  # one thread writes into the slots of others
        code = (*clear, "bar.warp.sync 0xffffffff;", line, "bar.warp.sync 0xffffffff;", *back)
    return Form(sample, tuple(dict.fromkeys(values)), code, WORDS, ("i64",) * 4, "st")


def _atomic(
    sample: Sample, line: str, values: list[tuple[str, str]], space: str, types: list[str]
) -> Form:
    """The slot is filled with elements of the instruction's type, and read back."""
    place = next(i for i, o in enumerate(sample.operands) if o.kind == "address")
    kind, count = _memory_kind(types[place + 1]), sample.operands[place + 1].width
    memory = [f"%memory_{i}" for i in range(count)]
    sources = [(name, kind) for name in memory] + values
    bits = {"f16x2": 32, "bf16x2": 32, "bf16": 16}.get(kind) or int(kind[1:])
    code = [f"st.{space}.v2.b64 [%slot_{space}], {{0, 0}};"]
    for i, name in enumerate(memory):
        code.append(f"st.{space}.b{bits} [%slot_{space}+{i * bits // 8}], {name};")
    back = WORDS[: max(1, count * bits // 64)]
    code.append(line)
    code += [f"ld.{space}.b64 {w}, [%slot_{space}+{8 * i}];" for i, w in enumerate(back)]
    results = [] if sample.row.opcode == "red" else registers(sample.texts[0])
    kinds = [kind] * (len(results) + len(back))
    if "cas" in sample.name:
        # Equal half of the time, or nothing would be swapped.
        expected = registers(sample.texts[place + 1])
        code.insert(0, f"@%even mov.b{bits} {memory[0]}, {expected[0]};" if expected else "")
    return Form(
        sample, tuple(dict.fromkeys(sources)), tuple(code), (*results, *back), tuple(kinds), "atom"
    )


def _memory_kind(type_: str) -> str:
    if type_ in ("f16", "bf16", "f16x2", "bf16x2", "f32", "f64"):
        return type_
    return "i" + type_.lstrip("bus")
