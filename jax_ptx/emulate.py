"""`emulate`: runs a kernel in the emulator, and says what it found, moved and counted."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jax_ptx import _ext
from jax_ptx.entry import bind
from jax_ptx.findings import (
    Counts,
    Dim3,
    EmulationError,
    EmulationReport,
    Finding,
    LineCount,
    Site,
)
from jax_ptx.geometry import Size, block_size, cluster_size, grid_size
from jax_ptx.kernel import Kernel
from jax_ptx.launch import Launch
from jax_ptx.text_kernel import TextKernel

SCHEDULES = ("round_robin", "shuffled", "adversarial")
TRACE_LIMIT = 100_000
"""The most instructions that a trace holds; it has the first ones."""


class TraceStep(NamedTuple):
    """One instruction that a warp ran.

    Attributes:
        cta: the CTA's index.
        warp: the warp's number in it.
        lanes: a mask of the lanes that ran it.
        line: of the PTX text.
        instruction: as it is written there.
    """

    cta: Dim3
    warp: int
    lanes: int
    line: int
    instruction: str

    def __str__(self) -> str:
        cta = ",".join(map(str, self.cta))
        return (
            f"CTA ({cta}) warp {self.warp} lanes {self.lanes:#010x} line {self.line}: "
            f"{self.instruction}"
        )


Trace = list[TraceStep] | str | os.PathLike[str] | None


@dataclass(frozen=True)
class Settings:
    """How to run; the fields are the arguments of `emulate`."""

    race_check: bool = False
    schedule: str = "round_robin"
    seed: int = 0
    step_limit: int | None = None
    trace: Trace = None
    own_rows: int | None = None

    def check(self, kernel: str) -> None:
        """Refuses values that mean nothing.

        Raises:
            TypeError: one is of another type.
            ValueError: one is out of range.
            OSError: the trace cannot be written.
        """
        if self.schedule not in SCHEDULES:
            raise ValueError(
                f"{kernel}: schedule must be one of {', '.join(SCHEDULES)}, got {self.schedule!r}"
            )
        least = {"seed": 0, "step_limit": 1, "own_rows": 1}
        for name, at_least in least.items():
            value = getattr(self, name)
            if value is None and name != "seed":
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{kernel}: {name} must be an int, got {value!r}")
            if not at_least <= value < 2**63:
                raise ValueError(f"{kernel}: {name} must be {at_least} or more, got {value}")
        if not isinstance(self.trace, list | str | os.PathLike | None):
            raise TypeError(
                f"{kernel}: trace must be a list to append to or the path of a file to write, got "
                f"{type(self.trace).__name__}"
            )
        if isinstance(self.trace, str | os.PathLike):
            with open(self.trace, "a"):  # now rather than after a long run
                pass


def emulate(
    kernel: Kernel | TextKernel | Launch | str,
    /,
    *arrays: Any,
    race_check: bool = False,
    schedule: str = "round_robin",
    seed: int = 0,
    step_limit: int | None = None,
    trace: Trace = None,
    own_rows: int | None = None,
    raise_on_finding: bool = True,
    **values: Any,
) -> EmulationReport:
    """Runs a kernel in the emulator with every check that it has. No GPU is needed.

    Beyond what a call of the kernel on a CPU checks, this finds reads of shared memory and outputs that
    nothing has written, outputs that are left unwritten and, when asked, data races and stores to
    other rows. The CTAs run one after the other, so that the report is the same every time.

    Args:
        kernel: what `@kernel` or `ptx_kernel` made, a launch record, or a PTX text from elsewhere, whose
            entry may have any parameters.
        *arrays: the inputs, as for a call of the kernel; any arrays that NumPy can take. For a text, a value
            for each parameter: an array for an input, a `jax.ShapeDtypeStruct` for an output, a
            number, or the bytes of a struct.
        race_check: find conflicting accesses that no barrier, mbarrier, atomic or fence orders, whatever
            the schedule. Running in one warp orders nothing, and neither does `shfl`. Two stores of
            the same value are no race, nor are atomics among themselves.
        schedule: whose turn it is. "round_robin": each warp until it waits; "shuffled": a few
            instructions of a random warp at a time; "adversarial": the last warp (with a seed: in an
            order of its own) whenever it can run, and the last CTA first, unless CTAs wait for
            smaller numbers. A kernel whose results depend on it lacks a barrier.
        seed: for the schedule.
        step_limit: the most instructions that the warps of a cluster may run; None: 2**27.
        trace: a list that gets a `TraceStep` for each instruction that a warp runs, or the path of a
            file to write them to; the first `TRACE_LIMIT` of them.
        own_rows: how many rows belong to a CTA: number c along x may store only in the rows from
            c * own_rows on of each output, a row being an element of the first axis. The CTAs of a
            cluster own rows together.
        raise_on_finding: False: return the report whatever there is in it.
        **values: compile-time constants and variables, as for a call; for a launch record
            `result_types` and `input_output_aliases`, as for `ptx_call`; for a text `grid`, `block`,
            `cluster`, `smem` and `entry` as for `ptx_kernel`, and `in_place`: the names of the
            parameters whose arrays are outputs as well.

    Returns:
        The report. `report.outputs` is what the call returns; for a text, a dictionary of the outputs by
        their parameters' names.

    Raises:
        EmulationError: there was a finding. `error.report` is the report.
        TypeError, ValueError: as for a call, and for text that does not parse or limits that do not
            hold.
        NotImplementedError: the emulator lacks an instruction of the kernel.
        OSError: the trace cannot be written.
    """
    settings = Settings(race_check, schedule, seed, step_limit, trace, own_rows)
    if isinstance(kernel, str):
        report = _emulate_text(kernel, arrays, settings, **values)
        if raise_on_finding and report.findings:
            raise EmulationError(report)
        return report
    if isinstance(kernel, Launch):
        launch = kernel
        types: Sequence[Any] = values.pop("result_types", ())
        aliases: tuple[tuple[int, int], ...] = tuple(values.pop("input_output_aliases", ()))
        if values:
            raise TypeError(f"{launch.entry}: unexpected keyword {next(iter(values))!r}")
        results = [(tuple(t.shape), np.dtype(t.dtype)) for t in types]
    elif isinstance(kernel, Kernel | TextKernel):
        launch, bound = kernel._prepare(arrays, values)
        results = [(s, jax.numpy.dtype(name)) for s, name in kernel._signature.results(bound)]
        aliases = kernel._signature.aliases
    else:
        raise TypeError(
            f"emulate takes a kernel that @kernel or ptx_kernel made, a Launch or a PTX text, got "
            f"{type(kernel).__name__}"
        )
    settings.check(launch.entry)
    inputs = [np.ascontiguousarray(np.asarray(array)) for array in arrays]
    outputs = [np.empty(shape, dtype) for shape, dtype in results]
    for i, o in aliases:
        inputs[i] = outputs[o] = inputs[i].copy()
    single = len(outputs) == 1 and not isinstance(kernel, Launch)
    report = observe(
        launch,
        [*inputs, *outputs],
        "i" * len(inputs) + "o" * len(outputs),
        settings,
        outputs=outputs[0] if single else tuple(outputs),
    )
    if raise_on_finding and report.findings:
        raise EmulationError(report)
    return report


def _emulate_text(
    text: str,
    values: Sequence[Any],
    settings: Settings,
    *,
    grid: Size = (1, 1, 1),
    block: Size = (1, 1, 1),
    cluster: Size = (1, 1, 1),
    smem: int = 0,
    entry: str | None = None,
    in_place: Collection[str] = (),
) -> EmulationReport:
    name, arguments = bind(text, entry, values, in_place)
    tensors = [a for a in arguments if a.array is not None]
    shape = cluster_size(name, cluster)
    launch = Launch(
        ptx=text,
        entry=name,
        grid=grid_size(name, grid, {}, shape),
        block=block_size(name, block),
        cluster=shape,
        smem_bytes=smem,
        unit_bytes=tuple(a.array.nbytes for a in tensors if a.array is not None),
        dims=(0,) * len(tensors),
    )
    settings.check(name)
    return observe(
        launch,
        [a.array for a in tensors if a.array is not None],
        "".join(a.role for a in tensors),
        settings,
        outputs={a.name: a.array for a in tensors if a.role != "i"},
        scalars={i: a.scalar for i, a in enumerate(arguments) if a.array is None},
    )


def observe(
    launch: Launch,
    buffers: Sequence[np.ndarray],
    roles: str,
    settings: Settings,
    *,
    outputs: Any,
    scalars: dict[int, bytes] | None = None,
) -> EmulationReport:
    """Runs a launch record on buffers, and reports.

    Args:
        launch: the record.
        buffers: C-contiguous arrays, in the order of the entry's parameters.
        roles: a letter for each: "i" for an operand, "o" for a result, "b" for both.
        settings: how to run.
        outputs: what the report calls so.
        scalars: parameters that are no tensors, by their positions.
    """
    own_row_bytes = [
        settings.own_rows * (buffer.nbytes // buffer.shape[0])
        if settings.own_rows and role != "i" and buffer.ndim and buffer.nbytes
        else 0
        for buffer, role in zip(buffers, roles, strict=True)
    ]
    seen = _ext.observe(
        launch.attributes(),
        buffers,
        roles,
        scalars or {},
        {
            "race_check": settings.race_check,
            "schedule": settings.schedule,
            "seed": settings.seed,
            "step_limit": settings.step_limit or 0,
            "trace_limit": 0 if settings.trace is None else TRACE_LIMIT,
            "own_row_bytes": own_row_bytes,
        },
    )
    steps = [
        TraceStep(cta, warp, lanes, line, _one_line(text))
        for cta, warp, lanes, line, text in seen["trace"]
    ]
    if isinstance(settings.trace, list):
        settings.trace.extend(steps)
    elif settings.trace is not None:
        Path(settings.trace).write_text("".join(f"{step}\n" for step in steps))
    lines = tuple(LineCount(line, _one_line(text), *n) for line, text, *n in seen["instructions"])
    return EmulationReport(
        kernel=launch.entry,
        grid=seen["grid"],
        block=launch.block,
        cluster=launch.cluster,
        outputs=outputs,
        findings=tuple(_finding(*finding) for finding in seen["findings"]),
        counts=Counts(lines, seen["bytes"]),
        ptx=launch.ptx,
    )


def _finding(kind: str, message: str, site: Any, other: Any, *rest: Any) -> Finding:
    at, before = Site(*site) if site else None, Site(*other) if other else None
    return Finding(kind, message, at, before, *rest)


def _one_line(text: str) -> str:
    return " ".join(text.split())
