"""`flax.nnx` layers that run the kernels."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn import dtypes

from jax_ptx.flax.axes import canonical_axes
from jax_ptx.layers import normalize
from jax_ptx.ops.rms_norm.api import Implementation


class RMSNorm(nnx.RMSNorm):
    """`flax.nnx.RMSNorm` with the kernel of `jax_ptx.rms_norm`.

    Arguments, state, dtypes and masks are those of the original, of which it is a subclass: a state of
    one works in the other. The kernel runs where the layer normalises over the last axes and its result
    has the promoted input's dtype (with `dtype=jnp.bfloat16`, say; the parameters and their gradients
    keep `param_dtype`). The rest is computed the plain way.

    Args:
        num_features: elements of the scale.
        weight_offset: added to the scale in float32; 1.0 is the zero-centred (Gemma) form, which wants
            `scale_init=nnx.initializers.zeros`.
        implementation: "ptx", "xla" or None, as `jax_ptx.rms_norm` takes it.
        **options: every other argument of the original: `rngs`, `epsilon`, `dtype`, …
    """

    def __init__(
        self,
        num_features: int,
        *,
        weight_offset: float = 0.0,
        implementation: Implementation | None = None,
        **options: Any,
    ) -> None:
        super().__init__(num_features, **options)
        self.weight_offset = weight_offset
        self.implementation: Implementation | None = implementation

    def __call__(self, x: Any, mask: jax.Array | None = None) -> jax.Array:
        """The normalised input, of its shape; `mask` says which elements the mean is over."""
        scale = None if self.scale is None else self.scale[...]
        x, scale = self.promote_dtype((x, scale), dtype=self.dtype)
        x = jnp.asarray(x)
        with jax.numpy_dtype_promotion("standard"):
            statistic = x.dtype if self.dtype is None else self.dtype
            result = jnp.dtype(dtypes.canonicalize_dtype(x, scale, dtype=self.dtype))
        return normalize(
            x,
            scale,
            reduced=canonical_axes(x.ndim, self.reduction_axes),
            features=canonical_axes(x.ndim, self.feature_axes),
            eps=self.epsilon,
            statistic=jnp.promote_types(statistic, jnp.float32),
            result=result,
            mask=mask,
            axis_name=self.axis_name,
            axis_index_groups=self.axis_index_groups,
            weight_offset=self.weight_offset,
            implementation=self.implementation,
        )
