"""The benchmarks' tables, targets and processes, on made-up times; and both sides' checks, on a CPU."""

from __future__ import annotations

import json
import sys
from typing import Any

import jax
import pytest

from benchmarks.harness import cases, plot, report, side, targets, worker
from benchmarks.harness.cases import Case
from benchmarks.harness.jax_side import JaxSide

SQUARE = Case("rms_norm", 32768, 4096)
ADDED = Case("add_rms_norm", 32768, 4096)
FEW = Case("rms_norm", 1, 4096)
ERRORS = {"errors": [0.004, 0.004, 0.01], "limit": 0.125}
# Case, implementation, pass, microseconds.
TIMES = (
    (SQUARE, "copy", "forward", 127.0),
    (SQUARE, "add3", "forward", 184.0),
    (SQUARE, "ours", "forward", 130.0),
    (SQUARE, "ours", "both", 320.0),
    (SQUARE, "xla", "forward", 136.0),
    (SQUARE, "xla", "both", 411.0),
    (SQUARE, "quack", "forward", 129.0),
    (ADDED, "copy", "forward", 127.0),
    (ADDED, "ours", "forward", 260.0),
    (ADDED, "ours", "both", 540.0),
    (FEW, "copy", "forward", 0.8),
    (FEW, "ours", "forward", 1.1),
    (FEW, "ours", "both", 3.4),
)


@pytest.fixture
def results() -> report.Results:
    found = report.Results(
        facts={"jax": {"device": "a GPU"}},
        host={"ours": 40.0, "xla": 41.0, "ours more": 2.5, "xla more": 2.2},
        first={"ours": {"forward": {"total": 50.0, "trace": 9.0}, "both": {"total": 120.0}}},
    )
    for case, peer, which, us in TIMES:
        found.answers[case, peer, which] = {"us": us, "kernels": [["k", us]], **ERRORS}
        found.groups[case] = {SQUARE: "table", ADDED: "add", FEW: "few"}[case]
    found.answers[SQUARE, "ours", "both"]["scratch_bytes"] = 4 * 32768 + 4_300_000
    found.answers[SQUARE, "quack", "both"] = {"failed": "ValueError: no"}
    found.answers[ADDED, "quack", "both"] = {"failed": "ValueError: no"}
    return found


def test_targets_say_what_was_met(results: report.Results) -> None:
    found = {target.what: target for target in targets.targets(results)}
    expected = {
        "32768 x 4096 forward / floor": (130 / 127, False),
        "32768 x 4096 forward + backward / floor": (320 / 311, True),
        "32768 x 4096 forward / best other": (130 / 129, False),
        "32768 x 4096 scratch beside rstd, MB": (4.3, True),
        "add 32768 x 4096 forward / floor": (260 / 254, True),
        "add 32768 x 4096 forward + backward / floor": (540 / 508, False),
        "1 x 4096 forward, us": (1.1, True),
        "1 x 4096 backward, all kernels, us": (2.3, True),
        "host time of a jitted call / XLA's product's": (40 / 41, True),
        "host time of one more call in a program, us": (2.5, False),
        "first call of a shape, forward, ms": (50.0, True),
        "first call of a shape, forward + backward, ms": (120.0, False),
    }
    assert {what: (t.value, t.met) for what, t in found.items()} == {
        what: (pytest.approx(value), met) for what, (value, met) in expected.items()
    }
    text = targets.targets_table(results)
    assert "7 of 12 targets met" in text
    assert "MISSED" in next(x for x in text.splitlines() if x.startswith("32768 x 4096 forward /"))


def test_a_target_that_nothing_measured_is_neither_met_nor_missed(results: report.Results) -> None:
    del results.answers[SQUARE, "copy", "forward"]
    target = targets.targets(results)[0]
    assert (target.value, target.met) == (None, None)
    assert "not measured" in targets.targets_table(results)


