"""`_ext.Launcher`, without a driver and against the stand-in."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from tests.ffi.fake_driver import HEADER, Driver, call, ptx


def test_a_launcher_that_outlives_python_is_no_message_at_its_end() -> None:
    """As those that PyTorch's calls keep, which is not told to the user."""
    program = f"""
import ctypes
from jax_ptx import _ext
launcher = _ext.Launcher({call(ptx(parameters=("u64",) * 3))["attributes"]!r}, 1)
ctypes.pythonapi.Py_IncRef(ctypes.py_object(launcher))
"""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def test_a_launcher_does_what_launch_does(driver: Driver) -> None:
    rows = {"unit_bytes": [4, 4], "dims": [1, 1], "rows_per_cta": 8, "grid": [2**31 - 1, 1, 1]}
    given = call(ptx(parameters=("u64",) * 3), **rows)
    assert driver.run(given) == ["ok"]
    expected = driver.log()
    driver.log_file.unlink()
    assert driver.run({**given, "launcher": True}) == ["ok"]
    assert driver.log() == expected
    assert any(line.split()[0] == "launch" for line in expected)
    driver.log_file.unlink()
    assert driver.run({**given, "launcher": True, "times": 3}) == ["ok"]
    assert len(driver.log("launch")) == 3


def test_a_launcher_that_has_found_its_kernel_makes_it_ready_on_each_device(driver: Driver) -> None:
    assert driver.run({**call(), "launcher": True, "devices": [0, 1, 0, 1]}) == ["ok"]
    assert len(driver.log("load")) == 1
    assert driver.log("ready") == ["ready copy on 0", "ready copy on 1"]
    assert ["on 1" in line for line in driver.log("launch")] == [False, True] * 2


def test_a_launcher_tries_a_refused_text_again(driver: Driver) -> None:
    refused = {**call(HEADER + "syntax error"), "launcher": True}
    outcomes = driver.run(refused, refused)
    assert outcomes[0] == outcomes[1]
    assert "CUDA_ERROR_INVALID_PTX" in outcomes[0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"buffers": [(4096, 64)]}, "1 buffers"),
        ({"buffers": [(4096, 64), (8192, 32)]}, "must have 64 bytes, got 32"),
        ({"buffers": [(4096, 64), (-1, 64)]}, "OverflowError"),
        ({"n_results": 3}, "n_results must be between 0 and the number of buffers, 2, got 3"),
    ],
)
def test_a_launchers_errors_are_those_of_launch(
    driver: Driver, changes: dict[str, Any], message: str
) -> None:
    (outcome,) = driver.run({**call(**changes), "launcher": True})
    assert message in outcome
