"""Calls of the driver's stand-in (fake_cuda.cc), each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent

HEADER = ".version 8.0\n.target sm_90\n.address_size 64\n"


def ptx(
    entry: str = "copy", parameters: tuple[str, ...] = ("u64", "u64"), header: str = HEADER
) -> str:
    declared = ", ".join(f".param .{kind} p{i}" for i, kind in enumerate(parameters))
    return f"{header}// not this .entry\n.visible .entry {entry}({declared}) {{ ret; }}\n"


def call(text: str | None = None, **changes: Any) -> dict[str, Any]:
    """One call of `_ext.launch`: keywords of the record, or of the call."""
    attributes = {
        "ptx": ptx() if text is None else text,
        "entry": "copy",
        "key": 1,
        "grid": [4, 1, 1],
        "block": [128, 1, 1],
        "cluster": [1, 1, 1],
        "smem_bytes": 0,
        "rows_per_cta": 0,
        "unit_bytes": [64, 64],
        "dims": [0, 0],
        "global_dims": [0] * max(changes.get("dims", [0])),
        "batch": [],
        "batch_mask": [],
    }
    arguments = {"buffers": [(4096, 64), (8192, 64)], "n_results": 1, "device": 0, "stream": 7}
    for name, value in changes.items():
        (attributes if name in attributes else arguments)[name] = value
    return {"attributes": attributes, **arguments}


class Driver:
    """Runs calls in a new process, each with the outcome "ok" or its error, and reads the log."""

    def __init__(self, extension: str, folder: Path, log: Path) -> None:
        self.extension, self.folder, self.log_file = extension, folder, log

    def run(self, *calls: dict[str, Any], **settings: int) -> list[str]:
        environment = {
            **os.environ,
            "LD_LIBRARY_PATH": str(self.folder),
            "FAKE_CUDA_LOG": str(self.log_file),
            **{f"FAKE_CUDA_{name.upper()}": str(value) for name, value in settings.items()},
        }
        done = subprocess.run(
            [sys.executable, str(HERE / "cuda_probe.py"), self.extension],
            input=json.dumps(calls),
            capture_output=True,
            text=True,
            env=environment,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def log(self, *kinds: str) -> list[str]:
        lines = self.log_file.read_text().splitlines() if self.log_file.exists() else []
        return [line for line in lines if not kinds or line.split()[0] in kinds]
