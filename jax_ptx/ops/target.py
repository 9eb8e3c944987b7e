"""Which GPU the library's operations are written for."""

from __future__ import annotations

import functools
import os

import jax

from jax_ptx.ops.layout import PORTABLE

VARIABLE = "JAX_PTX_TARGET"


def device_target() -> int:
    """The least target of this process's NVIDIA GPUs: 90 for sm_90.

    Without one, sm_80, whose code every later GPU runs; the environment variable `JAX_PTX_TARGET`, such as
    `sm_90`, says what else a program that is compiled here will run on.

    Raises:
        ValueError: the variable is no target.
    """
    if asked := os.environ.get(VARIABLE):
        number = asked.removeprefix("sm_").rstrip("af")
        if not number.isdigit() or int(number) < PORTABLE:
            raise ValueError(
                f"{VARIABLE} must be a target from sm_80 on, such as sm_90, got {asked!r}"
            )
        return int(number)
    return _least_target()


@functools.cache
def _least_target() -> int:
    try:
        devices = jax.devices("cuda")
    except RuntimeError:
        return PORTABLE
    return min(round(10 * float(device.compute_capability)) for device in devices)
