"""What is said where a framework that a module is for is not installed."""

from __future__ import annotations


def missing(name: str, error: ModuleNotFoundError) -> ModuleNotFoundError:
    """The error to raise for one that came while `jax_ptx.<name>` was imported.

    That is itself, if another package is missing.
    """
    if (error.name or "").partition(".")[0] != name:
        return error
    return ModuleNotFoundError(
        f"jax_ptx.{name} needs the package {name}: pip install 'jax_ptx[{name}]'", name=name
    )
