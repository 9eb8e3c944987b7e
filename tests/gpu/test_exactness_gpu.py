"""A part of benchmarks/exactness: the emulator's bits are the GPU's."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.exactness import batch, errors, forms, kernels, ranges

pytestmark = pytest.mark.gpu

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


@pytest.mark.parametrize("prefix", FAMILIES + MEMORY)
def test_forms_give_the_same_bits(prefix: str) -> None:
    exact_ones_agree(records(prefix, 2**13, 3))


def test_one_operand_forms_give_the_same_bits() -> None:
    found = ranges.run(forms.table_forms("cvt.rni")[0], 20, 60, {})
    got = [record for _, part in found for record in part]
    assert got
    for record in got:
        assert not record.get("differing"), record


@pytest.mark.parametrize("name", ["rcp", "sqrt", "rsqrt", "sin", "lg2", "ex2", "tanh"])
def test_approximations_keep_their_bounds(name: str) -> None:
    for record in records(f"{name}.approx", 2**13):
        for error in record.get("errors", []):
            # The ISA prints bounds with one decimal of their exponent.
            assert error["limit"] is None or error["error"] <= 1.08 * error["limit"], record


def test_examples_without_approximations_give_the_same_bits() -> None:
    with kernels.without_approximations():
        for case in kernels.examples():
            assert kernels.compare(*case)["differing"] == 0, case[0]
