"""NVIDIA's four checkers over rms_norm, forward and backward, in every kind of configuration.

    python benchmarks/sanitize.py                                # all four, several processes each
    python benchmarks/sanitize.py --tools=memcheck,racecheck --parts=8
    compute-sanitizer --tool memcheck python benchmarks/sanitize.py --part=0/1        # one by hand

Results are compared with the formula on the CPU, so that a checker that stops a kernel is noticed. The
kernels are those of a GPU of one SM and two clusters of each size: a number in their text differs, and
few rows are enough for a CTA to go round its ring of rows twice. CUDA graphs are off: initcheck knows nothing
of what a graph's kernels write.

Nothing is left out, and one report fails the run. The checkers must be those of CUDA 13.4 or newer (`pip
install nvidia-cuda-sanitizer-api`, with any driver of CUDA 13): older ones do not see what bulk copies store
and what a bulk copy's mbarrier orders (NOTES.md).
"""

from __future__ import annotations

import os

os.environ.setdefault("XLA_FLAGS", "--xla_gpu_enable_command_buffer= --xla_gpu_autotune_level=0")
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import re
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import app, flags

import jax_ptx
from jax_ptx import toolkit
from jax_ptx.ops.rms_norm import config, config_backward, config_few
from jax_ptx.types import by_numpy_name

OLDEST = (2026, 3)  # of CUDA 13.4
# XLA asks the driver for functions that it may lack, which is no error of a kernel's. racecheck is slow, and
# XLA's kernels are not ours to check.
COMMON = ("--report-api-errors", "no", "--error-exitcode", "9")
TOOLS = {
    "memcheck": (),
    "initcheck": ("--initcheck-address-space", "all"),
    "racecheck": ("--kernel-name", "kns=rms_norm", "--kernel-name", "kns=column_sum"),
    "synccheck": (),
}

CHECKERS = flags.DEFINE_list("tools", list(TOOLS), f"which checkers: some of {', '.join(TOOLS)}")
PARTS = flags.DEFINE_integer("parts", 4, "processes of each checker", lower_bound=1)
LOGS = flags.DEFINE_string("logs", "build/sanitize", "a folder for what the checkers print")
PART = flags.DEFINE_string("part", None, "as 0/3: run the first, fourth, ... case, and no checker")

TOLERANCE = {"bfloat16": 2e-2, "float32": 1e-4, "float64": 1e-10}
TARGET = 90
# Among these are all kinds of kernels: every length, then every width of access, then the long rows.
LENGTHS = (*range(1, 2049), *range(2049, 20000, 7), *range(2048, 400000, 512))
OTHER_LENGTHS = (96, 4096, 4097, 8192, 65536)  # with a residual, and with one gradient alone
FEW_LENGTHS = (
    96,
    512,
    1024,
    4096,
    7168,
    12288,
)  # of few rows: several to a CTA, and with all widths of CTAs
ALL_SMS, SHARING_CTAS, FEW_ROWS = config.SMS, config.SHARING_CTAS, config_few.FEW_ROWS


@dataclass(frozen=True)
class Case:
    """One function on `[rows, n]`: "norm" or "added" with all gradients, "dx" or "dw" with one.

    "parts" is "norm" on all SMs, whose partial sums of dw are many. Few rows have the kernel that sums all of
    dw, the others as many do.
    """

    dtype: str
    rows: int
    n: int
    what: str = "norm"
    few: bool = False


def all_cases() -> list[Case]:
    """The shortest rows of each kind of kernel, the largest cases first: they are then shared out evenly."""
    found = []
    for dtype in TOLERANCE:
        lengths: dict[Any, int] = {}
        for n in LENGTHS:
            for each in configs(dtype, n):
                lengths.setdefault(kind(each), n)
        found += [Case(dtype, many(dtype, n), n) for n in sorted(set(lengths.values()))]
        for what in ("added", "dx", "dw"):
            found += [Case(dtype, many(dtype, n), n, what) for n in OTHER_LENGTHS]
        found.append(Case(dtype, 1400, 96, "parts"))
        found += [Case(dtype, *each, few=True) for each in few_rows(dtype)]
    return sorted(found, key=lambda case: -case.rows * case.n)


def few_rows(dtype: str) -> list[tuple[int, int, str]]:
    """Fewer than CTAs, and as many as make a CTA take a second turn for dx or a second round for dw."""
    found = []
    for n in FEW_LENGTHS:
        few = config_few.few_rows(n, by_numpy_name(dtype), TARGET)
        found += [(min(140, few[-1]), n, what) for what in ("norm", "added", "dw") if few]
        found += [(3, n, what) for what in ("norm", "added") if few]
    return found


def configs(dtype: str, n: int) -> list[Any]:
    """Of the forward and the backward kernel, if there is one."""
    of = by_numpy_name(dtype)
    forward = config.forward_config(n, of, TARGET, may_stage=True)
    return [c for c in (forward, config_backward.backward_config(n, of, TARGET, wide=True)) if c]


def kind(config: Any) -> tuple[Any, ...]:
    """What makes the text another one, and not only its numbers."""
    layout, numbers = config.layout, ["layout", "runs"]
    if getattr(config, "in_pieces", False):
        numbers.append("slots")  # as many as fit
    others = [getattr(config, f.name) for f in fields(config) if f.name not in numbers]
    ways = (layout.rows > 1, layout.cluster, layout.side_by_side, layout.vector)
    return (type(config), *ways, *others)


