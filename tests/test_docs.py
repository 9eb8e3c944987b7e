"""The code of the pages in docs/ runs as it is printed, and prints what they say it does."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from jax_ptx.check import main

DOCS = Path(__file__).parents[1] / "docs"
BLOCK = re.compile(r"```(python|sh)\n(.*?)```\n(?:```text\n(.*?)```)?", re.DOTALL)
PAGES = [path for path in sorted(DOCS.glob("*.md")) if BLOCK.search(path.read_text())]
OPTIONAL = ("equinox", "flax", "torch")  # not there on every Python (pyproject.toml)


def run(language: str, code: str, path: Path, names: dict[str, object]) -> None:
    if language == "sh":
        python, module, package, *arguments = shlex.split(code)
        assert (python, module, package) == ("python", "-m", "jax_ptx")
        main(arguments)
    else:
        # As a file, since the language reads the lines of the kernel's author.
        path.write_text(code)
        exec(compile(code, str(path), "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_prints_what_it_says(page: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    missing = ""
    for index, (language, code, expected) in enumerate(BLOCK.findall(page.read_text())):
        try:
            run(language, code, tmp_path / f"block_{index}.py", names)
        except ModuleNotFoundError as error:
            if error.name not in OPTIONAL:
                raise
            missing = str(error)
            continue
        assert capsys.readouterr().out == expected, f"block {index}"
    if missing:
        pytest.skip(f"a block did not run: {missing}")


def test_links_lead_somewhere_in_the_repository_too() -> None:
    """Where there is no page that the site's build makes."""
    dead = [
        f"{page.name}: {link}"
        for page in DOCS.rglob("*.md")
        for link in re.findall(r"\]\((?!http|#)([^)#]+)", page.read_text())
        if not (page.parent / link).exists()
    ]
    assert dead == []


def test_there_are_pages() -> None:
    assert {"index", "tutorial", "debugging"} <= {page.stem for page in PAGES}
