"""`flax.nnx` layers that run the kernels."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn import dtypes
from flax.typing import Axes, Dtype, Initializer, PromoteDtypeFn

from jax_ptx.flax.axes import canonical_axes
from jax_ptx.layers import normalize, settings
from jax_ptx.ops.rms_norm.api import Implementation


class RMSNorm(nnx.RMSNorm):
    """`flax.nnx.RMSNorm` with the kernel of `jax_ptx.rms_norm`.

    Arguments, state, dtypes and masks are those of the original, of which it is a subclass: a state of
    one works in the other. The kernel runs wherever the layer normalises over the last axes, with no mask
    and no `axis_name`, and its result has the input's dtype (`dtype=jnp.bfloat16` on bfloat16 inputs; the
    parameters and their gradients keep `param_dtype`). The rest is computed the plain way, unless "ptx" asks
    for the kernel on an input that is converted first.

    Args:
        num_features: elements of the scale.
        epsilon: added to the mean of squares.
        dtype: of the result; None: the promoted dtype of input and scale.
        param_dtype: of the scale.
        use_scale: whether there is a scale.
        scale_init: initialises it.
        reduction_axes: the axes that the mean is over.
        feature_axes: the axes that the scale has.
        axis_name: mapped axes that the mean is over as well.
        axis_index_groups: groups of their indices, as `jax.lax.pmean` takes them.
        use_fast_variance: for interchange with other layers; the mean is not subtracted.
        promote_dtype: promotes `(inputs, scale)` to `dtype`.
        rngs: initialises the scale.
        scale_metadata: of the scale's variable.
        weight_offset: added to the scale in float32; 1.0 is the zero-centred (Gemma) form, which wants
            `scale_init=nnx.initializers.zeros`.
        implementation: "ptx", "xla" or None, as `jax_ptx.rms_norm` takes it; "ptx" is an error where the
            kernel cannot run.
    """

    # For modules of Flax's own that are given this class.
    weight_offset = 0.0
    implementation = None

    def __init__(
        self,
        num_features: int,
        *,
        epsilon: float = 1e-6,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        use_scale: bool = True,
        scale_init: Initializer = nnx.initializers.ones,
        reduction_axes: Axes = -1,
        feature_axes: Axes = -1,
        axis_name: str | None = None,
        axis_index_groups: Any = None,
        use_fast_variance: bool = True,
        promote_dtype: PromoteDtypeFn = dtypes.promote_dtype,
        rngs: nnx.Rngs,
        scale_metadata: Mapping[str, Any] = MappingProxyType({}),
        weight_offset: float = 0.0,
        implementation: Implementation | None = None,
    ) -> None:
        super().__init__(
            num_features,
            epsilon=epsilon,
            dtype=dtype,
            param_dtype=param_dtype,
            use_scale=use_scale,
            scale_init=scale_init,
            reduction_axes=reduction_axes,
            feature_axes=feature_axes,
            axis_name=axis_name,
            axis_index_groups=axis_index_groups,
            use_fast_variance=use_fast_variance,
            promote_dtype=promote_dtype,
            rngs=rngs,
            scale_metadata=scale_metadata,
        )
        self.weight_offset = settings(weight_offset, implementation, use_scale)
        self.implementation: Implementation | None = implementation

    def __call__(self, x: Any, mask: jax.Array | None = None) -> jax.Array:
        """The normalised input, of its shape; `mask` says which elements the mean is over."""
        scale = None if self.scale is None else self.scale[...]
        given = jnp.asarray(x).dtype
        x, scale = self.promote_dtype((x, scale), dtype=self.dtype)
        x = jnp.asarray(x)
        with jax.numpy_dtype_promotion("standard"):
            result = dtypes.canonicalize_dtype(x, scale, dtype=self.dtype)
        result = jax.dtypes.canonicalize_dtype(result)  # float64 without x64
        statistic = x.dtype if self.dtype is None else result
        return normalize(
            x,
            scale,
            reduced=canonical_axes(x.ndim, self.reduction_axes, "reduction_axes"),
            features=canonical_axes(x.ndim, self.feature_axes, "feature_axes"),
            eps=self.epsilon,
            statistic=jnp.promote_types(statistic, jnp.float32),
            result=result,
            mask=mask,
            converted=given != x.dtype,
            axis_name=self.axis_name,
            axis_index_groups=self.axis_index_groups,
            weight_offset=self.weight_offset,
            implementation=self.implementation,
        )
