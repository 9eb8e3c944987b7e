"""Any kernel on PyTorch tensors."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from jax_ptx import _ext
from jax_ptx.launch import Launch
from jax_ptx.torch.refusals import refuse
from jax_ptx.torch.tensors import tensors


def call(
    launch: Launch,
    tensors: Sequence[torch.Tensor],
    results: Sequence[tuple[tuple[int, ...], str]],
    aliases: Sequence[tuple[int, int]] = (),
) -> list[torch.Tensor]:
    """Launches a kernel on tensors, without waiting for it to finish.

    Args:
        launch: the record.
        tensors: the operands, on one device. One that is not contiguous is copied first, and so is
            a view that does not begin at a multiple of 32 bytes.
        results: shape and dtype name, such as `"bfloat16"`, of each result.
        aliases: pairs (operand, result) that share memory, for kernels that write in place. The operand
            is copied first, and stays as it is.

    Returns:
        The results, new tensors on the operands' device.

    Raises:
        NotImplementedError: autograd would need a derivative, which a kernel does not have; or a tensor
            is one of torch.func's, or has no memory of its own; or something traces, which would not see
            the launch.
        TypeError: PyTorch has no dtype of a result's name.
        ValueError: the operands are not on one device, or it is neither a CPU nor an NVIDIA GPU.
    """
    refuse(launch.entry, [f"operand {index}" for index in range(len(tensors))], tensors)
    return call_checked(launch, tensors, results, aliases)


def call_checked(
    launch: Launch,
    tensors: Sequence[torch.Tensor],
    results: Sequence[tuple[tuple[int, ...], str]],
    aliases: Sequence[tuple[int, int]] = (),
) -> list[torch.Tensor]:
    """`call` of tensors that `refuse` has let pass."""
    device = _common_device(launch, tensors)
    run = _runner(launch)
    operands = [run.operand(tensor.detach()) for tensor in tensors]
    outputs = [
        torch.empty(shape, dtype=_torch_dtype(launch, name), device=device)
        for shape, name in results
    ]
    for index, result in aliases:
        outputs[result] = operands[index] = operands[index].clone()
    run(operands, outputs)
    return outputs


def current_stream(device: int) -> int:
    return torch.cuda.current_stream(device).cuda_stream


# The same without the object around it, which costs more than the launch; a build without CUDA lacks it.
current_stream = getattr(torch._C, "_cuda_getCurrentRawStream", current_stream)

_ALIGNMENT_BYTES = 32  # of the widest access of any target, ld.global.v8.b32 of sm_100


class Runner:
    """A launch record, ready to be launched on tensors again and again.

    Attributes:
        attributes: the record as plain Python values, which the extension reads faster than arrays.
        alignment: what a tensor's address must be a multiple of, in bytes.
        launcher: the extension's, from the first launch on a GPU on.
    """

    def __init__(self, launch: Launch, alignment: int = _ALIGNMENT_BYTES) -> None:
        self.attributes: dict[str, Any] = {
            name: value if isinstance(value, int | str) else value.tolist()
            for name, value in launch.attributes().items()
        }
        self.alignment = alignment
        self.launcher: Any = None

    def operand(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor, or a copy where its memory is not what a kernel expects.

        That is one that is not contiguous, that begins at an odd address (x[1:] may begin at any
        element, where a wide access would fault; whole tensors do not), whose negation or conjugation is
        pending, or zeros without memory, which autograd makes.

        Raises:
            RuntimeError: the tensor's memory was freed, as FSDP does between uses.
        """
        if tensor._is_zerotensor():
            return torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        if not tensor.is_contiguous() or tensor.is_neg() or tensor.is_conj():
            tensor = tensor.contiguous().resolve_conj().resolve_neg()
        address = tensor.data_ptr()
        if not address and tensor.numel():
            raise RuntimeError(
                f"an operand of shape {list(tensor.shape)} has no memory: its storage was freed, as "
                "FSDP does with what it gathers again before use"
            )
        return tensor.clone() if address % self.alignment else tensor

    def __call__(self, operands: list[torch.Tensor], results: list[torch.Tensor]) -> None:
        """Launches, without waiting for it to finish, on any operands and on new contiguous results.

        A result may be one of the operands too, to be written in place, if it is as `operand` gives it.
        """
        device = results[0].get_device()
        if device < 0:
            # As bytes: numpy has neither bfloat16 nor float8.
            buffers = [*map(self.operand, operands), *results]
            # A single element counts as contiguous whatever its stride, but not for a view.
            flat = [tensor.as_strided((tensor.numel(),), (1,)) for tensor in buffers]
            # Not by .numpy(), after which PyTorch lets nobody resize a tensor, as FSDP does.
            arrays = [np.from_dlpack(tensor.view(torch.uint8)) for tensor in flat]
            _ext.emulate(self.attributes, arrays, len(results))
            return
        launcher = self.launcher
        if launcher is None:
            launcher = self.launcher = _ext.Launcher(self.attributes, len(results))
        if tensors is not None and tensors.launch(launcher, self.alignment, operands, results):
            return
        # Copies live until the launch: the allocator reuses their memory on this stream only.
        placed = [*map(self.operand, operands), *results]
        places = [value for tensor in placed for value in (tensor.data_ptr(), tensor.nbytes)]
        launcher(device, current_stream(device), *places)


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
def _runner(launch: Launch) -> Runner:
    return Runner(launch)
