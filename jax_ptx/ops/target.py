"""Which GPU the library's operations are written for."""

from __future__ import annotations

import functools
import os
from typing import Any

import jax

from jax_ptx.ops.layout import PORTABLE

VARIABLE = "JAX_PTX_TARGET"
# Of a GPU whose largest GPCs have 16 at least; a smaller part of a Hopper may have none of those.
WIDE_SMS = 7 * 16


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


def has_wide_clusters() -> bool:
    """Whether every GPU of this process has room for clusters of 16 CTAs, one to an SM.

    Of the GPUs that `JAX_PTX_TARGET` speaks of nobody knows.
    """
    return not os.environ.get(VARIABLE) and _least_sms() >= WIDE_SMS


@functools.cache
def _least_target() -> int:
    found = [round(10 * float(device.compute_capability)) for device in _devices()]
    return min(found, default=PORTABLE)


@functools.cache
def _least_sms() -> int:
    return min((getattr(device, "core_count", 0) for device in _devices()), default=0)


def _devices() -> list[Any]:
    try:
        return jax.devices("cuda")
    except RuntimeError:
        return []
