"""RMS norm in numpy float64: the only oracle. XLA on a CPU flushes subnormals and sums in float32."""

from __future__ import annotations

import numpy as np


def rms_norm(x, weight=None, *, eps: float, weight_offset: float = 0.0) -> np.ndarray:
    """The exact result for x `[..., n]` and weight `[n]` (or broadcastable), unrounded, as float64."""
    wide = np.asarray(x).astype(np.float64)
    y = wide / np.sqrt(np.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return y if weight is None else y * (np.asarray(weight).astype(np.float64) + weight_offset)


def rms_norm_grad(
    x, weight, dy, *, eps: float, weight_offset: float = 0.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """dx, dw for each row (not yet summed), and the size that errors of dx are relative to."""
    wide, dy = (np.asarray(v).astype(np.float64) for v in (x, dy))
    rstd = 1 / np.sqrt(np.mean(wide * wide, axis=-1, keepdims=True) + eps)
    normal = wide * rstd
    dn = dy
    if weight is not None:
        dn = dy * (np.asarray(weight).astype(np.float64) + weight_offset)
    mean = np.mean(dn * normal, axis=-1, keepdims=True)
    size = rstd * (np.abs(dn) + np.abs(normal) * np.mean(np.abs(dn * normal), -1, keepdims=True))
    return rstd * (dn - normal * mean), dy * normal, size
