"""The README's code runs as it is printed."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_there_are_two_blocks() -> None:
    assert len(BLOCKS) == 2


@pytest.mark.parametrize("index", range(len(BLOCKS)))
def test_a_block_runs(index: int, tmp_path: Path, capsys) -> None:
    # As a file, since errors of the language name the author's line.
    path = tmp_path / "block.py"
    path.write_text(BLOCKS[index])
    names: dict[str, object] = {}
    exec(compile(BLOCKS[index], str(path), "exec"), names)
    if "zs" in names:
        np.testing.assert_array_equal(names["z"], np.arange(1000) + 1.0)
        np.testing.assert_array_equal(names["zs"], np.full((3, 1000), 2.0))
        assert ".visible .entry add(" in capsys.readouterr().out
    else:
        assert names["y"].shape == (8, 128, 4096)
        np.testing.assert_array_equal(names["z"], names["y"])
        assert names["dw"].shape == (4096,)


def test_it_opens_with_the_two_commands() -> None:
    first = re.search(r"```\n(.*?)```", README, re.DOTALL)
    assert first is not None
    assert [line.split()[:2] for line in first[1].splitlines()] == [
        ["make", "demo"],
        ["make", "test"],
    ]


def test_its_links_lead_somewhere() -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_docs_and_wheel_install_no_packages_of_the_tests() -> None:
    make = shutil.which("make")
    if make is None:
        pytest.skip("make is not installed")

    def commands(goal: str) -> str:
        run = [make, "--dry-run", "--always-make", "--no-print-directory", goal]
        return subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=True).stdout

    assert "[test]" in commands("test")
    assert "pip install" in commands("docs") + commands("wheel")
    assert "[test]" not in commands("docs") + commands("wheel")
    # What takes minutes says so before, and what is done says what follows.
    assert commands("demo").index("two to five minutes") < commands("demo").index("--editable")
    assert "docs/tutorial.md" in commands("demo").splitlines()[-1]
    assert "http.server -d site" in commands("docs").splitlines()[-1]


def test_the_extras_that_are_named_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    pages = [README, *(path.read_text() for path in (ROOT / "docs").glob("*.md"))]
    listed = re.search(r"Further extras: (.*?)\. Runs", README, re.DOTALL)
    assert listed is not None
    named = {name for page in pages for name in re.findall(r"'\.\[(\w+)\]'", page)}
    named |= set(re.findall(r"`(\w+)`", listed[1]))
    assert named == set(extras) - {"cuda12"}, "cuda12 is named beside cuda13"


def test_no_cell_of_the_table_is_unchecked() -> None:
    assert "not checked" not in README


def test_the_changelog_begins_with_the_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    first = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert first is not None
    assert first[1] == version
