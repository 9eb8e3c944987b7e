"""A process for each framework: two profilers cannot share one, and a crash ends one job only.

The parent writes a job as a line of JSON, the child answers with a line.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from .cases import Case

FOLDER = Path(__file__).parents[1]
JOB_S = 120  # no implementation takes so long; one that hangs is ended


class Worker:
    """The parent's end. A child that died is started again for the next job."""

    def __init__(self, side: str, rehearse: bool) -> None:
        self._command = [sys.executable, "-P", "-m", "harness.worker", side, str(int(rehearse))]
        self._caches = tempfile.TemporaryDirectory()
        self._child: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str | None] = queue.Queue()
        self.hello: dict[str, Any] = self._start()

    def ask(self, job: dict[str, Any]) -> dict[str, Any]:
        """The answer to a job; {"failed": why} if there is none."""
        if "failed" in self.hello:
            return {"failed": self.hello["failed"]}
        if self._child is None and "failed" in (hello := self._start()):
            return hello
        try:
            self._child.stdin.write(json.dumps(job) + "\n")  # type: ignore[union-attr]
            self._child.stdin.flush()  # type: ignore[union-attr]
        except BrokenPipeError:
            return self._ended("the process had died")
        return self._answer()

    def close(self) -> None:
        self._stop()
        self._caches.cleanup()

    def _start(self) -> dict[str, Any]:
        path = os.pathsep.join([str(FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])])
        caches = {
            name: str(Path(self._caches.name) / name)  # a first call is to find none
            for name in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "QUACK_CACHE_DIR")
        }
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (it lives as long as the child)
        self._child = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            # Each of the two processes keeps what it takes of the GPU's memory.
            env={
                "XLA_PYTHON_CLIENT_MEM_FRACTION": ".45",
                **os.environ,
                "PYTHONPATH": path,
                **caches,
            },
        )
        self._lines = queue.Queue()
        self._reader = threading.Thread(
            target=_forward_lines, args=(self._child.stdout, self._lines), daemon=True
        )
        self._reader.start()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=JOB_S)
        except queue.Empty:
            return self._ended(f"no answer within {JOB_S} s")
        return self._ended("the process died") if line is None else json.loads(line)

    def _ended(self, reason: str) -> dict[str, Any]:
        return {"failed": ": ".join([reason, *self._stop()[-1:]])}

    def _stop(self) -> list[str]:
        """Ends the child; what it wrote to its standard error."""
        child, self._child = self._child, None
        if child is None:
            return []
        child.kill()
        child.wait()
        self._reader.join()
        for stream in (child.stdin, child.stdout):
            with contextlib.suppress(BrokenPipeError):
                stream.close()  # type: ignore[union-attr]
        with self._log:
            self._log.seek(0)
            return [line for line in self._log.read().splitlines() if line.strip()]


def _forward_lines(stdout: Any, lines: queue.Queue[str | None]) -> None:
    for line in stdout:
        lines.put(line)
    lines.put(None)


def serve(name: str, rehearse: bool) -> None:
    """The child's loop."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer

    def answer(value: dict[str, Any]) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    try:
        side = _side(name, rehearse)
    except Exception as error:
        answer({"failed": _in_words(error)})
        return
    answer(side.hello())
    for line in sys.stdin:
        job = json.loads(line)
        try:
            method = getattr(side, job.pop("do"))
            if "case" in job:
                job["case"] = Case(**job["case"])
            start = time.perf_counter()
            value = {**method(**job), "seconds": round(time.perf_counter() - start, 2)}
        except Exception as error:  # an implementation's; the others go on
            answer({"failed": _in_words(error)})
            side.synchronize()  # raises, and ends this process, if the device is in no state to go on
        else:
            answer(value)


def _side(name: str, rehearse: bool) -> Any:
    if name == "jax":
        from .jax_side import JaxSide as Chosen
    else:
        from .torch_side import TorchSide as Chosen
    return Chosen(rehearse)


def _in_words(error: Exception) -> str:
    text = str(error).strip() or repr(error)
    return f"{type(error).__name__}: {text.splitlines()[0][:300]}"


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2] == "1")