def many(dtype: str, n: int) -> int:
    """Rows for two rounds of every ring, a turn and one row more; where no CTA takes turns, three."""
    rows = 2
    for each in configs(dtype, n):
        pieces = each.layout.steps if getattr(each, "in_pieces", False) else 1
        turns = 2 * -(-each.slots // pieces) + 1
        rows = max(rows, turns * each.runs * each.layout.rows if each.slots else 0)
    return rows + 1


def function(case: Case, implementation: str) -> Any:
    """Results and gradients; the forward kernel once without rstd, which only gradients need."""

    def norm(x: Any, w: Any) -> Any:
        return jax_ptx.rms_norm(x, w, implementation=implementation)

    def add_norm(x: Any, r: Any, w: Any) -> Any:
        return jax_ptx.add_rms_norm(x, r, w, implementation=implementation)

    def run(x: Any, r: Any, w: Any, dy: Any) -> Any:
        if case.what == "added":
            results, pull = jax.vjp(add_norm, x, r, w)
            return (*add_norm(x, r, w), *results, *pull((dy, dy)))
        if case.what == "dx":
            return jax.vjp(lambda x: norm(x, w), x)[1](dy)
        if case.what == "dw":
            return jax.vjp(lambda w: norm(x, w), w)[1](dy)
        y, pull = jax.vjp(norm, x, w)
        return (norm(x, w), y, *pull(dy))

    return jax.jit(run)


def compare(cases: Sequence[Case]) -> None:
    """Runs the cases and compares them with the formula on the CPU."""
    cpu, device = jax.devices("cpu")[0], jax.devices()[0]
    for case in cases:
        print(case, flush=True)
        config.SMS = ALL_SMS if case.what == "parts" else 1
        config_few.FEW_ROWS = FEW_ROWS if case.few else 0
        config.SHARING_CTAS = SHARING_CTAS if case.few else 0
        rng = np.random.default_rng(case.n)
        shape = (case.rows, case.n)
        values = [rng.standard_normal(s).astype(case.dtype) for s in (shape, shape, case.n, shape)]
        got = function(case, "ptx")(*jax.device_put(values, device))
        expected = function(case, "xla")(*jax.device_put(values, cpu))
        for a, b in zip(got, expected, strict=True):
            wide, exact = (np.asarray(v).astype(np.float64) for v in (a, b))
            scale = max(1, np.abs(exact).max())
            np.testing.assert_allclose(wide, exact, atol=TOLERANCE[case.dtype] * scale, rtol=0)
    print(f"{len(cases)} cases agree with the formula")


def check(checker: str, tool: str, part: int) -> tuple[str, int, list[str], float]:
    """One process of a checker: its tool, how many cases passed, all summaries, and seconds."""
    log = Path(LOGS.value) / f"{tool}-{part}.log"
    command = [checker, "--tool", tool, *COMMON, *TOOLS[tool], sys.executable, __file__]
    start = time.monotonic()
    with log.open("w") as output:
        run = subprocess.run(
            [*command, f"--part={part}/{PARTS.value}"], stdout=output, stderr=subprocess.STDOUT
        )
    text = log.read_text()
    passed = re.search(r"^(\d+) cases agree", text, re.M)
    summaries = re.findall(r"SUMMARY: (.*)", text)
    if run.returncode or not summaries:
        summaries.append(f"exit status {run.returncode}: {log}")
    return tool, int(passed[1]) if passed else 0, summaries, time.monotonic() - start


def main(_: list[str]) -> None:
    jax.config.update("jax_enable_x64", True)
    config.SMS, config.CLUSTERS = 1, dict.fromkeys(config.CLUSTERS, 2)
    cases = all_cases()
    if PART.value:
        part, parts = map(int, PART.value.split("/"))
        return compare(cases[part::parts])
    if unknown := set(CHECKERS.value) - set(TOOLS):
        raise app.UsageError(f"--tools: expected some of {', '.join(TOOLS)}, got {unknown}")
    checker = str(toolkit.find("compute-sanitizer"))
    said = subprocess.run([checker, "--version"], capture_output=True, text=True).stdout
    version = re.search(r"Version (\d+)\.(\d+)", said)
    if version is None or (int(version[1]), int(version[2])) < OLDEST:
        raise app.UsageError(f"expected compute-sanitizer {OLDEST[0]}.{OLDEST[1]} or newer: {said}")
    Path(LOGS.value).mkdir(parents=True, exist_ok=True)
    jobs = [(tool, part) for tool in CHECKERS.value for part in range(PARTS.value)]
    with ThreadPoolExecutor(len(jobs)) as pool:
        done = list(pool.map(lambda job: check(checker, *job), jobs))
    clean = True
    for name in CHECKERS.value:
        mine = [each for each in done if each[0] == name]
        passed, seconds = sum(each[1] for each in mine), max(each[3] for each in mine)
        summaries = sorted({line for each in mine for line in each[2]})
        clean &= passed == len(cases) and all(
            re.fullmatch(r"0 errors|0 hazards displayed \(0 errors, 0 warnings\)", line)
            for line in summaries
        )
        print(f"{name}: {passed} of {len(cases)} cases, {'; '.join(summaries)}; {seconds:.0f} s")
    sys.exit(not clean)


if __name__ == "__main__":
    app.run(main)
