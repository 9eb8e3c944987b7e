"""The operators on DTensors: rows stay where they are."""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch

from jax_ptx.torch import ops


@torch.compiler.assume_constant_result
def register() -> None:
    """Tells DTensor how arguments and results may be placed, in a process that has imported it.

    Not at import, which would import all of `torch.distributed.tensor`.
    """
    if "torch.distributed.tensor" in sys.modules:
        _register()


@functools.cache
def _register() -> None:
    from torch.distributed.tensor import Partial, Replicate, Shard
    from torch.distributed.tensor.experimental import register_sharding

    def places(x: Any) -> list[Any]:
        return [Replicate(), *(Shard(dim) for dim in range(x.ndim - 1))]

    # Of each: the results' placements where rows have `place`, and the arguments'; the weight is everywhere.

    @register_sharding(ops.rms_norm)
    def _(x: Any, weight: Any, *options: Any) -> Any:
        return [
            ([place] * 2, [place, weight and Replicate(), *[None] * len(options)])
            for place in places(x)
        ]

    @register_sharding(ops.add_rms_norm)
    def _(x: Any, residual: Any, weight: Any, *options: Any) -> Any:
        return [
            ([place] * 3, [place, place, weight and Replicate(), *[None] * len(options)])
            for place in places(x)
        ]

    @register_sharding(ops.rms_norm_backward)
    def _(x: Any, dy: Any, rstd: Any, weight: Any, addend: Any, *options: Any) -> Any:
        *_, need_dx, need_dw = options
        found = []
        for place in places(x):
            # A result that is not needed is an empty tensor.
            dx = place if need_dx else Replicate()
            dw = Partial() if need_dw and place != Replicate() else Replicate()
            given = [place, place, place, weight and Replicate(), addend and place]
            found.append(([dx, dw], [*given, *[None] * len(options)]))
        return found
