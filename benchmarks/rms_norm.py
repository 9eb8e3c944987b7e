"""RMS norm on the GPU: ours and everybody else's, checked against float64, then timed.

    python benchmarks/rms_norm.py                               # everything; about a quarter of an hour
    python benchmarks/rms_norm.py --cases=table,few --peers=ours,xla,quack
    python benchmarks/rms_norm.py --json=all.json --plot=docs/images/rms_norm.png

Prints kernel times in microseconds (CUPTI; the median of several calls, whose operands are rotated past
the L2), forward alone and with dx and dw, beside the floor: what a copy (and for dx a sum of two tensors)
takes. Then the host's time of a call, the time of a first call, and every target with what was measured.

    copy, add3   cuMemcpy device to device; torch.add of two tensors into a third
    ours         jax_ptx.rms_norm, jax_ptx.add_rms_norm, under jit
    xla          the plain formula in JAX, under jit
    eager, F.rms_norm, compile    PyTorch: the plain formula; its own op; torch.compile of the formula
    liger, quack, tokamax, pyptx  where they are installed

JAX and PyTorch run in a process each, since CUPTI serves one profiler in a process. An implementation that
fails, or whose result is wrong, is named below the table, and has no time there.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from absl import app, flags
from harness import cases, report, targets
from harness.worker import Worker

GROUPS = (*cases.GROUPS, "host", "first")
FLOORS = ("copy", "add3")

CASES = flags.DEFINE_list("cases", list(GROUPS), f"what to time: some of {', '.join(GROUPS)}")
PEERS = flags.DEFINE_list("peers", list(report.PEERS), "which implementations")
RUNS = flags.DEFINE_integer("runs", 12, "timed calls of each", lower_bound=2)
JSON = flags.DEFINE_string("json", None, "a file for all results, kernel by kernel")
PLOT = flags.DEFINE_string("plot", None, "a PNG file: fractions of the floor (needs matplotlib)")
MARKDOWN = flags.DEFINE_string("markdown", None, "a file for the times as a table of a page")
READ = flags.DEFINE_string("read", None, "show the results of an earlier --json, and time nothing")
REHEARSE = flags.DEFINE_bool(
    "rehearse", False, "small shapes and wall time on a CPU: shows that all runs, and no time"
)


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unexpected argument {argv[1]!r}")
    for name, flag, known in (("cases", CASES, GROUPS), ("peers", PEERS, report.PEERS)):
        if unknown := set(flag.value) - set(known):
            raise app.UsageError(f"--{name}: expected some of {', '.join(known)}, got {unknown}")
    if READ.value:
        results = report.Results.read(json.loads(Path(READ.value).read_text()))
        print(report.times_table(results))
    else:
        results = measured()
    for part in (
        report.problems(results),
        report.first_table(results) if results.first else "",
        "" if REHEARSE.value else targets.targets_table(results),
    ):
        print(part, end="\n\n" if part else "")
    if MARKDOWN.value:
        Path(MARKDOWN.value).write_text(report.markdown(results) + "\n")
    if PLOT.value:
        from harness.plot import plot  # matplotlib is a development dependency

        plot(results, Path(PLOT.value))


def measured() -> report.Results:
    """Times what the flags ask for, and shows each line as it is there."""
    workers = {side: Worker(side, REHEARSE.value) for side in ("torch", "jax")}
    results = report.Results(facts={side: worker.hello for side, worker in workers.items()})
    for side, worker in workers.items():
        show_hello(side, worker.hello)
    chosen = [name for name in report.PEERS if name in PEERS.value]
    peers = {
        name: worker
        for name in (*FLOORS, *chosen)
        for worker in workers.values()
        if name in worker.hello.get("peers", ())
    }
    try:
        shown = [name for name in chosen if name in peers]
        print("  ".join(report.header(shown)), flush=True)
        groups = [group for group in CASES.value if group in cases.GROUPS]
        for group, case in cases.selected(groups, REHEARSE.value):
            results.groups[case] = group
            for which in cases.PASSES:
                for name, worker in peers.items():
                    if name not in FLOORS or which == "forward":
                        job = {"do": "time", "case": vars(case), "peer": name, "which": which}
                        answer = worker.ask({**job, "runs": RUNS.value})
                        results.answers[case, name, which] = answer
                print("  ".join(report.line(results, case, which, shown)), flush=True)
            save(results)
        if "host" in CASES.value and "ours" in peers:
            results.host = peers["ours"].ask({"do": "host"})
        if "first" in CASES.value:
            for name, worker in peers.items():
                if name not in FLOORS:
                    results.first[name] = first_calls(worker, name)
        save(results)
    finally:
        for worker in workers.values():
            worker.close()
    print(f"\n{report.times_table(results)}\n")
    return results


def first_calls(worker: Worker, peer: str) -> dict[str, dict[str, Any]]:
    job = {"do": "first", "peer": peer, "runs": 2 if peer == "compile" else 5}
    return {which: worker.ask({**job, "which": which}) for which in cases.PASSES}


def show_hello(side: str, hello: dict[str, Any]) -> None:
    if "failed" in hello:
        print(f"{side}: none of its implementations: {hello['failed']}")
        return
    found = ", ".join(f"{name} {version}" for name, version in hello["peers"].items())
    print(f"{side}: {hello['device']}; {found}")
    for name, reason in hello["missing"].items():
        print(f"  not installed: {name} ({reason})")


def save(results: report.Results) -> None:
    if JSON.value:
        Path(JSON.value).write_text(json.dumps(results.json(), indent=1))


if __name__ == "__main__":
    app.run(main)
