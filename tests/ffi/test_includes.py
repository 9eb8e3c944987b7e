"""Which part of the extension may include which: the emulator and the driver never see each other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FFI = Path(__file__).parents[2] / "ffi"
FILES = sorted(path for path in FFI.rglob("*") if path.suffix in (".h", ".cc"))

BASE = {"status", "launch", "inline_vector"}
# The first folder or, at the top, the file's stem -> what it may include besides itself.
ALLOWED = {
    "status": set(),
    "inline_vector": set(),
    "parallel": set(),
    "launch": {"status", "inline_vector"},
    "content_cache": {"launch", "status"},
    "ptx": {"status"},
    "emulator": {*BASE, "ptx"},
    "cuda": {*BASE, "content_cache", "ptx"},  # the entry's parameters
    "emulate": {*BASE, "content_cache", "ptx", "emulator"},
    "hints": set(),
    "attributes": BASE,
    "handlers": {*BASE, "attributes", "parallel", "emulate", "cuda", "hints"},
    "python": {*BASE, "parallel"},
    "observe": {*BASE, "emulate", "python"},
    "launcher": {*BASE, "cuda", "python"},
    "tensors": {*BASE, "launcher", "python"},
    "known_calls": {"launcher", "python", "tensors"},
    "module": {*BASE, "emulate", "cuda", "handlers", "launcher", "python"},
}


def part(name: str) -> str:
    return Path(name).parts[0].split(".")[0]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(FFI)))
def test_includes_flow_one_way(path: Path) -> None:
    own = part(str(path.relative_to(FFI)))
    for included in re.findall(r'^#include "(.*)"', path.read_text(), re.MULTILINE):
        if included.startswith("xla/"):
            assert own in ("attributes", "handlers", "module"), "XLA's are for the handlers alone"
        else:
            assert part(included) in {own, *ALLOWED[own]}, f"{own} includes {included}"