def test_tables_show_each_time_and_name_what_failed(results: report.Results) -> None:
    lines = report.times_table(results).splitlines()
    assert lines[0].split() == [
        *("rows", "x", "n", "pass", "floor", "ours", "xla", "quack", "ours/floor", "best", "other")
    ]
    both = next(x for x in lines if x.startswith("32768 x 4096") and "fwd+bwd" in x)
    assert both.split()[3:] == ["fwd+bwd", "311.0", "320.0", "411.0", "-", "1.029", "xla", "411.0"]
    assert len({len(x) for x in lines}) == 1
    assert report.problems(results) == "quack: ValueError: no (32768 x 4096 both and 1 more)"
    assert "ours" in report.first_table(results)


def test_a_page_shows_the_fastest_in_bold(results: report.Results) -> None:
    head, rule, *rows = report.markdown(results).splitlines()
    assert head.startswith("| rows x n |  | floor | jax_ptx | ")
    assert rule.count("---") == head.count("|") - 1
    assert rows[0].startswith("| 32768 x 4096 | forward | ")
    assert all(row.count("**") == 2 for row in rows)


def test_a_wrong_result_has_no_time(results: report.Results) -> None:
    for error in (1.0, float("nan")):
        results.answers[SQUARE, "quack", "forward"]["errors"] = [0.0, error]
        assert results.us(SQUARE, "quack") is None
        assert results.best_peer(SQUARE, "forward") == ("xla", 136.0)
        assert f"quack: wrong result: errors 0.0e+00, {error:.1e}" in report.problems(results)


def test_results_survive_json(results: report.Results) -> None:
    again = report.Results.read(json.loads(json.dumps(results.json())))
    assert again == results


def test_curves_are_fractions_of_the_floor(results: report.Results) -> None:
    assert plot.curves(results, "both") == {
        "ours": [(4096, pytest.approx(311 / 320))],
        "xla": [(4096, pytest.approx(311 / 411))],
    }


def test_every_case_is_timed_once() -> None:
    found = cases.selected(cases.GROUPS, rehearse=False)
    assert len({case for _, case in found}) == len(found)
    assert {("table", SQUARE), ("models", Case("rms_norm", 2**21, 64))} <= set(found)
    assert all(case.rows * case.n <= 2**15 * 8 for _, case in cases.selected(cases.GROUPS, True))
    with pytest.raises(ValueError, match=r"expected a group of table, .* got 'tables'"):
        cases.group_cases("tables")


def test_a_summary_is_of_sums_and_refuses_uneven_runs() -> None:
    found = side.summary(
        [[("a", 1.0), ("b", 9.0)], [("a", 2.0), ("b", 2.0)], [("a", 3.0), ("b", 3.0)]]
    )
    assert found == {"us": 6.0, "kernels": [["a", 2.0], ["b", 3.0]]}
    for runs in ([[("a", 1.0)], []], [[], []]):
        with pytest.raises(RuntimeError, match="as many kernels in each run"):
            side.summary(runs)


def test_the_formula_is_right_and_a_wrong_one_is_found() -> None:
    case = Case("add_rms_norm", 6, 40)
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        one = JaxSide(rehearse=True)
        answer = one.time(case, "xla", "both", 2)
        assert len(answer["errors"]) == 4
        assert report.problem(answer) is None
        operands = one.inputs(case)[0]
        results = one.function(case, "xla", "both", operands)[0](*operands)
        for wrong in range(len(results)):
            spoilt = [r + 1 if i == wrong else r for i, r in enumerate(results)]
            errors = one.errors(case, spoilt, operands)
            assert [e > answer["limit"] for e in errors] == [i == wrong for i in range(len(errors))]


CHILD = """
import json, sys
print(json.dumps({"peers": {}}), flush=True)
for line in sys.stdin:
    if json.loads(line)["do"] == "die":
        sys.exit("the device is lost")
    print(json.dumps({"us": 1.0}), flush=True)
"""


def test_a_process_that_dies_costs_one_job(monkeypatch: Any) -> None:
    popen = worker.subprocess.Popen
    start = lambda command, **options: popen([sys.executable, "-c", CHILD], **options)
    monkeypatch.setattr(worker.subprocess, "Popen", start)
    child = worker.Worker("jax", rehearse=True)
    assert child.hello == {"peers": {}}
    assert child.ask({"do": "time"}) == {"us": 1.0}
    assert child.ask({"do": "die"}) == {"failed": "the process died: the device is lost"}
    assert child.ask({"do": "time"}) == {"us": 1.0}
    child.close()
