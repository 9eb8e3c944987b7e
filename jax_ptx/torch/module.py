"""Modules in the places of PyTorch's own."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import Any

import torch

from jax_ptx.torch.functional import Implementation, rms_norm


class RMSNorm(torch.nn.RMSNorm):
    """`torch.nn.RMSNorm` with the kernel of `rms_norm`.

    Arguments, attributes and state are those of the original, of which it is a subclass: a `state_dict` of
    one loads into the other. The result has the input's dtype.

    Args:
        normalized_shape: the last dimensions of the input, over all of which the mean is.
        eps: added to the mean of squares; None: the epsilon of the dtype that the mean is computed in.
        elementwise_affine: whether there is a weight, at first 1 - weight_offset.
        device: the weight's.
        dtype: the weight's.
        weight_offset: added to the weight in float32; 1.0 is the zero-centred (Gemma) form.
        implementation: "ptx", "torch" or None, as `rms_norm` takes it.
    """

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
        if isinstance(weight_offset, bool) or not isinstance(weight_offset, numbers.Real):
            raise TypeError(
                f"RMSNorm: weight_offset must be a number, got {type(weight_offset).__name__}"
            )
        self.weight_offset = float(
            weight_offset
        )  # which `reset_parameters`, called by super, reads
        sizes: Any = normalized_shape
        sizes = [sizes] if isinstance(sizes, numbers.Integral) else sizes
        super().__init__([int(size) for size in sizes], eps, elementwise_affine, device, dtype)
        self.implementation: Implementation | None = implementation

    def reset_parameters(self) -> None:
        """Gives the weight its first value."""
        if self.elementwise_affine:
            torch.nn.init.constant_(self.weight, 1 - self.weight_offset)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The normalised input."""
        return _normalise(x, self.weight, self.normalized_shape, self._options())

    def _options(self) -> dict[str, Any]:
        return {
            "eps": self.eps,
            "weight_offset": self.weight_offset if self.weight is not None else 0.0,
            "implementation": self.implementation,
        }

    def extra_repr(self) -> str:
        """The arguments, for repr."""
        offset = f", weight_offset={self.weight_offset}" if self.weight_offset else ""
        return super().extra_repr() + offset


@torch.fx.wrap  # one node of torch.fx.symbolic_trace, as modules of torch.nn are
def _normalise(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    shape: tuple[int, ...],
    options: dict[str, Any],
) -> torch.Tensor:
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"RMSNorm: x must be a tensor, got {type(x).__name__}")
    if x.shape[-len(shape) :] != shape or not shape:
        raise ValueError(
            f"RMSNorm: x must end with the module's shape {list(shape)}, got {list(x.shape)}"
        )
    if len(shape) == 1:
        return rms_norm(x, weight, **options)
    rows = x.reshape(*x.shape[: -len(shape)], math.prod(shape))
    weight = None if weight is None else weight.reshape(-1)
    return rms_norm(rows, weight, **options).reshape(x.shape)
