"""What an emulated run found and counted: `EmulationReport`, its parts, and `EmulationError`."""

from __future__ import annotations

import textwrap
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Dim3 = tuple[int, int, int]

_WORST_LINES = 4


class Site(NamedTuple):
    """An instruction that a thread ran.

    Attributes:
        line: of the PTX text, counted from 1.
        instruction: as it is written there.
        cta: the CTA's index along x, y, z.
        thread: the thread's index in it.
    """

    line: int
    instruction: str
    cta: Dim3
    thread: Dim3


@dataclass(frozen=True)
class Finding:
    """Something that the kernel did wrong.

    Attributes:
        kind: "out_of_bounds", "misaligned", "read_only", "uninitialised" (shared memory or an output
            that nothing has written; a register without a value, where that matters),
            "unwritten_output", "barrier", "deadlock",
            "waits_for_cta" (for CTAs that the emulator runs later), "exited_peer" (shared memory of a
            CTA of the cluster that has exited), "inactive_lane",
            "race", "foreign_row", "stopped" (`trap` or a failed assertion), "step_limit", or "invalid"
            for any other use that PTX leaves undefined.
        message: the whole text.
        site: where; None for an unwritten output.
        other: of a race, the earlier access.
        memory: the parameter or variable, as the message names it; "" if it is about none.
        offset: in that memory, in bytes.
        count: how often the same two instructions did it; the other fields are of the first time.
    """

    kind: str
    message: str
    site: Site | None
    other: Site | None
    memory: str
    offset: int
    count: int

    def __str__(self) -> str:
        return self.message + (f" ({self.count} times)" if self.count > 1 else "")


class LineCount(NamedTuple):
    """What one instruction of the text did.

    Attributes:
        line: of the PTX text.
        instruction: as it is written.
        warps: how often a warp ran it.
        threads: active threads, over all of those.
        sectors: 32-byte sectors of global memory that it moved.
        least_sectors: how many would hold the same bytes side by side.
        bank_conflicts: passes over the banks of shared memory beyond the least number.
    """

    line: int
    instruction: str
    warps: int
    threads: int
    sectors: int
    least_sectors: int
    bank_conflicts: int


@dataclass(frozen=True)
class Counts:
    """What a run did.

    Attributes:
        lines: every instruction of the text.
        bytes: by (memory, direction): "global", "const", "shared" or "local", and "read", "write" or
            "atomic".
    """

    lines: tuple[LineCount, ...]
    bytes: dict[tuple[str, str], int]

    @property
    def instructions(self) -> dict[str, int]:
        """How many warps ran each opcode, most frequent first."""
        opcodes: Counter[str] = Counter()
        for line in self.lines:
            opcodes[line.instruction.split()[0].partition(".")[0]] += line.warps
        return {opcode: n for opcode, n in opcodes.most_common() if n}

    @property
    def sectors(self) -> int:
        """32-byte sectors of global memory that loads, stores and atomics moved."""
        return sum(line.sectors for line in self.lines)

    @property
    def least_sectors(self) -> int:
        """How many they would have moved had each warp's addresses lain side by side."""
        return sum(line.least_sectors for line in self.lines)

    @property
    def bank_conflicts(self) -> int:
        """Passes over the banks of shared memory beyond the least number."""
        return sum(line.bank_conflicts for line in self.lines)

    def __str__(self) -> str:
        text = []
        for memory in dict.fromkeys(memory for memory, _ in self.bytes):
            moved = [
                f"{n} bytes {_DONE[what]}" for (m, what), n in self.bytes.items() if m == memory
            ]
            if memory == "global":
                moved += [f"{self.sectors} sectors (least possible: {self.least_sectors})"]
            if memory == "shared":
                moved += [f"{self.bank_conflicts} bank conflicts"]
            text.append(f"  {memory} memory: {', '.join(moved)}")
        apart = sorted(self.lines, key=lambda line: line.least_sectors - line.sectors)
        for line in apart[:_WORST_LINES]:
            if line.sectors > line.least_sectors:
                text.append(
                    f"    PTX line {line.line} `{line.instruction}`: {line.sectors} sectors where "
                    f"{line.least_sectors} would do"
                )
        for line in sorted(self.lines, key=lambda line: -line.bank_conflicts)[:_WORST_LINES]:
            if line.bank_conflicts:
                text.append(
                    f"    PTX line {line.line} `{line.instruction}`: {line.bank_conflicts} bank conflicts"
                )
        opcodes = self.instructions
        pairs = ", ".join(f"{name}\0{n}" for name, n in opcodes.items())  # no line ends inside one
        listed = textwrap.wrap(
            f"instructions (of warps): {sum(opcodes.values())}: {pairs or 'none'}",
            width=98,
            initial_indent="  ",
            subsequent_indent="    ",
        )
        return "\n".join([*text, *(line.replace("\0", " ") for line in listed)])


_DONE = {"read": "read", "write": "written", "atomic": "updated atomically"}


@dataclass(frozen=True)
class EmulationReport:
    """What `jax_ptx.emulate` saw. `print(report)` is meant to be read.

    Attributes:
        kernel: its name.
        grid: CTAs along x, y, z.
        block: threads of a CTA.
        cluster: CTAs of a cluster.
        outputs: what a call of the kernel returns, as NumPy arrays; after a fault, what had been
            written by then.
        findings: what it did wrong; a fault, which ended the run, comes last.
        counts: instructions, bytes, sectors, bank conflicts.
        ptx: the text that the findings' lines count in.
    """

    kernel: str
    grid: Dim3
    block: Dim3
    cluster: Dim3
    outputs: Any = field(repr=False)
    findings: tuple[Finding, ...]
    counts: Counts = field(repr=False)
    ptx: str = field(repr=False)

    def __str__(self) -> str:
        n = len(self.findings)
        found = f"{n} finding{'' if n == 1 else 's'}" if n else "nothing found"
        shape = f"grid {self.grid}, block {self.block}"
        if self.cluster != (1, 1, 1):
            shape += f", cluster {self.cluster}"
        lines = [f"{self.kernel}: {found}; {shape}"]
        lines += [f"{finding.kind}: {finding}" for finding in self.findings]
        return "\n".join([*lines, str(self.counts)])


class EmulationError(RuntimeError):
    """A kernel did something wrong in the emulator; the text is that of the findings.

    Attributes:
        report: the whole report.
    """

    def __init__(self, report: EmulationReport) -> None:
        super().__init__("\n".join(map(str, report.findings)))
        self.report = report

    def __reduce__(self) -> tuple[Any, ...]:
        # An exception is made again from its args, here the text: process pools would hang on it.
        return type(self), (self.report,), self.__dict__
