"""What the norm is worth in a model: a transformer block of Llama 8B's size, forward and backward.

    python benchmarks/block.py [--json file]

bfloat16, 8 x 2,048 tokens, d = 4,096, 32 heads of 128 over 8 key and value heads, SwiGLU of 14,336, causal
attention; plain JAX under one jit. The block takes what the last one left to be added and the residual
stream, so that both norms follow a sum. It runs with three norms: XLA's, `rms_norm`, and `add_rms_norm`.

Prints device time by CUPTI: in all, of matrix products and attention, of all other kernels, and of ours by
their names. The norm changes only the other kernels: XLA fuses its own into or beside them. The products'
times follow the GPU's clock, which its power limit sets, so that the difference in all is known less well.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from absl import app, flags
from harness.cupti import kernels_of
from harness.jax_side import formula
from harness.report import table
from harness.side import summary, wall_us

import jax_ptx

RUNS = flags.DEFINE_integer("runs", 12, "timed calls of each", lower_bound=2)
JSON = flags.DEFINE_string("json", None, "a file for all results, kernel by kernel")
ATTENTION = flags.DEFINE_enum(
    "attention", "cudnn", ["cudnn", "xla"], "jax.nn.dot_product_attention's implementation"
)
REHEARSE = flags.DEFINE_bool(
    "rehearse", False, "small shapes and wall time on a CPU: shows that all runs, and no time"
)
OURS = ("rms_norm", "column_sum")  # in the names of our kernels
PRODUCTS = ("nvjet", "gemm", "cutlass", "xmma", "cudnn", "fmha")  # of matrix products and attention
Params = dict[str, jax.Array]
AddNorm = Callable[..., tuple[jax.Array, jax.Array]]


class Sizes:
    """Llama 8B's, or a rehearsal's."""

    def __init__(self, small: bool) -> None:
        self.batch, self.tokens = (2, 16) if small else (8, 2048)
        self.model, self.hidden = (64, 96) if small else (4096, 14336)
        self.heads, self.kv_heads, self.head = (4, 2, 16) if small else (32, 8, 128)

    def params(self, key: jax.Array) -> Params:
        d, q, kv = self.model, self.heads * self.head, self.kv_heads * self.head
        shapes = {
            "query": (d, q),
            "key_value": (d, 2 * kv),
            "output": (q, d),
            "gate_up": (d, 2 * self.hidden),
            "down": (self.hidden, d),
        }
        keys = jax.random.split(key, len(shapes))
        draw = lambda k, shape: jax.random.normal(k, shape, jnp.bfloat16) / shape[0] ** 0.5
        drawn = {
            name: draw(k, shape) for k, (name, shape) in zip(keys, shapes.items(), strict=True)
        }
        return {**drawn, "norm_1": jnp.ones(d, jnp.bfloat16), "norm_2": jnp.ones(d, jnp.bfloat16)}


def added(norm: Callable[..., jax.Array]) -> AddNorm:
    """A norm behind a sum that XLA makes."""

    def add_norm(x: jax.Array, residual: jax.Array, weight: jax.Array) -> Any:
        total = x + residual
        return norm(total, weight), total

    return add_norm


NORMS: dict[str, AddNorm] = {
    "xla": added(formula),
    "rms_norm": added(jax_ptx.rms_norm),
    "add_rms_norm": jax_ptx.add_rms_norm,
}


def rotated(x: jax.Array) -> jax.Array:
    """Rotary positions: `[batch, tokens, heads, head]`."""
    half = x.shape[-1] // 2
    angle = jnp.arange(x.shape[1])[:, None] * 500000.0 ** (-jnp.arange(half) / half)
    cos, sin = (f(angle)[:, None, :].astype(jnp.float32) for f in (jnp.cos, jnp.sin))
    left, right = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    parts = (left * cos - right * sin, right * cos + left * sin)
    return jnp.concatenate(parts, axis=-1).astype(x.dtype)


def block(
    add_norm: AddNorm, attention: Any, sizes: Sizes, params: Params, x: Any, residual: Any
) -> tuple[jax.Array, jax.Array]:
    """One block: what is still to be added, and the residual stream."""
    split = lambda v: v.reshape(*v.shape[:2], -1, sizes.head)
    normal, residual = add_norm(x, residual, params["norm_1"])
    query = split(normal @ params["query"])
    key, value = map(split, jnp.split(normal @ params["key_value"], 2, axis=-1))
    attended = jax.nn.dot_product_attention(
        rotated(query), rotated(key), value, is_causal=True, implementation=attention
    )
    x = attended.reshape(*attended.shape[:2], -1) @ params["output"]
    normal, residual = add_norm(x, residual, params["norm_2"])
    gate, up = jnp.split(normal @ params["gate_up"], 2, axis=-1)
    return (jax.nn.silu(gate) * up) @ params["down"], residual


def trained(forward: Callable[..., Any], params: Params, x: Any, residual: Any, cotangents: Any):
    """The block's result, and all of its gradients."""
    result, pull = jax.vjp(forward, params, x, residual)
    return result, pull(cotangents)


