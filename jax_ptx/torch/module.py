"""Modules in the places of PyTorch's own."""

from __future__ import annotations

import numbers
import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch.overrides import has_torch_function_unary

from jax_ptx.torch.arguments import check_implementation, not_a_tensor, read_offset
from jax_ptx.torch.functional import Implementation, rms_norm

_is_scripting = torch.jit.is_scripting  # pyright: ignore[reportPrivateImportUsage]


class RMSNorm(torch.nn.RMSNorm):
    """`torch.nn.RMSNorm` with the kernel of `rms_norm`.

    Arguments, attributes and state are those of the original, of which it is a subclass: a `state_dict` of
    one loads into the other. The result has the input's dtype. What the kernel does not take, such as complex
    numbers or a negative eps, is the original's to compute or to refuse, unless one of the last two
    arguments asks for more than it has.

    Args:
        normalized_shape: the last dimensions of the input, over all of which the mean is.
        eps: added to the mean of squares; None: the epsilon of the dtype that the mean is computed in.
        elementwise_affine: whether there is a weight, at first 1 - weight_offset.
        device: the weight's.
        dtype: the weight's.
        weight_offset: added to the weight in float32; 1.0 is the zero-centred (Gemma) form.
        implementation: "ptx", "torch" or None, as `rms_norm` takes it.
    """

    # For modules of PyTorch's own that are given this class. Not annotated, for torch.jit.script.
    weight_offset = 0.0
    implementation = None

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        weight_offset: float = 0.0,
        implementation: Implementation | None = None,
    ) -> None:
        check_implementation("RMSNorm", implementation)
        offset = read_offset("RMSNorm", weight_offset, elementwise_affine, torch.float64)
        sizes: Any = normalized_shape
        sizes = [sizes] if isinstance(sizes, numbers.Integral) else sizes
        self.weight_offset = offset  # which `reset_parameters`, called by super, reads
        super().__init__([*map(_size, sizes)], eps, elementwise_affine, device, dtype)
        self.implementation: Implementation | None = implementation

    def reset_parameters(self) -> None:
        """Gives the weight its first value."""
        if self.elementwise_affine:
            torch.nn.init.constant_(self.weight, 1 - self.weight_offset)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The normalised input."""
        if _is_scripting():  # a language without `rms_norm`
            wide = x if x.dtype == torch.float64 else x.float()
            weight = self.weight
            if weight is not None:
                weight = weight.to(wide.dtype) + self.weight_offset
            return torch.rms_norm(wide, self.normalized_shape, weight, self.eps).to(x.dtype)
        return _normalise(
            x,
            self.weight,
            self.normalized_shape,
            self.eps,
            self.weight_offset,
            self.implementation,
        )

    def extra_repr(self) -> str:
        """The arguments, for repr."""
        offset = f", weight_offset={self.weight_offset}" if self.weight_offset else ""
        implementation = f", implementation={self.implementation!r}" if self.implementation else ""
        return super().extra_repr() + offset + implementation


def _size(value: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(
            f"RMSNorm: normalized_shape must be an int or ints, got {type(value).__name__}"
        )
    return operator.index(value)


@torch.fx.wrap  # one node of torch.fx.symbolic_trace, as modules of torch.nn are
def _normalise(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    shape: tuple[int, ...],
    eps: float | None,
    offset: float,
    implementation: Implementation | None,
) -> torch.Tensor:
    if not isinstance(x, torch.Tensor):
        if has_torch_function_unary(x):  # which knows PyTorch's function, if any
            weight = weight + offset if offset and weight is not None else weight
            return F.rms_norm(x, shape, weight, eps)
        raise not_a_tensor("RMSNorm", "x", x)
    try:
        if x.shape[-len(shape) :] != shape or not shape:
            raise ValueError(
                f"RMSNorm: x must end with the module's shape {list(shape)}, got {list(x.shape)}"
                if shape
                else "RMSNorm: normalized_shape must have one dimension or more, got ()"
            )
        rows = x if len(shape) == 1 else x.flatten(-len(shape))
        weight_row = weight if len(shape) == 1 or weight is None else weight.flatten()
        y = rms_norm(rows, weight_row, eps=eps, weight_offset=offset, implementation=implementation)
    except (TypeError, ValueError):
        if offset or implementation == "ptx":
            raise
        # Complex numbers, a negative eps, and what the original refuses, in whose words callers expect it.
        return F.rms_norm(x, shape, weight, eps)
    return y if rows is x else y.reshape(x.shape)
