"""`flax.linen` layers that run the kernels."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen import dtypes

from jax_ptx.flax.axes import canonical_axes
from jax_ptx.layers import normalize
from jax_ptx.ops.rms_norm.api import Implementation


class RMSNorm(nn.RMSNorm):
    """`flax.linen.RMSNorm` with the kernel of `jax_ptx.rms_norm`.

    Fields, parameters, dtypes and masks are those of the original, of which it is a subclass: variables
    of one work in the other. The kernel runs where the layer normalises over the last axes, with no mask and
    no `axis_name`, computes the mean in float32 or float64, and its result has the input's dtype
    (`dtype=jnp.bfloat16` on bfloat16 inputs; the parameters and their gradients keep `param_dtype`). The
    rest is computed the plain way, unless "ptx" asks for the kernel with XLA's conversions around it.

    Attributes:
        weight_offset: added to the scale in float32; 1.0 is the zero-centred (Gemma) form, which wants
            `scale_init=flax.linen.initializers.zeros`.
        implementation: "ptx", "xla" or None, as `jax_ptx.rms_norm` takes it; "ptx" is an error where the
            kernel cannot run.
    """

    weight_offset: float = 0.0
    implementation: Implementation | None = None

    @nn.compact
    def __call__(self, x: Any, *, mask: jax.Array | None = None) -> jax.Array:
        """The normalised input, of its shape; `mask` says which elements the mean is over."""
        x = jnp.asarray(x)
        reduced = canonical_axes(x.ndim, self.reduction_axes, "reduction_axes")
        features = canonical_axes(x.ndim, self.feature_axes, "feature_axes")
        scale = None
        if self.use_scale:
            shape = [x.shape[axis] for axis in features]
            scale = self.param("scale", self.scale_init, shape, self.param_dtype)
            if not self.force_float32_reductions:
                scale = jnp.asarray(scale, self.param_dtype)
        with jax.numpy_dtype_promotion("standard"):
            result = dtypes.canonicalize_dtype(x, scale, dtype=self.dtype)
            result = jax.dtypes.canonicalize_dtype(result)  # float64 without x64
            statistic = x.dtype if self.dtype is None else result
            if self.force_float32_reductions:
                statistic = jnp.promote_types(statistic, jnp.float32)
        return normalize(
            x,
            scale,
            reduced=reduced,
            features=features,
            eps=self.epsilon,
            statistic=statistic,
            result=result,
            mask=None if mask is None else jnp.asarray(mask, bool),
            axis_name=self.axis_name,
            axis_index_groups=self.axis_index_groups,
            weight_offset=self.weight_offset,
            implementation=self.implementation,
        )
