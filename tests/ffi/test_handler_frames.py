"""The stages of the "CUDA" platform, called as XLA calls them, against the driver's stand-in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.ffi.conftest import build
from tests.ffi.fake_driver import HEADER, HERE, ptx

Frames = Callable[..., list[list[str]]]

COPY = ("copy", 1)
LOADED = ["ok", f"load {len(ptx())}", "ready copy on 0"]
LAUNCHED = "launch {} on {} grid 4 1 1 block 128 1 1 smem 0 stream 7 parameters 4096 8192"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("frames") / "fake_xla.so"
    build(HERE / "fake_xla.cc", library, "xla/ffi/api/c_api.h", "jaxlib/include")
    return library


@pytest.fixture
def frames(extension: str, library: Path, fake_driver: Path, tmp_path: Path) -> Frames:
    """Takes the steps in a new process: of each call its outcome, then what the driver was asked."""

    def run(*steps: Any) -> list[list[str]]:
        done = subprocess.run(
            [sys.executable, "-m", "tests.ffi.frame_probe", extension, str(library)],
            input=json.dumps(steps),
            capture_output=True,
            text=True,
            cwd=HERE.parents[1],
            env={
                **os.environ,
                "LD_LIBRARY_PATH": str(fake_driver),
                "FAKE_CUDA_LOG": str(tmp_path / "calls"),
            },
            check=False,
        )
        assert done.returncode == 0, done.stderr
        contexts = ("retain", "release")
        return [
            [line for line in call if not line.startswith(contexts)]
            for call in json.loads(done.stdout)
        ]

    return run


def test_the_second_initialize_of_a_frame_reads_nothing_and_asks_nothing(frames: Frames) -> None:
    first, second, launch = frames(
        ("set", "a", ptx(), *COPY),
        ("initialize", "a"),
        ("spoil", "a", "grid"),  # it would be refused
        ("initialize", "a"),
        ("set", "a", ptx(), *COPY),
        ("execute", "a"),
    )
    assert first == LOADED
    assert second == ["ok"]
    assert launch == ["ok", LAUNCHED.format("copy", 0)]


def test_another_device_is_initialized_too(frames: Frames) -> None:
    calls = [("initialize", "a", device) for device in (0, 1, 0, 1)]
    first, *others = frames(("set", "a", ptx(), *COPY), *calls, ("execute", "a", 1))
    assert first == LOADED
    assert others == [
        ["ok", "ready copy on 1"],
        ["ok"],
        ["ok"],
        ["ok", LAUNCHED.format("copy", 1)],
    ]


def test_another_frame_is_initialized_too(frames: Frames) -> None:
    first, *others = frames(
        ("set", "a", ptx(), *COPY),
        ("initialize", "a"),
        ("set", "b", ptx(), *COPY),
        ("spoil", "b", "grid"),
        ("initialize", "b"),
        ("set", "b", ptx("other"), "other", 1),
        ("initialize", "b"),
    )
    assert first == LOADED
    assert "expected int64 array `grid` but got scalar `grid`" in others[0][0]
    assert others[1] == ["ok", f"load {len(ptx('other'))}", "ready other on 0"]


def test_what_failed_is_tried_again(frames: Frames) -> None:
    text = HEADER + "syntax error"
    first, second = frames(("set", "a", text, *COPY), ("initialize", "a"), ("initialize", "a"))
    assert "CUDA_ERROR_INVALID_PTX" in first[0]
    assert first[1:] == [f"load {len(text)}"]
    assert second == first


@pytest.mark.parametrize("key", [1, 2])
def test_another_kernel_at_the_same_address_is_the_one_that_runs(frames: Frames, key: int) -> None:
    """As of an executable that was freed. Its key tells, unless somebody made it up."""
    first, second, launch = frames(
        ("set", "a", ptx(), *COPY),
        ("initialize", "a"),
        ("set", "a", ptx("other"), "other", key),
        ("initialize", "a"),
        ("execute", "a"),
    )
    load = [f"load {len(ptx('other'))}", "ready other on 0"]
    late = key == 1
    assert first == LOADED
    assert second == ["ok", *([] if late else load)]
    assert launch == ["ok", *(load if late else []), LAUNCHED.format("other", 0)]


def test_what_execute_refuses_it_refuses_though_initialize_did_not(frames: Frames) -> None:
    text = HEADER + "syntax error"
    _, second, launch = frames(
        ("set", "a", ptx(), *COPY),
        ("initialize", "a"),
        ("set", "a", text, *COPY),
        ("initialize", "a"),
        ("execute", "a"),
    )
    assert second == ["ok"]
    assert "CUDA_ERROR_INVALID_PTX" in launch[0]
    assert launch[1:] == [f"load {len(text)}"]


def test_a_frame_of_another_kind_is_refused(frames: Frames) -> None:
    stage, count, name = frames(
        ("set", "a", ptx(), *COPY),
        ("initialize", "a"),
        ("initialize", "a", 0, "execute"),
        ("drop", "a", "batch"),
        ("initialize", "a"),
        ("spoil", "a", "bat"),  # in its place
        ("execute", "a"),
    )[1:]
    assert "Wrong execution stage" in stage[0]
    assert "Wrong number of attributes: expected 13 but got 12" in count[0]
    assert "expected int64 array `batch` but got scalar `bat`" in name[0]


def test_the_stages_describe_themselves(frames: Frames) -> None:
    (instantiate,), (initialize,), (execute,) = frames(
        ("metadata", "instantiate"), ("metadata", "initialize"), ("metadata", "execute")
    )
    assert initialize == instantiate
    version, traits = execute.split()
    assert (version, traits) == (instantiate.split()[0], "1")  # may be recorded into a CUDA graph
