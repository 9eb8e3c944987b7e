"""Kernels that the driver compiles before they are needed."""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax

from jax_ptx import _ext


def load_ahead(attributes: dict[str, Any]) -> None:
    """Has the driver compile a kernel while XLA compiles the program around it, if there is a GPU.

    What the first call needs it waits for. An error is not told here: that call meets it too.
    """
    device = _first_gpu()
    if device is not None:
        _loaders().submit(_ext.load, attributes, device)


@functools.cache
def _first_gpu() -> int | None:
    """The driver's number of a GPU that JAX uses: a kernel that is loaded for one is for all."""
    try:
        return jax.local_devices(backend="cuda")[0].local_hardware_id
    except (RuntimeError, IndexError):
        return None


@functools.cache
def _loaders() -> ThreadPoolExecutor:
    """Threads for the driver's compiler; Python waits for them before it exits."""
    return ThreadPoolExecutor(4, thread_name_prefix="jax_ptx_load")
