"""`equinox.nn` layers that run the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import jax
import jax.numpy as jnp

from jax_ptx.frameworks import missing
from jax_ptx.layers import normalize, settings
from jax_ptx.ops.rms_norm.api import Implementation

try:
    import equinox as eqx
except ModuleNotFoundError as error:
    raise missing("equinox", error) from None

_NO_STATE: Any = object()


class RMSNorm(eqx.nn.RMSNorm):
    """`equinox.nn.RMSNorm` with the kernel of `jax_ptx.rms_norm`.

    Arguments, fields and dtypes are those of the original, of which it is a subclass, with the same
    leaves: a file of one loads into the other. Under `jax.vmap` all rows take one launch. The kernel runs
    with `use_bias=False`, as models have it, on floating-point inputs; the rest is computed the plain way,
    unless "ptx" asks for the kernel, after which XLA adds the bias.
    """

    weight_offset: float = eqx.field(static=True)
    implementation: Implementation | None = eqx.field(static=True)

    def __init__(
        self,
        shape: int | Sequence[int],
        eps: float = 1e-5,
        use_weight: bool = True,
        use_bias: bool = True,
        dtype: Any = None,
        *,
        weight_offset: float = 0.0,
        implementation: Implementation | None = None,
    ) -> None:
        """Like the original's.

        Args:
            shape: the input's shape; the mean is over all of it.
            eps: added to the mean of squares.
            use_weight: whether there is a weight, at first 1 - weight_offset.
            use_bias: whether there is a bias, at first 0.
            dtype: of weight and bias; None: JAX's default.
            weight_offset: added to the weight in float32; 1.0 is the zero-centred (Gemma) form.
            implementation: "ptx", "xla" or None, as `jax_ptx.rms_norm` takes it; "ptx" is an error where
                the kernel cannot run.
        """
        super().__init__(shape, eps, use_weight, use_bias, dtype)
        self.weight_offset = settings(weight_offset, implementation, use_weight)
        if self.weight is not None:
            self.weight = self.weight - jnp.asarray(self.weight_offset, self.weight.dtype)
        self.implementation = implementation

    @overload
    def __call__(self, x: jax.Array, *, key: Any = None) -> jax.Array: ...

    @overload
    def __call__(
        self, x: jax.Array, state: eqx.nn.State, *, key: Any = None
    ) -> tuple[jax.Array, eqx.nn.State]: ...

    @jax.named_scope("eqx.nn.RMSNorm")
    def __call__(
        self, x: jax.Array, state: eqx.nn.State = _NO_STATE, *, key: Any = None
    ) -> jax.Array | tuple[jax.Array, eqx.nn.State]:
        """The normalised input; with a `state`, which passes through, a pair of both.

        Args:
            x: of the layer's shape.
            state: for interchange with layers that have one.
            key: ignored.
        """
        if x.shape != self.shape:
            raise ValueError(
                f"RMSNorm: x must have the layer's shape {self.shape}, got {x.shape}; jax.vmap(layer) "
                "maps over leading axes"
            )
        axes = tuple(range(x.ndim))
        with jax.numpy_dtype_promotion(
            "standard"
        ):  # the original's, also where the caller's is strict
            statistic = jnp.promote_types(x.dtype, jnp.float32)
        y = normalize(
            jnp.asarray(x),
            self.weight if self.use_weight else None,
            bias=self.bias if self.use_bias else None,
            reduced=axes,
            features=axes,
            eps=self.eps,
            statistic=statistic,
            result=x.dtype,
            square=jax.lax.square,
            weight_offset=self.weight_offset,
            implementation=self.implementation,
        )
        return y if state is _NO_STATE else (y, state)
