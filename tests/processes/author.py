"""A process that compiles, exports and serialises; `python -m tests.processes.author FOLDER`."""

from __future__ import annotations

import gc
import pickle
import sys
import weakref
from pathlib import Path
from typing import Any

import jax
import jax.export
from jax.experimental import serialize_executable

import jax_ptx
from tests.processes import programs


def main(folder: Path) -> None:
    x, w = programs.operands()
    results = {}
    for name, f in programs.PROGRAMS.items():
        results[name] = jax.tree.map(jax.device_get, jax.jit(f)(x, w))
    (folder / "results.pickle").write_bytes(pickle.dumps(results))

    def export(name: str, f, *args, vjp_order: int = 0, platforms=("cpu", "cuda")) -> None:
        exporter = jax.export.export(
            jax.jit(f), platforms=platforms, disabled_checks=jax_ptx.export_checks()
        )
        (folder / f"{name}.exported").write_bytes(exporter(*args).serialize(vjp_order=vjp_order))

    export("forward", programs.forward, x, w, vjp_order=2)
    export("users_kernel", programs.users_kernel, x, w)
    other = "cpu" if folder.name == "cuda" else "cuda"
    export("elsewhere", programs.forward, x, w, platforms=(other,))
    (rows,) = jax.export.symbolic_shape("rows")
    symbolic = jax.ShapeDtypeStruct((rows, programs.N), x.dtype)
    export("symbolic", programs.forward, symbolic, w, vjp_order=1)

    for name, f in programs.PROGRAMS.items():
        # A function of another name: what came from the compilation cache is not serialised again.
        compiled = jax.jit(lambda x, w, f=f: f(x, w)).lower(x, w).compile()
        payload = serialize_executable.serialize(compiled)
        (folder / f"{name}.executable").write_bytes(pickle.dumps(payload))

    # Last, for it throws away what this process has traced and compiled.
    (folder / "collected.pickle").write_bytes(pickle.dumps(after_collection(x, w)))


def after_collection(x: Any, w: Any) -> tuple[dict[str, Any], bool]:
    """What executables give when all that they were made from is gone, and whether it is gone."""

    def make() -> tuple[dict[str, Any], weakref.ref[Any]]:
        @programs.kernel(**programs.ADDED)
        def added(x, w, y):
            programs.add(x, w, y)

        def users_kernel(x, w):
            return jax.vmap(added, (0, None))(x, w) * jax.numpy.float32(2)

        functions = {**programs.PROGRAMS, "users_kernel": users_kernel}
        compiled = {name: jax.jit(f).lower(x, w).compile() for name, f in functions.items()}
        return compiled, weakref.ref(added)

    compiled, added = make()
    jax.clear_caches()
    gc.collect()
    results = {name: jax.tree.map(jax.device_get, f(x, w)) for name, f in compiled.items()}
    return results, added() is None


if __name__ == "__main__":
    main(Path(sys.argv[1]))
