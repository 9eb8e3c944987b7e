"""A small decoder of bytes in Flax, in the style of Llama or of Gemma."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

if __name__ == "__main__":
    raise SystemExit("this file holds the model; train_transformer.py beside it trains it")

import jax
import jax.numpy as jnp
from flax import nnx

from jax_ptx.flax.nnx import RMSNorm

N_BYTES = 256


@dataclass(frozen=True)
class Config:
    """What a model is made of.

    Attributes:
        style: "llama": a norm before each half of a block. "gemma": one after it too, the weight as
            1 + weight, and embeddings scaled by sqrt(width).
        norm: how RMS norm is computed: "ptx" (the kernel) or "xla" (the plain formula).
        dtype: the name of the activations'; parameters are float32.
    """

    style: Literal["llama", "gemma"] = "llama"
    norm: Literal["ptx", "xla"] = "ptx"
    width: int = 256
    layers: int = 4
    heads: int = 4
    dtype: str = "bfloat16"


def make_norm(config: Config) -> RMSNorm:
    gemma = config.style == "gemma"
    return RMSNorm(
        config.width,
        epsilon=1e-6,
        dtype=jnp.dtype(config.dtype),
        scale_init=nnx.initializers.zeros if gemma else nnx.initializers.ones,
        weight_offset=1.0 if gemma else 0.0,
        implementation=config.norm,
        rngs=nnx.Rngs(0),
    )


def make_linear(n_in: int, n_out: int, config: Config, rngs: nnx.Rngs) -> nnx.Linear:
    init = nnx.initializers.normal(0.02)
    return nnx.Linear(
        n_in, n_out, use_bias=False, dtype=jnp.dtype(config.dtype), kernel_init=init, rngs=rngs
    )


def rotate(x: jax.Array) -> jax.Array:
    """Rotary position embedding of `[batch, position, head, feature]`."""
    position, half = x.shape[1], x.shape[-1] // 2
    frequency = 10000.0 ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angle = jnp.arange(position, dtype=jnp.float32)[:, None] * frequency[None, :]
    cos, sin = jnp.cos(angle)[None, :, None, :], jnp.sin(angle)[None, :, None, :]
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


class Attention(nnx.Module):
    """Causal self-attention."""

    def __init__(self, config: Config, rngs: nnx.Rngs) -> None:
        self.heads = config.heads
        self.qkv = make_linear(config.width, 3 * config.width, config, rngs)
        self.out = make_linear(config.width, config.width, config, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        q, k, v = (
            part.reshape(*x.shape[:2], self.heads, -1)
            for part in jnp.split(self.qkv(x), 3, axis=-1)
        )
        y = jax.nn.dot_product_attention(rotate(q), rotate(k), v, is_causal=True)
        return self.out(y.reshape(x.shape))


class FeedForward(nnx.Module):
    """The gated half of a block: SwiGLU for Llama, GeGLU for Gemma."""

    def __init__(self, config: Config, rngs: nnx.Rngs) -> None:
        self.activation = jax.nn.gelu if config.style == "gemma" else jax.nn.silu
        hidden = 3 * config.width
        self.gate_up = make_linear(config.width, 2 * hidden, config, rngs)
        self.down = make_linear(hidden, config.width, config, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        gate, up = jnp.split(self.gate_up(x), 2, axis=-1)
        return self.down(self.activation(gate) * up)


class Block(nnx.Module):
    """A residual half: `x + f(norm(x))`, in Gemma's stack `x + norm(f(norm(x)))`."""

    def __init__(self, inner: nnx.Module, config: Config) -> None:
        self.before = make_norm(config)
        self.inner = inner
        self.after = make_norm(config) if config.style == "gemma" else None

    def __call__(self, x: jax.Array) -> jax.Array:
        y = self.inner(self.before(x))
        return x + (y if self.after is None else self.after(y))


class Transformer(nnx.Module):
    """`[batch, position]` of bytes to `[batch, position, 256]` of logits, in float32."""

    def __init__(self, config: Config, rngs: nnx.Rngs) -> None:
        self.config = config
        self.embed = nnx.Embed(
            N_BYTES,
            config.width,
            dtype=jnp.dtype(config.dtype),
            embedding_init=nnx.initializers.normal(0.02),
            rngs=rngs,
        )
        self.blocks = nnx.List(
            [
                Block(kind(config, rngs), config)
                for _ in range(config.layers)
                for kind in (Attention, FeedForward)
            ]
        )
        self.norm = make_norm(config)

    def __call__(self, text: jax.Array) -> jax.Array:
        x = self.embed(text)
        if self.config.style == "gemma":
            x = x * jnp.asarray(self.config.width**0.5, x.dtype)
        for block in self.blocks:
            x = block(x)
        return self.embed.attend(self.norm(x)).astype(jnp.float32)
