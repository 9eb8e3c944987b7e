"""Results as tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .cases import Case, floor_us

PEERS = ("ours", "xla", "eager", "F.rms_norm", "compile", "liger", "quack", "tokamax", "pyptx")


@dataclass
class Results:
    """Answers of the workers, by case, implementation and pass; `json` and `read` are inverse."""

    facts: dict[str, Any] = field(default_factory=dict)
    answers: dict[tuple[Case, str, str], dict[str, Any]] = field(default_factory=dict)
    groups: dict[Case, str] = field(default_factory=dict)
    host: dict[str, Any] = field(default_factory=dict)
    first: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)  # by peer and pass

    def us(self, case: Case, peer: str, which: str = "forward") -> float | None:
        """Kernel time; None where there is none, or where the result was wrong."""
        answer = self.answers.get((case, peer, which), {})
        return None if problem(answer) else answer.get("us")

    def floor(self, case: Case, which: str) -> float | None:
        copy, add3 = self.us(case, "copy"), self.us(case, "add3")
        if copy is None or (add3 is None and which == "both" and case.op == "rms_norm"):
            return None
        return floor_us(case, which, copy, add3 or 0.0)

    def best_peer(self, case: Case, which: str) -> tuple[str, float] | None:
        """The fastest implementation that is not ours."""
        times = {peer: self.us(case, peer, which) for peer in PEERS[1:]}
        found = [(peer, us) for peer, us in times.items() if us is not None]
        return min(found, key=lambda pair: pair[1], default=None)

    def json(self) -> dict[str, Any]:
        return {
            "facts": self.facts,
            "host": self.host,
            "first": self.first,
            "answers": [
                {
                    "case": vars(case),
                    "group": self.groups.get(case),
                    "peer": peer,
                    "pass": which,
                    **answer,
                }
                for (case, peer, which), answer in self.answers.items()
            ],
        }

    @classmethod
    def read(cls, value: dict[str, Any]) -> Results:
        results = cls(value["facts"], {}, {}, value["host"], value["first"])
        for entry in value["answers"]:
            answer = dict(entry)
            case = Case(**answer.pop("case"))
            results.groups[case] = answer.pop("group")
            results.answers[case, answer.pop("peer"), answer.pop("pass")] = answer
        return results


def problem(answer: dict[str, Any]) -> str | None:
    """Why an answer has no time that counts."""
    if "failed" in answer:
        return answer["failed"]
    wrong = [e for e in answer.get("errors", ()) if not e <= answer["limit"]]
    return (
        f"wrong result: errors {', '.join(f'{e:.1e}' for e in answer['errors'])}" if wrong else None
    )


def number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def table(rows: Iterable[Sequence[str]]) -> str:
    """Columns as wide as they need be; the first to the left, numbers to the right."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        first, *others = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        lines.append("  ".join([row[0].ljust(len(first)), *others]).rstrip())
    return "\n".join(lines)


def shown_peers(results: Results) -> list[str]:
    asked = {peer for _, peer, _ in results.answers}
    return [peer for peer in PEERS if peer in asked]


def line(results: Results, case: Case, which: str, peers: Sequence[str]) -> list[str]:
    """One case and pass: floor, each implementation, ours over the floor, the best other one."""
    times = [results.us(case, peer, which) for peer in peers]
    floor, ours = results.floor(case, which), results.us(case, "ours", which)
    best = results.best_peer(case, which)
    digits = 2 if (floor or ours or 100) < 20 else 1
    return [
        case.name,
        "fwd" if which == "forward" else "fwd+bwd",
        number(floor, digits),
        *(number(us, digits) for us in times),
        number(ours / floor if ours and floor else None, 3),
        f"{best[0]} {best[1]:.{digits}f}" if best else "-",
    ]


def header(peers: Sequence[str]) -> list[str]:
    return ["rows x n", "pass", "floor", *peers, "ours/floor", "best other"]


def times_table(results: Results) -> str:
    """Microseconds of every case and pass."""
    peers = shown_peers(results)
    cases = {(case, which): None for case, peer, which in results.answers if peer in peers}
    return table([header(peers), *(line(results, c, w, peers) for c, w in cases)])


def markdown(results: Results) -> str:
    """The same for a page, the fastest implementation of each row in bold."""
    peers = shown_peers(results)
    versions = {k: v for side in results.facts.values() for k, v in side.get("peers", {}).items()}
    names = {"ours": "jax_ptx", "xla": "XLA", "compile": "torch.compile"} | {
        peer: f"{name} {versions.get(peer, '')}".rstrip()
        for peer, name in (("liger", "Liger"), ("quack", "QuACK"), ("tokamax", "tokamax"))
    }
    lines = [["rows x n", "", "floor", *(names.get(peer, peer) for peer in peers)]]
    lines.append(["---"] * len(lines[0]))
    for case, which in {
        (case, which): None for case, peer, which in results.answers if peer in peers
    }:
        times = {peer: results.us(case, peer, which) for peer in peers}
        best = min((us for us in times.values() if us is not None), default=None)
        cells = [_short(us, bold=us is not None and us == best) for us in times.values()]
        name = case.name.replace("add ", "add, ").replace("f32", "float32")
        lines.append([name, which, _short(results.floor(case, which)), *cells])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _short(us: float | None, *, bold: bool = False) -> str:
    if us is None:
        return "-"
    text = f"{us:.1f}" if us < 10 else f"{us:.0f}"
    return f"**{text}**" if bold else text


def problems(results: Results) -> str:
    """What has no time, and why: one line for each implementation and reason."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for (case, peer, which), answer in results.answers.items():
        if why := problem(answer):
            reasons.setdefault((peer, why), []).append(f"{case.name} {which}")
    return "\n".join(
        f"{peer}: {why} ({places[0]}{f' and {len(places) - 1} more' if places[1:] else ''})"
        for (peer, why), places in reasons.items()
    )


def first_table(results: Results) -> str:
    """Milliseconds of a first call at a new row length, by implementation."""
    steps = ("total", "trace", "lower", "compile", "run")
    rows = [["first call, ms", "pass", *steps]]
    for peer, passes in results.first.items():
        for which, found in passes.items():
            cells = [number(found.get(step)) for step in steps]
            rows.append([peer, "fwd" if which == "forward" else "fwd+bwd", *cells])
    return table(rows)
