"""RMS norm in numpy float64: the only oracle. XLA on a CPU flushes subnormals and sums in float32."""

from __future__ import annotations

import numpy as np


def rms_norm(x, weight=None, *, eps: float) -> np.ndarray:
    """The exact result for x `[..., n]` and weight `[n]` (or broadcastable), unrounded, as float64."""
    wide = np.asarray(x).astype(np.float64)
    y = wide / np.sqrt(np.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return y if weight is None else y * np.asarray(weight).astype(np.float64)
