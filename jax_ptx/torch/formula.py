"""RMS norm in PyTorch's own operations: on CPUs, under transformations, and for second derivatives."""

from __future__ import annotations

import torch

from jax_ptx.ops.rms_norm.options import Options


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype that statistics and products are computed in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def forward(
    x: torch.Tensor, weight: torch.Tensor | None, options: Options
) -> tuple[torch.Tensor, torch.Tensor]:
    """`y = x * rstd * weight`, rounded once to x's dtype, and `rstd = rsqrt(mean(x**2, -1) + eps)`."""
    y, rstd = normalize(x, weight, options)
    return y, rstd.squeeze(-1)


def normalize(
    x: torch.Tensor, weight: torch.Tensor | None, options: Options
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same with rstd as a column, which jagged tensors need not be contiguous for."""
    wide = x.to(wide_dtype(x.dtype))
    rstd = _rstd(wide, options.eps)
    y = wide * rstd
    if weight is not None:
        if options.round_before_weight:
            y = y.to(x.dtype).to(wide.dtype)
        y = y * _wide_weight(weight, wide, options)
    return y.to(x.dtype).contiguous(), rstd


def backward(
    x: torch.Tensor,
    dy: torch.Tensor,
    weight: torch.Tensor | None,
    addend: torch.Tensor | None,
    options: Options,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """dx plus the addend, rounded once, and dw; all of it differentiable, rstd too."""
    wide = x.to(wide_dtype(x.dtype))
    rstd = _rstd(wide, options.eps)
    normal, dn = wide * rstd, dy.to(wide.dtype)
    dw = None
    if weight is not None:
        rows = tuple(range(x.dim() - 1))
        dw = dn * normal
        dw = (dw.sum(rows) if rows else dw).to(weight.dtype)
        dn = dn * _wide_weight(weight, wide, options)
    dx = rstd * (dn - normal * (dn * normal).mean(-1, keepdim=True))
    if addend is not None:
        dx = dx + addend.to(wide.dtype)
    return dx.to(x.dtype).contiguous(), dw


def _rstd(wide: torch.Tensor, eps: float) -> torch.Tensor:
    if wide.shape[-1] == 0:  # of which there is no mean
        return wide.new_full((*wide.shape[:-1], 1), eps).rsqrt()
    return torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)


def _wide_weight(weight: torch.Tensor, wide: torch.Tensor, options: Options) -> torch.Tensor:
    weight = weight.to(wide.dtype)
    return weight + options.weight_offset if options.weight_offset else weight
