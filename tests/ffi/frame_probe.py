"""Calls of the CUDA handlers with frames of fake_xla.cc, in a process of its own.

Reads steps, [what, frame, *arguments], and writes for each call of a handler its outcome and what
the driver was asked.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.ffi.cuda_probe import load_extension

STAGES = {"instantiate": 0, "initialize": 2, "execute": 3}


def load_frames(path: str) -> ctypes.CDLL:
    library, pointer, text = ctypes.CDLL(path), ctypes.c_void_p, ctypes.c_char_p
    for name, result, *arguments in (
        ("frame_new", pointer),
        ("frame_set", None, pointer, text, text, ctypes.c_int64),
        ("frame_spoil", None, pointer, text),
        ("frame_drop", None, pointer, text),
        ("frame_call", text, pointer, pointer, ctypes.c_int, ctypes.c_int),
        ("frame_metadata", text, pointer),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def handlers(extension: Any) -> dict[str, int]:
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return {
        stage: get(capsule, None) for stage, capsule in extension.registrations()["CUDA"].items()
    }


def main() -> None:
    extension, library = load_extension(sys.argv[1]), load_frames(sys.argv[2])
    handler, log, read = handlers(extension), Path(os.environ["FAKE_CUDA_LOG"]), 0
    frames: dict[str, Any] = {}
    found = []
    for what, name, *arguments in json.load(sys.stdin):
        frame = frames.get(name) or frames.setdefault(name, library.frame_new())
        if what in ("set", "spoil", "drop"):
            given = [value.encode() if isinstance(value, str) else value for value in arguments]
            getattr(library, f"frame_{what}")(frame, *given)
        elif what == "metadata":
            found.append([library.frame_metadata(handler[name]).decode()])
        else:
            device = arguments[0] if arguments else 0
            stage = STAGES[arguments[1] if len(arguments) > 1 else what]
            outcome = library.frame_call(frame, handler[what], stage, device)
            lines = log.read_text().splitlines() if log.exists() else []
            found.append([outcome.decode(), *lines[read:]])
            read = len(lines)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
