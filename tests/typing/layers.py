"""Layers in a user's module: their calls have types, and a wrong call is an error, as with the originals."""
# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from typing import assert_type

import equinox as eqx
import jax
import jax.numpy as jnp
from flax import nnx

import jax_ptx


def linen_layer(x: jax.Array, mask: jax.Array) -> jax.Array:
    layer = jax_ptx.flax.linen.RMSNorm(epsilon=1e-5, dtype=jnp.bfloat16, weight_offset=1.0)
    jax_ptx.flax.linen.RMSNorm(epsilonn=1e-5)  # pyright: ignore[reportCallIssue]
    jax_ptx.flax.linen.RMSNorm(implementation="cuda")  # pyright: ignore[reportArgumentType]
    return assert_type(layer(x, mask=mask), jax.Array)


def nnx_layer(x: jax.Array, mask: jax.Array) -> jax.Array:
    rngs = nnx.Rngs(0)
    layer = jax_ptx.flax.nnx.RMSNorm(8, epsilon=1e-5, dtype=jnp.bfloat16, rngs=rngs)
    jax_ptx.flax.nnx.RMSNorm(8)  # pyright: ignore[reportCallIssue]
    jax_ptx.flax.nnx.RMSNorm(8, rngs=rngs, epsilonn=1)  # pyright: ignore[reportCallIssue]
    jax_ptx.flax.nnx.RMSNorm(8, rngs=rngs, epsilon="1")  # pyright: ignore[reportArgumentType]
    assert_type(layer.weight_offset, float)
    return assert_type(layer(x, mask), jax.Array)


def equinox_layer(x: jax.Array, state: eqx.nn.State) -> jax.Array:
    layer = jax_ptx.equinox.RMSNorm(8, use_bias=False, implementation="ptx")
    assert_type(layer(x, state), tuple[jax.Array, eqx.nn.State])
    jax_ptx.equinox.RMSNorm(8, epsilon=1e-5)  # pyright: ignore[reportCallIssue]
    return assert_type(layer(x), jax.Array)
