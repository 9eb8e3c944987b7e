"""A process that runs what `author` left, first without the library, then without tracing the op.

`python -m tests.processes.reader FOLDER` prints a pickle of what it found, in base64.
"""

from __future__ import annotations

import base64
import pickle
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import jax.export
import numpy as np
from jax.experimental import serialize_executable


def message(call) -> str:
    """What a call that must fail says."""
    try:
        jax.block_until_ready(call())
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def main(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    exported = {
        path.stem: jax.export.deserialize(bytearray(path.read_bytes()))
        for path in sorted(folder.glob("*.exported"))
    }
    x, w = np.ones((6, 48), np.float32), np.ones(48, np.float32)
    found["without the library"] = message(lambda: exported["forward"].call(x, w))

    from jax_ptx.ops.rms_norm import kernels  # imports the library, and traces nothing

    x, w = (np.load(folder / f"{name}.npy") for name in "xw")
    call = exported["forward"].call
    found["exported"] = {
        "forward": call(x, w),
        "gradient": jax.jit(jax.grad(lambda *a: (call(*a) ** 3).sum(), (0, 1)))(x, w),
        "users_kernel": exported["users_kernel"].call(x, w),
    }
    twice = jax.grad(lambda w: (jax.grad(lambda *a: (call(*a) ** 3).sum())(x, w) ** 2).sum())
    found["second order"] = jax.jit(twice)(w)
    call = exported["symbolic"].call
    found["symbolic"] = {
        rows: jax.jit(jax.value_and_grad(lambda *a: (call(*a) ** 3).sum(), (0, 1)))(x[:rows], w)
        for rows in (1, 6)
    }
    found["exported for another platform"] = message(lambda: exported["elsewhere"].call(x, w))
    found["executables"] = {}
    for path in folder.glob("*.executable"):
        run = serialize_executable.deserialize_and_load(
            *pickle.loads(path.read_bytes()), execution_devices=jax.devices()[:1]
        )
        found["executables"][path.stem] = run(x, w)
    found["texts written"] = kernels.forward_launch.cache_info().misses

    from tests.processes import programs

    hits: Counter[str] = Counter()
    jax.monitoring.register_event_listener(lambda event, **_: hits.update([event]))
    found["cached"] = {name: jax.jit(f)(x, w) for name, f in programs.PROGRAMS.items()}
    found["hits"] = hits["/jax/compilation_cache/cache_hits"]
    return jax.tree.map(jax.device_get, found)


if __name__ == "__main__":
    print(base64.b64encode(pickle.dumps(main(Path(sys.argv[1])))).decode())
