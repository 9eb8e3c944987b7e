"""`_ext.Launcher` where no driver is needed."""

from __future__ import annotations

import subprocess
import sys

from tests.ffi.test_cuda_driver import call, ptx


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
