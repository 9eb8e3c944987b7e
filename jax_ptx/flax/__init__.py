"""Layers for Flax, in the places of Flax's own: `jax_ptx.flax.linen` and `jax_ptx.flax.nnx`."""

from jax_ptx.frameworks import missing as _missing

try:
    from jax_ptx.flax import linen as linen
    from jax_ptx.flax import nnx as nnx
except ModuleNotFoundError as error:
    raise _missing("flax", error) from None
