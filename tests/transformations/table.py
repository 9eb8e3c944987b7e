"""Writes docs/transformations.md from the results of test_transformations.py, and reads it.

`pytest tests/transformations --write-transformations` runs the rows and writes the page. A column of
which nothing ran keeps what the page says of it, and when and where that was.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import itertools
import platform
from pathlib import Path
from typing import Any

import jax
import pytest

PAGE = Path(__file__).parents[2] / "docs" / "transformations.md"
PROPERTY = "transformation"
OPTION = "--write-transformations"
COLUMNS: tuple[str, ...] = ("CPU emulator", "XLA path", "H200")
NOT_RUN = "not run"

HEAD = f"""# Transformations of `rms_norm`

Written by `pytest tests/transformations {OPTION}`. Each cell is a test: `rms_norm` of float32 under the
transformation, with respect to x, the weight or both, equals the plain formula in float64 under the same one.
"CPU emulator" is `implementation="ptx"` on a CPU, "XLA path" `implementation="xla"`, "H200" the default on
that GPU. "refused" is an error, since the op is not linear in x: one that says so, and on the XLA path JAX's
own of such formulas, an AssertionError that does not.

"""

Cell = tuple[str, str, str]
"""Transformation, operands, column."""


def read() -> tuple[dict[Cell, str], dict[str, str]]:
    """The page's cells, and for each column when and where it ran."""
    cells: dict[Cell, str] = {}
    ran = dict.fromkeys(COLUMNS, NOT_RUN)
    for line in PAGE.read_text().splitlines() if PAGE.exists() else ():
        if line.startswith("- "):
            column, _, said = line.removeprefix("- ").partition(": ")
            ran[column] = said
        parts = [part.strip() for part in line.strip("|").split("|")]
        if line.startswith("|") and parts[0] != "transformation" and not parts[0].startswith("--"):
            name, operands, *values = parts
            for column, value in zip(COLUMNS, values, strict=True):
                cells[name, operands, column] = value
    return cells, ran


def write(results: dict[Cell, str]) -> None:
    """Puts results into the page."""
    from tests.transformations.rows import OPERANDS, ROWS  # not at the start of every test run

    cells, ran = read()
    for column in COLUMNS:
        if any(cell[2] == column for cell in results):
            ran[column] = _here(column)
            cells = {cell: value for cell, value in cells.items() if cell[2] != column}
    cells |= results
    lines = [f"- {column}: {said}" for column, said in ran.items()]
    lines += ["", "| transformation | operands | " + " | ".join(COLUMNS) + " |", "|---" * 5 + "|"]
    for name, operands in itertools.product(ROWS, OPERANDS):
        values = [cells.get((name, operands, column), NOT_RUN) for column in COLUMNS]
        lines.append(f"| {name} | {operands} | {' | '.join(values)} |")
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(HEAD + "\n".join(lines) + "\n")


def _here(column: str) -> str:
    day = datetime.datetime.now(datetime.UTC).date()
    if column == "H200":
        devices = jax.devices("gpu")
        where = f"{len(devices)} x {devices[0].device_kind}"
    else:
        where = platform.machine()
    version = importlib.metadata.version("jax")
    return f"{day}, {where}, jax {version}, Python {platform.python_version()}"


class Plugin:
    """Collects the rows' results; with pytest-xdist, in the process that hears of all of them."""

    def __init__(self) -> None:
        self.results: dict[Cell, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        properties: dict[str, Any] = dict(report.user_properties)
        if report.when == "call" and PROPERTY in properties:
            *cell, outcome = properties[PROPERTY]
            self.results[tuple(cell)] = outcome if report.passed else report.outcome

    def pytest_sessionfinish(self) -> None:
        if self.results:
            write(self.results)
