"""Kernels on PyTorch tensors: on their GPU and PyTorch's current stream, or emulated on a CPU."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from jax_ptx import _ext
from jax_ptx.launch import Launch

_ALIGNMENT_BYTES = 32  # of the widest access of any target, ld.global.v8.b32 of sm_100


def call(
    launch: Launch,
    tensors: Sequence[torch.Tensor],
    results: Sequence[tuple[tuple[int, ...], str]],
) -> list[torch.Tensor]:
    """Launches a kernel on tensors, without waiting for it to finish.

    Args:
        launch: the record.
        tensors: the operands, on one device. One that is not contiguous is copied first, and so is
            a view that does not begin at a multiple of 32 bytes.
        results: shape and dtype name, such as `"bfloat16"`, of each result.

    Returns:
        The results, new tensors on the operands' device.

    Raises:
        NotImplementedError: autograd would need a derivative, which a kernel does not have.
        TypeError: PyTorch has no dtype of a result's name.
        ValueError: the operands are not on one device, or it is neither a CPU nor an NVIDIA GPU.
    """
    _refuse_autograd(launch, tensors)
    device = _common_device(launch, tensors)
    operands = [_as_operand(tensor) for tensor in tensors]
    outputs = [
        torch.empty(shape, dtype=_torch_dtype(launch, name), device=device)
        for shape, name in results
    ]
    buffers = [*operands, *outputs]
    attributes = _attributes(launch)
    if device.type == "cuda":
        # Temporary copies may be freed here: the allocator reuses them on this same stream only.
        _ext.launch(
            attributes,
            [(tensor.data_ptr(), tensor.nbytes) for tensor in buffers],
            len(outputs),
            device.index,
            torch.cuda.current_stream(device).cuda_stream,
        )
    else:
        # As bytes: numpy has neither bfloat16 nor float8.
        arrays = [tensor.reshape(-1).view(torch.uint8).numpy() for tensor in buffers]
        _ext.emulate(attributes, arrays, len(outputs))
    return outputs


def _as_operand(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy, in the memory that a kernel expects."""
    # A view with pending negation (a conjugate's imaginary part) holds other bits than its values.
    tensor = tensor.detach().contiguous().resolve_neg()
    # XLA's buffers, and whole PyTorch tensors, begin where a kernel may use its widest access; a view
    # such as x[1:] begins at any element, and there the access would fault.
    return tensor.clone() if tensor.data_ptr() % _ALIGNMENT_BYTES else tensor


def _refuse_autograd(launch: Launch, tensors: Sequence[torch.Tensor]) -> None:
    for index, tensor in enumerate(tensors):
        reverse = torch.is_grad_enabled() and tensor.requires_grad
        if reverse or forward_ad.unpack_dual(tensor).tangent is not None:
            raise NotImplementedError(
                f"{launch.entry}: operand {index} requires a gradient, and a kernel has no "
                "derivative; call it under torch.no_grad(), or inside a torch.autograd.Function"
            )


def _common_device(launch: Launch, tensors: Sequence[torch.Tensor]) -> torch.device:
    devices = list(dict.fromkeys(tensor.device for tensor in tensors))
    if len(devices) != 1:
        came = ", ".join(str(device) for device in devices) or "no tensors"
        raise ValueError(f"{launch.entry}: the operands must be on one device, got {came}")
    (device,) = devices
    if device.type not in ("cpu", "cuda"):
        raise ValueError(
            f"{launch.entry}: the operands must be on a CPU or an NVIDIA GPU, got device {device}"
        )
    return device


def _torch_dtype(launch: Launch, name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"{launch.entry}: a result has dtype {name}, which PyTorch does not have")
    return dtype


@functools.lru_cache(maxsize=1024)
def _attributes(launch: Launch) -> dict[str, Any]:
    """The record as plain Python values, which the extension reads faster than arrays."""
    return {
        name: value if isinstance(value, int | str) else value.tolist()
        for name, value in launch.attributes().items()
    }
