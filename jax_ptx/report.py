"""What the machine makes of a kernel: registers, spills, occupancy, instructions, bytes; by target."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from dataclasses import dataclass

from jax_ptx import toolkit
from jax_ptx.dsl.target import Target, smem_limit_bytes
from jax_ptx.ptx_text import access, statements, strip_comments

TARGETS = ("sm_80", "sm_89", "sm_90", "sm_100", "sm_120")


@dataclass(frozen=True)
class Multiprocessor:
    """Limits of one SM: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"."""

    warps: int
    ctas: int
    smem_bytes: int
    registers: int = 65536


MULTIPROCESSORS = {
    75: Multiprocessor(warps=32, ctas=16, smem_bytes=64 * 1024),
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
PARTITIONS = 4  # of an SM, each with its own registers and warps
SMEM_UNIT = 128  # shared memory is given to a CTA in multiples of this
RESERVED_SMEM_BYTES = 1024  # of each CTA, for the system


@dataclass(frozen=True)
class TargetReport:
    """One target's view of a kernel.

    Attributes:
        target: such as "sm_90".
        registers: of a thread.
        spill_bytes: of a thread; 0 is what one wants.
        smem_bytes: shared memory of a CTA, static and dynamic.
        ctas_per_sm: resident CTAs of a multiprocessor; 0: the target cannot launch the kernel.
        occupancy: resident warps over the most that a multiprocessor holds.
        limited_by: what there would have to be more of, or less asked for, to have one CTA more.
    """

    target: str
    registers: int
    spill_bytes: int
    smem_bytes: int
    ctas_per_sm: int
    occupancy: float
    limited_by: str


@dataclass(frozen=True)
class Report:
    """A kernel as ptxas sees it. `print(report)` is meant to be read.

    Attributes:
        entry: the kernel's name.
        block_threads: threads of a CTA.
        instructions: how often each opcode stands in the text, most frequent first.
        bytes_per_thread: bytes that a thread moves, by "ld.global.v4", "st.shared", "atom.global",
            "cp.async" and so on: each access of the text counted once, whatever its predicate or
            loop, and a bulk copy if its size is a constant.
        targets: one view for each target that can run the text, its own first.
        refused: why ptxas refused the text, for each target that should run it.
        elsewhere: the targets that were left out, and why; "" if none was.
    """

    entry: str
    block_threads: int
    instructions: dict[str, int]
    bytes_per_thread: dict[str, int]
    targets: dict[str, TargetReport]
    refused: dict[str, str]
    elsewhere: str

    def __str__(self) -> str:
        header = ("target", "registers", "spill bytes", "shared bytes", "CTAs/SM", "occupancy")
        rows = [
            (
                *(t.target, str(t.registers), str(t.spill_bytes), str(t.smem_bytes)),
                *(str(t.ctas_per_sm), f"{t.occupancy:.0%}", t.limited_by),
            )
            for t in self.targets.values()
        ]
        table = [(*header, "limited by"), *rows] if rows else []
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [
            f"{self.entry}: {sum(self.instructions.values())} instructions, "
            f"{self.block_threads} threads a CTA"
        ]
        for target, *numbers, why in table:
            cells = [target.ljust(widths[0])]
            cells += [n.rjust(width) for n, width in zip(numbers, widths[1:], strict=False)]
            lines.append("  " + "  ".join([*cells, why]))
        lines += [f"  {target} refused: {why}" for target, why in self.refused.items()]
        lines += [f"  {self.elsewhere}"] if self.elsewhere else []
        lines += _listed("instructions", self.instructions)
        lines += _listed("bytes a thread", self.bytes_per_thread)
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
    own = _own_target(text)
    able, elsewhere = _able(own, targets)
    views, refused = {}, {}
    for target in able:
        try:
            assembly = toolkit.assemble(text, target)[entry]
        except toolkit.ToolkitError as error:
            refused[target] = " ".join(str(error).splitlines()[1:2]) or str(error)
            continue
        smem = assembly.smem_bytes + smem_bytes
        ctas, occupancy, limit = _occupancy(target, assembly.registers, smem, block_threads)
        views[target] = TargetReport(
            target, assembly.registers, assembly.spill_bytes, smem, ctas, occupancy, limit
        )
    instructions, moved = _read_text(text, entry)
    return Report(entry, block_threads, instructions, moved, views, refused, elsewhere)


def _own_target(text: str) -> Target:
    """The target that the text names."""
    found = re.search(r"\.target\s+sm_(\d+)([a-z]?)", strip_comments(text))
    return Target(int(found[1]), found[2]) if found else Target(0)


def _able(own: Target, targets: tuple[str, ...]) -> tuple[list[str], str]:
    """The targets to assemble for, the text's own first, and why the others are left out."""
    if not own.number:  # ptxas says what is wrong with such a text
        return list(targets), ""
    rest = [target for target in targets if target != str(own)]
    if own.suffix:
        left_out = [*rest]
        why = f"{own} code runs on {own} only"
    else:
        left_out = [target for target in rest if _number(target) < own.number]
        why = f"{own} is the least that the text runs on"
    able = [str(own), *(target for target in rest if target not in left_out)]
    return able, f"not on {', '.join(left_out)}: {why}" if left_out else ""


def _number(target: str) -> int:
    return int(re.sub(r"\D", "", target))


def _occupancy(
    target: str, registers: int, smem_bytes: int, threads: int
) -> tuple[int, float, str]:
    """Resident CTAs of an SM, the part of its warps that they are, and what limits them."""
    number = _number(target)
    # A target that is not listed has what the last listed one before it has.
    sm = MULTIPROCESSORS[max([k for k in MULTIPROCESSORS if k <= number], default=75)]
    limit = smem_limit_bytes(Target(max(number, 75)))
    if smem_bytes > limit:
        return 0, 0.0, f"shared memory: a CTA may have {limit} bytes"
    warps = -(-threads // 32)
    per_warp = -(-registers * 32 // REGISTER_UNIT) * REGISTER_UNIT
    by_registers = sm.registers // PARTITIONS // max(per_warp, 1) * PARTITIONS // warps
    per_cta = -(-smem_bytes // SMEM_UNIT) * SMEM_UNIT + RESERVED_SMEM_BYTES
    ctas, limited_by = min(
        (sm.warps // warps, "warps"),
        (sm.ctas, "CTAs"),
        (by_registers, "registers"),
        (sm.smem_bytes // per_cta, "shared memory"),
        key=lambda pair: pair[0],  # of equals the first
    )
    if by_registers == 0:
        limited_by = f"registers: {warps} warps of {per_warp} are more than {sm.registers}"
    return ctas, ctas * warps / sm.warps, limited_by


def _listed(title: str, counts: dict[str, int]) -> list[str]:
    """Names with their numbers, on as many lines as they need."""
    pairs = ", ".join(f"{name}\0{n}" for name, n in counts.items())  # no line ends inside one
    lines = textwrap.wrap(
        f"{title}: {pairs or 'none'}",
        width=98,
        initial_indent="  ",
        subsequent_indent="    ",
        break_on_hyphens=False,
    )
    return [line.replace("\0", " ") for line in lines]


def _read_text(text: str, entry: str) -> tuple[dict[str, int], dict[str, int]]:
    opcodes: Counter[str] = Counter()
    moved: Counter[str] = Counter()
    for statement in statements(text):
        if statement.entry != entry:
            continue
        opcodes[statement.opcode] += 1
        if found := access(statement):
            moved[found.what] += found.n_bytes
    return dict(opcodes.most_common()), {what: n for what, n in sorted(moved.items()) if n}
