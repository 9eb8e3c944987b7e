"""What a call costs the host: a jitted op's, and one more op's in the same program."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import jax_ptx

SHAPE = (128, 4096)
CALLS = 300  # between two readings of the clock; the queue of launches holds more
BATCHES = 15
CHAIN = 4  # ops in one program; from five on, XLA launches them as a CUDA graph


def host_us(calls: int = CALLS, batches: int = BATCHES) -> dict[str, float]:
    """Microseconds of a call that does not wait for its result: the median of batches.

    Returns: "ours" and "xla", a call of rms_norm and of the product `x * weight`; "ours more" and
    "xla more", what each further one in the same program adds.
    """
    x = jnp.ones(SHAPE, jnp.bfloat16)
    weight = jnp.ones(SHAPE[-1], jnp.bfloat16)
    jobs: dict[str, Callable[..., Any]] = {}
    for name, op in (("ours", jax_ptx.rms_norm), ("xla", jnp.multiply)):
        for length in (1, CHAIN):
            jobs[f"{name} {length}"] = jax.jit(_chain(op, length))
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for call in jobs.values():
        jax.block_until_ready(call(x, weight))
    for _ in range(batches):
        for name, call in jobs.items():
            start = time.perf_counter()
            results = [call(x, weight) for _ in range(calls)]
            times[name].append((time.perf_counter() - start) * 1e6 / calls)
            jax.block_until_ready(results)
    medians = {name: statistics.median(t) for name, t in times.items()}
    found = {name: medians[f"{name} 1"] for name in ("ours", "xla")}
    for name in ("ours", "xla"):
        more = (medians[f"{name} {CHAIN}"] - medians[f"{name} 1"]) / (CHAIN - 1)
        found[f"{name} more"] = more
    return found


def _chain(op: Callable[..., jax.Array], length: int) -> Callable[..., jax.Array]:
    def run(x: jax.Array, weight: jax.Array) -> jax.Array:
        for _ in range(length):
            # The barrier keeps XLA from making one kernel of several products.
            x = jax.lax.optimization_barrier(op(x, weight))
        return x

    return run