def compiled(name: str, sizes: Sizes) -> functools.partial[Any]:
    """The step with that norm, on operands that are the same for all."""
    attention = "xla" if REHEARSE.value else ATTENTION.value
    forward = functools.partial(block, NORMS[name], attention, sizes)
    operands = drawn(sizes)
    call = jax.jit(functools.partial(trained, forward)).lower(*operands).compile()
    jax.block_until_ready(call(*operands))
    return functools.partial(call, *operands)


@functools.cache
def drawn(sizes: Sizes) -> tuple[Any, ...]:
    keys = jax.random.split(jax.random.key(0), 5)
    shape = (sizes.batch, sizes.tokens, sizes.model)
    x, residual, *cotangents = (jax.random.normal(k, shape, jnp.bfloat16) for k in keys[1:])
    return sizes.params(keys[0]), x, residual, tuple(cotangents)


def measured(sizes: Sizes) -> dict[str, dict[str, Any]]:
    """Each norm's times; the norms take turns, since a GPU at its power limit slows down over a run."""
    calls = {name: compiled(name, sizes) for name in NORMS}
    runs: dict[str, Any] = {name: [] for name in NORMS}
    for _ in range(2 if REHEARSE.value else RUNS.value):
        for name, call in calls.items():
            if REHEARSE.value:
                runs[name].append([("wall", wall_us(lambda c=call: jax.block_until_ready(c())))])
            else:  # by name: kernels of two streams may change places from run to run
                runs[name].append(sorted(kernels_of(call.func, call.args)))
    return {name: summary(found) for name, found in runs.items()}


def us_of(result: dict[str, Any], names: Sequence[str]) -> float:
    return sum(us for kernel, us in result["kernels"] if any(name in kernel for name in names))


def share(before: float, now: float) -> str:
    return f"{before - now:.0f} ({(before - now) / before:.1%})"


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unexpected argument {argv[1]!r}")
    sizes = Sizes(REHEARSE.value)
    found = measured(sizes)
    if JSON.value:
        Path(JSON.value).write_text(json.dumps(found, indent=1))
    print(
        f"{jax.devices()[0].device_kind}, jax {jax.__version__}: one block, forward and backward, us"
    )
    rows = [["norm", "in all", "saved", "products", "others", "saved", "ours", "launches"]]
    others = {name: result["us"] - us_of(result, PRODUCTS) for name, result in found.items()}
    for name, result in found.items():
        cells = [f"{result['us']:.0f}", share(found["xla"]["us"], result["us"])]
        cells += [f"{us_of(result, PRODUCTS):.0f}", f"{others[name]:.0f}"]
        cells += [share(others["xla"], others[name]), f"{us_of(result, OURS):.0f}"]
        rows.append([name, *cells, str(len(result["kernels"]))])
    print(table(rows))


if __name__ == "__main__":
    app.run(main)
