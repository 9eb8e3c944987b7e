"""`_ext.Tensors` and `_ext.KnownCalls`: which calls they take, and what they launch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.ffi.conftest import build
from tests.ffi.fake_driver import HERE

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

F32 = "torch.float32"
SHAPE = [[2, 3, 64], [192, 64, 1], F32]
TAKEN = {
    "no context": ["alone", ["empty", *SHAPE, 0]],
    "alone": ["alone", ["at once", *SHAPE]],
    "rows": ["rows", ["at once", *SHAPE], ["at once", [2, 3], [3, 1], F32]],
    "one row": ["rows", ["at once", [64], [1], F32], ["at once", [], [], F32]],
    "a parameter": ["alone", ["at once", *SHAPE]],
    "another GPU": ["alone", ["empty", *SHAPE, 1]],
}


@pytest.fixture(scope="module")
def found(
    extension: str, fake_driver: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], list[str]]:
    """By case, the plan, what was allocated and all addresses; and the log of the driver."""
    folder = tmp_path_factory.mktemp("exchange")
    library = folder / "fake_exchange.so"
    build(HERE / "fake_exchange.cc", library, "dlpack.h", "torch/include/ATen")
    log = folder / "calls"
    done = subprocess.run(
        [sys.executable, "-m", "tests.ffi.known_probe", extension, str(library)],
        capture_output=True,
        text=True,
        cwd=HERE.parents[1],
        env={**os.environ, "LD_LIBRARY_PATH": str(fake_driver), "FAKE_CUDA_LOG": str(log)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), log.read_text().splitlines()


def test_what_is_taken_is_launched_on_its_devices_stream(found: Any) -> None:
    outcomes, log = found
    launches = [line for line in log if line.startswith("launch")]
    for name, expected in TAKEN.items():
        *outcome, places = outcomes.pop(name)
        assert outcome == expected, name
        device = int(name == "another GPU")
        rows = 1 if name == "one row" else 6
        line = launches.pop(0)
        assert f"launch known on {device} grid {rows} 1 1 " in line
        assert f" stream {70 + device} parameters {' '.join(map(str, (*places, rows)))}" in line
    for taken in ("taken", "in place"):
        places = outcomes["any launch"][taken]
        line = launches.pop(0)
        assert "launch known on 0 grid 6 1 1 " in line
        assert f" stream 70 parameters {' '.join(map(str, places))} 6" in line
    assert not launches
    assert len([line for line in log if line.startswith("load")]) == 2


def test_nothing_is_made_for_what_is_left_to_others(found: Any) -> None:
    outcomes, _ = found
    assert outcomes["before"] is None
    rest = {n: o for n, o in outcomes.items() if isinstance(o, list) and n not in (*TAKEN, "new")}
    assert len(rest) == 23
    assert {name: outcome for name, outcome in rest.items() if outcome != [None]} == {}


def test_other_launches_leave_alone_what_does_not_fit(found: Any) -> None:
    outcomes, _ = found
    rest = dict(outcomes["any launch"])
    assert rest.pop("taken")
    assert rest.pop("in place")
    assert set(rest.values()) == {None}
    assert len(rest) == 10


def test_new_tensors_are_made_at_once_on_the_current_device(found: Any) -> None:
    outcomes, _ = found
    assert outcomes["new"] == [
        ["at once", [2, 3, 64], [192, 64, 1], "torch.float16"],
        ["at once", [4, 2], [2, 1], "torch.float16"],
        ["at once", [], [], "torch.float16"],
        ["empty", [3], [1], "torch.float16", 1],
    ]
    assert outcomes["new of none"] is None


@pytest.mark.parametrize(
    ("exchange", "message"),
    [
        ("no capsule", "TypeError: exchange must be a capsule of the name dlpack_exchange_api"),
        ("another name", "TypeError: exchange must be a capsule of the name"),
        ("another version", "ValueError: exchange must have version 1 of DLPack's"),
    ],
)
def test_an_exchange_of_another_kind_is_refused(found: Any, exchange: str, message: str) -> None:
    outcomes, _ = found
    assert outcomes[exchange].startswith(message)
