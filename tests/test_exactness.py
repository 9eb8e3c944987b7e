"""benchmarks/exactness where there is no GPU: the emulator stands in for it, and mistakes are planted."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from benchmarks.exactness import batch, document, execute, forms, kernels, ranges, values

needs_stand_in = pytest.mark.skipif(
    jax.default_backend() != "cpu", reason="the emulator stands in for the GPU on a CPU"
)


def records(prefix: str, tuples: int, stride: int = 1) -> list[dict[str, Any]]:
    """What the forms whose name begins with this gave."""
    found, _, _ = forms.table_forms(prefix)
    return batch.run(found[::stride], tuples)[0]


def ranges_of(prefix: str, bits: int, done: dict[str, int] | None = None) -> dict[str, list]:
    """What the one-operand forms whose name begins with this gave."""
    found: dict[str, list] = {"exact": [], "approximate": []}
    for part, got in ranges.run(forms.table_forms(prefix)[0], bits, 60, done or {}):
        found[part] += got
    return found


@needs_stand_in
def test_the_program_against_itself() -> None:
    got = [r for prefix in ("shf", "addc", "red.shared.min") for r in records(prefix, 64, 2)]
    assert all(not record["differing"] and not record["payloads"] for record in got)
    one_operand = ranges_of("clz", 10)
    one_operand["approximate"] = ranges_of("tanh.", 10)["approximate"]
    assert [record["differing_threads"] for record in one_operand["exact"]] == [0]
    (tanh,) = one_operand["approximate"]
    assert tanh["differing"] == 0
    assert 0 < tanh["errors"][0]["error"] < 2**-23  # float64's tanh, rounded to float32
    page = document.page(
        {
            "device": "stand-in",
            "driver": "none",
            "jax": jax.__version__,
            "forms": got,
            "excluded": {"no result": 3},
            "newer": {"sm_100": 2},
            "refused": {},
            "ranges": one_operand,
            "kernels": {"as it is": [], "exact": []},
        }
    )
    assert "| shf |" in page
    assert "| 3 | no result |" in page


def test_a_difference_and_a_payload_are_told_apart() -> None:
    form = next(f for f in forms.table_forms("add.f32")[0] if len(f.sources) == 2)
    operands = [np.arange(4, dtype=np.uint32)] * 2
    want = np.array([0, 1, 0x7FFFFFFF, 0x7FFFFFFF], np.uint32)
    got = np.array([0, 2, 0x7FC00000, 0x3F800000], np.uint32)
    record = execute.compare(form, operands, [got], [want])
    assert (record["tuples"], record["differing"], record["payloads"]) == (4, 2, 1)
    assert record["examples"][0] == [["0x1", "0x1"], ["0x2"], ["0x1"]]


@needs_stand_in
def test_a_hash_that_differs_is_followed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    emulate = execute.emulate

    def one_wrong(kernel: Any, inputs: Any) -> list[np.ndarray]:
        results = emulate(kernel, inputs)
        results[0][8] ^= 1  # the second thread's hash, or its result when inputs come one by one
        return results

    monkeypatch.setattr(execute, "emulate", one_wrong)
    (record,) = ranges.exact(ranges.candidates(forms.table_forms("clz")[0]), 12)
    assert record["differing_threads"] == 1
    assert record["differing"] == 1


@needs_stand_in
def test_what_had_all_inputs_does_not_run_again() -> None:
    (first,) = ranges_of("clz", 10)["exact"]
    assert ranges_of("clz", 10, {first["line"]: 2**10}) == {"exact": [], "approximate": []}
    (again,) = ranges_of("clz", 10, {first["line"]: 2**6})["exact"]
    assert again["inputs"] == 2**10


def test_operands_cover_what_they_should() -> None:
    (halves,) = values.tuples(("f16",), 2**16, 0)
    assert np.unique(halves).size == 2**16
    pair = values.tuples(("f32", "i32"), 4096, 0)
    crossed = set(zip(*(x.tolist() for x in pair), strict=True))
    assert {(0x80000000, 31), (0x7F800001, 2**31), (0x7F7FFFFF, 0)} <= crossed


def test_exact_texts_have_no_approximations() -> None:
    text = "rsqrt.approx.ftz.f32 %f1, %f2;\nmul.f32 %f3, %f1, %f1;\nmul.lo.u32 %r1, %r2, %r3;"
    want = "sqrt.rn.f32 %f1, %f2; rcp.rn.f32 %f1, %f1;\nmul.rn.f32 %f3, %f1, %f1;\nmul.lo.u32 %r1, %r2, %r3;"
    assert kernels.exact_text(text) == want
    with pytest.raises(ValueError, match=r"sin\.approx"):
        kernels.exact_text("sin.approx.f32 %f1, %f2;")


def test_a_run_of_few_forms_replaces_those_of_an_earlier_one() -> None:
    first = {
        "forms": [{"line": "a", "differing": 1}, {"line": "b", "differing": 0}],
        "ranges": {"exact": [{"line": "c", "inputs": 4}], "approximate": []},
        "refused": {"d": "why"},
    }
    second = {"forms": [{"line": "a", "differing": 0}], "refused": {}}
    joined = document.join(first, second)
    assert [record["differing"] for record in joined["forms"]] == [0, 0]
    assert joined["ranges"] == first["ranges"]
    assert joined["refused"] == {"d": "why"}
