"""A part of benchmarks/exactness: the emulator's bits are the GPU's. Without one it checks the program."""

from __future__ import annotations

from typing import Any

import jax
import pytest

from benchmarks.exactness import batch, document, errors, forms, kernels, ranges

FAMILIES = (
    "add",
    "fma",
    "cvt.rn",
    "cvt.sat",
    "setp.eq",
    "slct",
    "shf",
    "bfe",
    "madc",
    "shfl",
    "mma",
)
MEMORY = ("ld.shared", "st.local", "atom.global.add", "red.shared", "ldmatrix", "stmatrix")


def records(prefix: str, tuples: int, stride: int = 1) -> list[dict[str, Any]]:
    """What the forms whose name begins with this gave."""
    found, _, _ = forms.table_forms(prefix)
    got, _ = batch.run(found[::stride], tuples)
    assert got, f"no form begins with {prefix}"
    return got


def exact_ones_agree(got: list[dict[str, Any]]) -> None:
    for record in got:
        if not errors.is_approximate(record["name"]):
            assert record.get("differing") == 0, record


@pytest.mark.gpu
@pytest.mark.parametrize("prefix", FAMILIES + MEMORY)
def test_forms_give_the_same_bits(prefix: str) -> None:
    exact_ones_agree(records(prefix, 2**13, 3))


@pytest.mark.gpu
def test_one_operand_forms_give_the_same_bits() -> None:
    found = ranges.run(forms.table_forms("cvt.rni")[0], 20, 60)
    for record in found["exact"]:
        assert not record.get("differing"), record


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["rcp", "sqrt", "rsqrt", "sin", "lg2", "ex2", "tanh"])
def test_approximations_keep_their_bounds(name: str) -> None:
    for record in records(f"{name}.approx", 2**13):
        for error in record.get("errors", []):
            # The ISA prints bounds with one decimal of their exponent.
            assert error["limit"] is None or error["error"] <= 1.08 * error["limit"], record


@pytest.mark.gpu
def test_examples_without_approximations_give_the_same_bits() -> None:
    with kernels.without_approximations():
        for case in kernels.examples():
            assert kernels.compare(*case)["differing"] == 0, case[0]


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="the emulator stands in for the GPU")
def test_the_program_against_itself() -> None:
    got = [r for prefix in ("shf", "addc", "red.shared.min") for r in records(prefix, 64, 2)]
    assert all(not record["differing"] and not record["payloads"] for record in got)
    one_operand = ranges.run(forms.table_forms("clz")[0], 10, 60)
    one_operand["approximate"] = ranges.run(forms.table_forms("tanh.")[0], 10, 60)["approximate"]
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
