"""Which forms of the instruction table are run, as what code, and which are not and why."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from jax_ptx.dsl import isa
from tests.dsl.isa_samples import Sample, samples

# The newest text and target that an H200 takes with a driver for CUDA 13.0.
VERSION, TARGET = (9, 0), (90, "")
BLOCK = 64  # what the samples' second operand of a barrier says

# Patterns of names, and why their forms are not run one by one.
EXCLUDED = {
    r"(bra|brx|ret|exit|trap|brkpt)\b": "control flow; every kernel has some",
    r"(bar|barrier)\b(?!.*\bred\b)|(fence|membar)\b": "orders what others do, and has no result",
    r"(nanosleep|pmevent|setmaxnreg|griddepcontrol)\b": "no result",
    r"(prefetchu?|applypriority|discard|createpolicy)\b": "advice to the caches; a policy is opaque",
    r"(mbarrier|cp|st\.async|red\.async)\b": "asynchronous; compared in whole kernels",
    r"(cvta|isspacep|mapa|getctarank)\b": "addresses, which are the emulator's own",
    r"ld\..*\bparam\b": "every kernel loads its parameters",
}


@dataclass(frozen=True)
class Form:
    """One instruction to run: registers that are loaded before, code, and registers that are stored.

    Attributes:
        sample: the instruction.
        sources: the registers to load, and the kind of value in each.
        code: the instruction, with what must come before and after it.
        results: the registers to store.
        kinds: what is in each result.
        flavour: "registers"; "ld", "st" or "atom": what the code does with memory; "mma".
    """

    sample: Sample
    sources: tuple[tuple[str, str], ...]
    code: tuple[str, ...]
    results: tuple[str, ...]
    kinds: tuple[str, ...]
    flavour: str = "registers"


def registers(text: str) -> list[str]:
    """The registers of an operand, in order."""
    return re.findall(r"%[a-z]+\d*_\d+", text)


def register_kind(name: str) -> str:
    """The kind of value in a register of which no more is known than its type."""
    declared = name[1:].split("_")[0]
    return declared if declared in ("pred", "f32", "f64") else "i" + declared.lstrip("bus")


def table_forms(*prefixes: str) -> tuple[list[Form], dict[str, int], dict[str, int]]:
    """The forms to run; how many are not, by reason; and how many need a newer target or text.

    Args:
        *prefixes: what their names begin with; none: all.
    """
    prefixes = prefixes or ("",)
    forms: list[Form] = []
    excluded: dict[str, int] = {}
    newer: dict[str, int] = {}
    for row in isa.rows():
        op = row.opcode
        if not any(op.startswith(prefix) or prefix.startswith(op) for prefix in prefixes):
            continue
        for sample in samples(row, registers_too=True):
            if not sample.name.startswith(prefixes):
                continue
            found = isa.find(sample.name, sample.operands)
            reason = _reason(sample)
            if (found.target, found.suffix) > TARGET and (found.target, found.suffix) != (90, "a"):
                key = f"sm_{found.target}{found.suffix}"
                newer[key] = newer.get(key, 0) + 1
            elif found.version > VERSION:
                key = f"PTX {found.version[0]}.{found.version[1]}"
                newer[key] = newer.get(key, 0) + 1
            elif reason:
                excluded[reason] = excluded.get(reason, 0) + 1
            else:
                forms.append(_form(sample, [place.type for place in found.places]))
    return forms, excluded, newer


def _reason(sample: Sample) -> str | None:
    for pattern, reason in EXCLUDED.items():
        if re.match(pattern, sample.name):
            return reason
    if "%clock64" in sample.texts:
        return "reads a clock"
    if sample.row.opcode == "mov" and any(o.kind == "symbol" for o in sample.operands):
        return EXCLUDED[r"(cvta|isspacep|mapa|getctarank)\b"]
    return None


def _form(sample: Sample, types: list[str]) -> Form:
    opcode = sample.row.opcode
    if opcode in ("ld", "st", "atom", "red", "ldmatrix", "stmatrix"):
        from benchmarks.exactness import memory

        return memory.form(sample, types)
    if opcode == "mma":
        return _mma(sample)
    results = tuple(registers(sample.texts[0]))
    kinds = tuple(
        types[0] if types[0] in ("f16", "bf16", "f16x2", "bf16x2") else register_kind(r)
        for r in results
    )
    before, after, texts = _around(sample)
    fixed = {name for line in before for name in registers(line)[:1]}
    sources = [
        (r, t if t in ("f16", "bf16", "f16x2", "bf16x2") else register_kind(r))
        for text, t in zip(sample.texts[1:], types[1:], strict=True)
        for r in registers(text)
        if r not in fixed
    ]
    if opcode in ("addc", "subc", "madc"):
        sources.append(("%b32_72", "i32"))
    line = f"{sample.name} {', '.join(texts)};"
    if after:
        results, kinds = (*results, "%b32_73"), (*kinds, "i32")
    return Form(sample, tuple(dict.fromkeys(sources)), (*before, line, *after), results, kinds)


def _around(sample: Sample) -> tuple[list[str], list[str], list[str]]:
    """What the instruction needs before and after it, and its operands."""
    opcode, texts = sample.row.opcode, list(sample.texts)
    before, after = [], []
    if opcode in ("shfl", "vote", "match", "redux", "elect"):
        # The mask: the whole warp runs.
        if texts[-1].startswith("%"):
            before.append(f"mov.b32 {texts[-1]}, 0xffffffff;")
        else:
            texts[-1] = "0xffffffff"
    if opcode in ("bar", "barrier"):
        # The barrier's number, and how many threads are to come.
        for place, value in ((1, 1), (2, BLOCK)):
            if texts[place].startswith("%") and place < len(texts) - 1:
                before.append(f"mov.b32 {texts[place]}, {value};")
    if opcode in ("addc", "subc", "madc"):
        # The carry comes in as the low bit of a register.
        before.append("and.b32 %b32_74, %b32_72, 1;")
        if opcode == "subc":
            before.append("sub.cc.u32 %b32_75, 0, %b32_74;")
        else:
            before.append("add.cc.u32 %b32_75, %b32_74, 0xffffffff;")
    if ".cc." in sample.name:
        after.append(f"{'subc' if opcode.startswith('sub') else 'addc'}.u32 %b32_73, 0, 0;")
    # Operands that the ISA restricts to a range: places, and the range as a mask.
    limited = {"fns": ((2,), 31), "bfe": ((2, 3), 255), "bfi": ((3, 4), 255)}
    restricted, mask = limited.get(opcode, ((), 0))
    for place in restricted:
        if texts[place].startswith("%"):
            before.append(f"and.b32 %b32_{76 + place % 2}, {texts[place]}, {mask};")
            texts[place] = f"%b32_{76 + place % 2}"
    return before, after, texts


def _mma(sample: Sample) -> Form:
    of = [t for t in sample.name.split(".") if re.fullmatch(r"[ebfsut]+\d+m?\d*", t)][:4]
    packed = {"f16": "f16x2", "bf16": "bf16x2", "tf32": "f32", "f64": "f64", "f32": "f32"}
    kinds = [packed.get(t, "i32") for t in of]
    sources = [
        (r, kind)
        for text, kind in zip(sample.texts[1:], kinds[1:], strict=True)
        for r in registers(text)
    ]
    # A register of untyped bits holds the float.
    results = tuple(registers(sample.texts[0]))
    return Form(sample, tuple(sources), (sample.line,), results, (kinds[0],) * len(results), "mma")


def by_signature(forms: Iterable[Form]) -> Iterator[list[Form]]:
    """Forms that load the same registers with the same kinds of value."""
    groups: dict[object, list[Form]] = {}
    for form in forms:
        groups.setdefault((form.flavour, form.sources), []).append(form)
    yield from groups.values()
