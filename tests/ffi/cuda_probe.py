"""Runs launches in a fresh process, for tests of what loads libcuda (fake_driver.py)."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType


def load_extension(path: str) -> ModuleType:
    """The extension alone: neither the package nor JAX."""
    loader = importlib.machinery.ExtensionFileLoader("_ext", path)
    spec = importlib.util.spec_from_loader("_ext", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def main() -> None:
    path, calls = sys.argv[1], json.loads(sys.stdin.read())
    extension = load_extension(path)

    def run(call: dict) -> str:
        buffers = [(address, size) for address, size in call.pop("buffers")]
        times, places = call.pop("times", 1), [value for buffer in buffers for value in buffer]
        try:
            if call.pop("ahead", False):
                extension.load(call["attributes"], call["device"])
            elif call.pop("launcher", False):
                device, stream = call.pop("device"), call.pop("stream")
                devices = call.pop("devices", [device] * times)
                launcher = extension.Launcher(**call)
                for device in devices:
                    launcher(device, stream, *places)
            else:
                for _ in range(times):
                    extension.launch(buffers=buffers, **call)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "ok"

    outcomes = []
    for call in calls:
        n_threads = call.pop("threads", 1)
        with ThreadPoolExecutor(n_threads) as pool:
            results = list(pool.map(run, [dict(call) for _ in range(n_threads)]))
        outcomes.append(results[0] if len(set(results)) == 1 else results)
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main()
