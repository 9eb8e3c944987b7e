"""What the extension does with PyTorch's tensors: in Python the questions to them take as long as a launch.

`tensors` makes results and launches; `known_calls` does all of a call like one before. Both are None where
PyTorch lacks what they take.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from jax_ptx import _ext


def _tensors() -> _ext.Tensors | None:
    exchange = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    try:
        return _ext.Tensors(exchange, torch.Tensor.is_neg, torch.empty_strided, _empty_at_once())
    except (TypeError, ValueError):
        return None


def _empty_at_once() -> Callable[..., torch.Tensor] | None:
    """What compiled programs get their results from: a third of the time of torch.empty_strided."""
    guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    on_gpu, on_cpu = (getattr(guards, f"_empty_strided_{name}", None) for name in ("cuda", "cpu"))
    if on_gpu is None or on_cpu is None:
        return None
    try:  # they are no public functions: whether both take what they did, the one without a GPU shows
        made: Any = on_cpu((2, 3), (3, 1), torch.float16)
    except (
        TypeError,
        ValueError,
        RuntimeError,
    ):  # it takes something else: torch.empty_strided serves
        return None
    same = isinstance(made, torch.Tensor) and made.shape == (2, 3) and made.stride() == (3, 1)
    return on_gpu if same and made.dtype is torch.float16 else None


tensors = _tensors()
known_calls = None if tensors is None else _ext.KnownCalls(tensors)


def empty(
    beside: torch.Tensor, shape: tuple[int, ...] | None, dtype: torch.dtype | None
) -> torch.Tensor:
    """A new contiguous tensor on another's device, of its shape if none is given."""
    made = None if tensors is None else tensors.empty(beside, shape, dtype)
    if made is None:
        shape = beside.shape if shape is None else shape
        made = torch.empty(shape, dtype=dtype, device=beside.device)
    return made
