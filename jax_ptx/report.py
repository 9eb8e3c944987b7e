"""What the machine makes of a kernel: registers, spills, occupancy, instructions, bytes; by target."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from jax_ptx import toolkit

TARGETS = ("sm_80", "sm_89", "sm_90", "sm_100", "sm_120")


@dataclass(frozen=True)
class Multiprocessor:
    """Limits of one SM: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"."""

    warps: int
    ctas: int
    smem_bytes: int
    registers: int = 65536


MULTIPROCESSORS = {
    80: Multiprocessor(warps=64, ctas=32, smem_bytes=164 * 1024),
    86: Multiprocessor(warps=48, ctas=16, smem_bytes=100 * 1024),
    87: Multiprocessor(warps=48, ctas=16, smem_bytes=164 * 1024),
    89: Multiprocessor(warps=48, ctas=24, smem_bytes=100 * 1024),
    90: Multiprocessor(warps=64, ctas=32, smem_bytes=228 * 1024),
    100: Multiprocessor(warps=64, ctas=32, smem_bytes=228 * 1024),
    103: Multiprocessor(warps=64, ctas=32, smem_bytes=228 * 1024),
    120: Multiprocessor(warps=48, ctas=24, smem_bytes=100 * 1024),
}
REGISTER_UNIT = 256  # registers are given to a warp in multiples of this
RESERVED_SMEM_BYTES = 1024  # of each CTA, for the system


@dataclass(frozen=True)
class TargetReport:
    """One target's view of a kernel.

    Attributes:
        target: such as "sm_90".
        registers: of a thread.
        spill_bytes: of a thread; 0 is what one wants.
        smem_bytes: shared memory of a CTA, static and dynamic.
        ctas_per_sm: resident CTAs of a multiprocessor.
        occupancy: resident warps over the most that a multiprocessor holds.
    """

    target: str
    registers: int
    spill_bytes: int
    smem_bytes: int
    ctas_per_sm: int
    occupancy: float


@dataclass(frozen=True)
class Report:
    """A kernel as ptxas sees it. `print(report)` is meant to be read.

    Attributes:
        entry: the kernel's name.
        block_threads: threads of a CTA.
        instructions: how often each opcode stands in the text, most frequent first.
        bytes_per_thread: bytes that the text's accesses move, by "ld.global", "st.global" and so on:
            each access of the text counted once, whatever its predicate or loop.
        targets: one view for each target that can run the text.
        refused: why ptxas refused the text, for each target that cannot.
    """

    entry: str
    block_threads: int
    instructions: dict[str, int]
    bytes_per_thread: dict[str, int]
    targets: dict[str, TargetReport]
    refused: dict[str, str]

    def __str__(self) -> str:
        lines = [
            f"{self.entry}: {sum(self.instructions.values())} instructions, "
            f"{self.block_threads} threads a CTA",
            "  target   registers  spills  shared bytes  CTAs/SM  occupancy",
        ]
        for t in self.targets.values():
            lines.append(
                f"  {t.target:8} {t.registers:9} {t.spill_bytes:7} {t.smem_bytes:13} "
                f"{t.ctas_per_sm:8} {t.occupancy:9.0%}"
            )
        lines += [f"  {target:8} refused: {why}" for target, why in self.refused.items()]
        mix = ", ".join(f"{opcode} {count}" for opcode, count in self.instructions.items())
        moved = ", ".join(f"{name} {count}" for name, count in self.bytes_per_thread.items())
        lines += [f"  instructions: {mix}", f"  bytes a thread: {moved or 'none'}"]
        return "\n".join(lines)


def report(
    text: str, entry: str, block_threads: int, smem_bytes: int, targets: tuple[str, ...] = TARGETS
) -> Report:
    """Assembles a text for each target and reads what there is to read off it.

    Args:
        text: the PTX module.
        entry: the kernel's name in it.
        block_threads: threads of a CTA.
        smem_bytes: dynamic shared memory of a CTA.
        targets: the targets to assemble for.

    Raises:
        jax_ptx.toolkit.ToolkitError: ptxas is not installed.
    """
    toolkit.find("ptxas")  # one clear error rather than a refusal by every target
    views, refused = {}, {}
    for target in targets:
        try:
            assembly = toolkit.assemble(text, target)[entry]
        except toolkit.ToolkitError as error:
            refused[target] = " ".join(str(error).splitlines()[1:2]) or str(error)
            continue
        smem = assembly.smem_bytes + smem_bytes
        ctas, occupancy = _occupancy(target, assembly.registers, smem, block_threads)
        views[target] = TargetReport(
            target, assembly.registers, assembly.spill_bytes, smem, ctas, occupancy
        )
    instructions, moved = _read_text(text, entry)
    return Report(entry, block_threads, instructions, moved, views, refused)


def _occupancy(target: str, registers: int, smem_bytes: int, threads: int) -> tuple[int, float]:
    number = int(re.sub(r"\D", "", target))
    sm = (
        MULTIPROCESSORS.get(number)
        or MULTIPROCESSORS[max(k for k in MULTIPROCESSORS if k <= number)]
    )
    warps = -(-threads // 32)
    per_warp = -(-registers * 32 // REGISTER_UNIT) * REGISTER_UNIT
    ctas = min(
        sm.ctas,
        sm.warps // warps,
        sm.registers // max(per_warp * warps, 1),
        sm.smem_bytes // (smem_bytes + RESERVED_SMEM_BYTES),
    )
    return ctas, ctas * warps / sm.warps


_INSTRUCTION = re.compile(r"^\s*(?:@!?[%\w]+\s+)?([a-z]\w*)((?:\.[\w:]+)*)\s*[^:]*;", re.MULTILINE)
_ACCESS = re.compile(r"\.(global|shared|local|const)\b.*?(?:\.v(\d))?\.[a-z]+?(\d+)(?:x2)?$")


def _read_text(text: str, entry: str) -> tuple[dict[str, int], dict[str, int]]:
    start = re.search(rf"\.entry\s+{re.escape(entry)}\b", text)
    body = re.sub(r"//.*", "", text[start.start() if start else 0 :])
    body = body[body.index("{") : body.index("\n}") if "\n}" in body else len(body)]
    opcodes: Counter[str] = Counter()
    moved: Counter[str] = Counter()
    for opcode, modifiers in _INSTRUCTION.findall(body):
        opcodes[opcode] += 1
        if opcode in ("ld", "st") and (access := _ACCESS.search(modifiers)):
            space, width, bits = access.groups()
            moved[f"{opcode}.{space}"] += int(width or 1) * int(bits) // 8
    return dict(opcodes.most_common()), dict(moved)
