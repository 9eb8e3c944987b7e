"""Elements of a batch that a kernel's widest access would find misaligned.

A kernel that takes six float32 as four and two is right alone, since XLA aligns every buffer. Packed
in a batch, its second element begins at byte 24, where a 16-byte access faults, and on a GPU takes the
context with it. So each element of such a tensor is padded to a multiple of the widest access.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax

if TYPE_CHECKING:
    from jax_ptx.launch import Launch


def slice_bytes(launch: Launch, mask: Sequence[Sequence[bool]]) -> tuple[int, ...]:
    """What each tensor advances by from element to element of the batch.

    That is its `unit_bytes`, rounded up for a tensor that the batch maps. With a run-time dimension
    it is not: the handler reads that dimension off the tensor's size.

    Args:
        launch: the launch.
        mask: for each tensor, which axes of the batch it has.
    """
    widest = launch.access_bytes
    return tuple(
        -(-unit // widest) * widest if any(axes) and not dim else unit
        for unit, dim, axes in zip(launch.unit_bytes, launch.dims, mask, strict=True)
    )


def must_be_apart(launch: Launch, mask: Sequence[Sequence[bool]], avals: Sequence[Any]) -> bool:
    """Whether elements can neither be padded nor lie packed: of a tensor with a run-time dimension.

    Args:
        launch: the launch.
        mask: for each tensor, which axes of the batch it has.
        avals: one element of each tensor, shape and dtype.
    """
    widest = launch.access_bytes
    # A symbolic size differs from all that it is not known to be.
    return any(
        dim
        and any(axes)
        and unit % widest != 0
        and math.prod(aval.shape) * aval.dtype.itemsize % widest != 0
        for unit, dim, axes, aval in zip(launch.unit_bytes, launch.dims, mask, avals, strict=True)
    )


def pad(
    launch: Launch,
    mask: Sequence[Sequence[bool]],
    operands: Sequence[Any],
    result_types: Sequence[jax.ShapeDtypeStruct],
) -> tuple[Launch, list[Any], tuple[jax.ShapeDtypeStruct, ...]]:
    """Flattens and pads what is not a multiple of the widest access; `unpad` undoes it.

    Args:
        launch: the launch, for elements as they are.
        mask: for each tensor, which axes of the batch it has; they are its leading ones.
        operands: the operands.
        result_types: one element of each result.
    """
    n_bytes = slice_bytes(launch, mask)
    operands, types = list(operands), list(result_types)
    for index, (old, new) in enumerate(zip(launch.unit_bytes, n_bytes, strict=True)):
        if old == new:
            continue
        if index < len(operands):
            x, n_axes = operands[index], sum(mask[index])
            x = x.reshape(*x.shape[:n_axes], math.prod(x.shape[n_axes:]))
            end = new // x.dtype.itemsize - x.shape[-1]
            operands[index] = jax.numpy.pad(x, [(0, 0)] * n_axes + [(0, end)])
        else:
            dtype = types[index - len(operands)].dtype
            types[index - len(operands)] = jax.ShapeDtypeStruct((new // dtype.itemsize,), dtype)
    if n_bytes != launch.unit_bytes:
        launch = dataclasses.replace(launch, unit_bytes=n_bytes)
    return launch, operands, tuple(types)


def unpad(result: Any, batch: tuple[int, ...], padded: Any, wanted: Any) -> Any:
    """A result of the padded type, as one of the wanted type; both are of one element."""
    if padded is wanted:
        return result
    return result[..., : math.prod(wanted.shape)].reshape(*batch, *wanted.shape)
