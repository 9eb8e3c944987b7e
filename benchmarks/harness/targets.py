"""The targets, each with what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .cases import Case
from .report import Results, number, table

NOISE = 1.005  # two times closer than this are as fast
FORWARD_US = {(1, 4096): 1.2, (1, 8192): 1.4, (128, 4096): 1.5}
BACKWARD_US = 2.5
EXECUTE_US = 2.0
FIRST_MS = {"forward": 60.0, "both": 100.0}
SCRATCH_BYTES = 8e6  # beside rstd
ROWS_LIKE = {4096: 1.02, 1536: 1.05}  # what round numbers of rows of this length are asked for


@dataclass(frozen=True)
class Target:
    """`measured` is None where the run did not measure it; `value` is what `limit` bounds."""

    what: str
    measured: str
    value: float | None
    limit: float

    @property
    def met(self) -> bool | None:
        return None if self.value is None else self.value <= self.limit


def targets(results: Results) -> list[Target]:
    """Every target that belongs to something in the results."""
    cases = dict.fromkeys(case for case, peer, _ in results.answers if peer == "ours")
    found = [target for case in cases for target in _of_case(results, case)]
    return [*found, *_of_calls(results)]


def targets_table(results: Results) -> str:
    words = {True: "met", False: "MISSED", None: "not measured"}
    rows = [["target", "measured", "value", "limit", ""]]
    found = targets(results)
    for t in found:
        digits = 2 if t.limit >= 50 else 3
        rows.append(
            [t.what, t.measured, number(t.value, digits), number(t.limit, digits), words[t.met]]
        )
    met = sum(t.met is True for t in found)
    return f"{table(rows)}\n{met} of {len(found)} targets met"


def _of_case(results: Results, case: Case) -> Iterator[Target]:
    group = results.groups.get(case)
    if group == "few":
        yield from _of_few(results, case)
        return
    for which in ("forward", "both"):
        if (case, "ours", which) in results.answers:
            yield _over_floor(results, case, which, _limit(case, group, which))
    if group == "table" and (best := results.best_peer(case, "forward")):
        ours = results.us(case, "ours")
        yield Target(
            f"{case.name} forward / best other",
            f"{number(ours)} / {best[1]:.1f} us ({best[0]})",
            None if ours is None else ours / best[1],
            NOISE,
        )
    scratch = results.answers.get((case, "ours", "both"), {}).get("scratch_bytes")
    if scratch is not None:
        rstd = 4 * case.rows
        yield Target(
            f"{case.name} scratch beside rstd, MB",
            f"{scratch / 1e6:.2f} MB",
            (scratch - rstd) / 1e6,
            SCRATCH_BYTES / 1e6,
        )


def _limit(case: Case, group: str | None, which: str) -> float:
    if case.op == "add_rms_norm":
        return 1.03 if which == "forward" else 1.05
    if group == "awkward" and case.n not in ROWS_LIKE:
        return 1.25
    if which == "both":
        return 1.05
    if group == "awkward":
        return ROWS_LIKE[case.n]
    return 1.02 if group == "table" else 1.05


def _over_floor(results: Results, case: Case, which: str, limit: float) -> Target:
    floor, ours = results.floor(case, which), results.us(case, "ours", which)
    name = "forward" if which == "forward" else "forward + backward"
    return Target(
        f"{case.name} {name} / floor",
        f"{number(ours)} / {number(floor)} us",
        ours / floor if ours and floor else None,
        limit,
    )


def _of_few(results: Results, case: Case) -> Iterator[Target]:
    ours, both = (results.us(case, "ours", which) for which in ("forward", "both"))
    limit = FORWARD_US.get((case.rows, case.n), 1.5)
    yield Target(f"{case.name} forward, us", f"{number(ours, 2)} us", ours, limit)
    if ours is not None and both is not None:
        yield Target(
            f"{case.name} backward, all kernels, us",
            f"{both:.2f} - {ours:.2f} us",
            both - ours,
            BACKWARD_US,
        )


def _of_calls(results: Results) -> Iterator[Target]:
    host = results.host
    if "ours" in host:
        ours, xla = host["ours"], host["xla"]
        measured = f"{ours:.2f} / {xla:.2f} us"
        yield Target("host time of a jitted call / XLA's product's", measured, ours / xla, 1.0)
        # With the driver's launch, so that the limit on our part of it is the stricter.
        more, xla = host["ours more"], host["xla more"]
        measured = f"{more:.2f} us (XLA's {xla:.2f})"
        yield Target("host time of one more call in a program, us", measured, more, EXECUTE_US)
    for which, limit in FIRST_MS.items():
        found = results.first.get("ours", {}).get(which, {})
        if "total" in found:
            name = "forward" if which == "forward" else "forward + backward"
            ms = found["total"]
            yield Target(f"first call of a shape, {name}, ms", f"{ms:.1f} ms", ms, limit)
