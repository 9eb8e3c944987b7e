"""Random edits of good programs, with fixed seeds: any outcome but a crash or a hang is right. `run` does the
same for hours, guided by coverage and under sanitizers; what it found is in `found`."""

from __future__ import annotations

import contextlib
import pathlib
import random
import re

import numpy as np
import pytest

from tests.ffi.emulation import emulate
from tests.fuzz.seeds import programs, syntax, table

FOUND = sorted((pathlib.Path(__file__).parent / "found").glob("*.ptx"))
EDITS = 1000
TOKENS = [
    *"{}[]()<>,;:@!|+-_",
    *("%r1", "%rd1", "%p1", "-1", "0x7fffffffffffffff", "99999999999", ".b64", ".v4", "%tid.x"),
]


def run(text: str) -> None:
    """Emulates every kernel of the text, as target.cc does."""
    for entry, parameters in re.findall(r"\.entry\s+([\w$]+)\s*\(([^)]*)\)", text):
        buffers = [np.ones(256, np.uint32) for _ in range(parameters.count(".param"))]
        cluster = (2, 1, 1) if "cluster" in text else (1, 1, 1)
        options = {"grid": (2, 1, 1), "block": (40, 1, 1), "cluster": cluster, "smem_bytes": 256}
        with contextlib.suppress(ValueError, NotImplementedError, RuntimeError):
            emulate(text, buffers, len(buffers) // 2, entry=entry, step_limit=4000, **options)


def edited(text: str, other: str, rng: random.Random) -> str:
    """A few edits of lines, tokens and characters; some lines come from the other text."""
    lines, others = text.splitlines(), other.splitlines()
    for _ in range(rng.randint(1, 3)):
        at, kind = rng.randrange(len(lines)), rng.randrange(6)
        line = lines[at]
        column = rng.randrange(len(line) + 1)
        if kind == 0 and len(lines) > 1:
            del lines[at]
        elif kind == 1:
            lines.insert(at, rng.choice(lines))
        elif kind == 2:
            lines.insert(at, rng.choice(others))
        elif kind == 3:
            lines[at] = line[:column] + line[column + rng.randint(1, 8) :]
        elif kind == 4:
            lines[at] = line[:column] + rng.choice(TOKENS) + line[column:]
        else:
            lines[at] = line[:column] + chr(rng.randrange(1, 256)) + line[column + 1 :]
    return "\n".join(lines)


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """A part of the fuzzer's seeds."""
    return [*programs(), *list(table(forms=1))[::5]]


@pytest.mark.parametrize("seed", range(4))
def test_edited_programs_do_no_harm(seed: int, texts: list[str]):
    rng = random.Random(seed)
    for _ in range(EDITS):
        run(edited(rng.choice(texts), rng.choice(texts), rng))


@pytest.mark.parametrize("text", list(syntax()))
def test_edited_rare_syntax_does_no_harm(text: str, texts: list[str]):
    emulate(text, [np.zeros(256, np.uint32)])  # as it is, it runs
    rng = random.Random(0)
    for _ in range(EDITS // 4):
        run(edited(text, rng.choice(texts), rng))


@pytest.mark.parametrize("file", FOUND, ids=lambda file: file.stem)
def test_what_the_fuzzer_found(file: pathlib.Path):
    run(file.read_text(encoding="latin-1"))


def test_seeds_reach_the_machine():
    """The kernel around a form runs it: the fuzzer starts behind the parser."""
    text = next(text for text in table(forms=1) if "atom.and.b32" in text)
    emulate(text, [np.zeros(8, np.uint32)])
    with pytest.raises(ValueError, match=r"never written"):
        emulate(re.sub(r"mov\.b32 .*;\n", "", text), [np.zeros(8, np.uint32)])
