"""The implementations in JAX: ours, the plain formula under XLA, tokamax and pyptx."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import itertools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

import jax_ptx

from .cases import Case
from .cupti import jax_kernels
from .host import host_us
from .side import EPS, N_SETS, Kernels, Side, wall_us


def formula(x: jax.Array, weight: jax.Array) -> jax.Array:
    """RMS norm as users write it."""
    wide = x.astype(jnp.float32)
    rstd = jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + EPS)
    return (wide * rstd * weight).astype(x.dtype)


class JaxSide(Side):
    """See `Side`."""

    def __init__(self, rehearse: bool) -> None:
        super().__init__(rehearse)
        if not rehearse and jax.default_backend() != "gpu":
            raise RuntimeError(f"jax finds no GPU: its backend is {jax.default_backend()}")
        self.peers = {"ours": jax_ptx.__version__, "xla": jax.__version__}
        for name in ("tokamax", "pyptx"):
            try:
                importlib.import_module(name)
                self.peers[name] = importlib.metadata.version(name)
            except Exception as error:  # whatever stops a peer's import, the others go on
                self.missing[name] = f"{type(error).__name__}: {error}"

    def device(self) -> str:
        return f"{jax.devices()[0].device_kind}, jax {jax.__version__}"

    def inputs(self, case: Case) -> list[Any]:
        size = case.rows * case.n
        flat = _pool(2 << math.ceil(math.log2(size)), case.dtype)
        per_set = 4 if case.op == "add_rms_norm" else 2
        starts = [i * max(1, size // (per_set * N_SETS)) for i in range(per_set * N_SETS)]
        tensors = [_window(flat, start, case.rows, case.n) for start in starts]
        sets = [tensors[i::N_SETS] for i in range(N_SETS)]
        weight = flat[-case.n :]
        if case.op == "add_rms_norm":
            return [(x, r, weight, dy, dsum) for x, r, dy, dsum in sets]
        return [(x, weight, dy) for x, dy in sets]

    def function(
        self, case: Case, peer: str, which: str, operands: Any
    ) -> tuple[Callable[..., Any], dict[str, Any]]:
        compiled = jax.jit(_pass(_norm(case, peer), case, which)).lower(*operands).compile()
        memory = compiled.memory_analysis()
        return compiled, {"scratch_bytes": memory.temp_size_in_bytes if memory else None}

    def errors(self, case: Case, results: Any, operands: Any) -> list[float]:
        with jax.enable_x64(True):
            return [float(e) for e in _errors(case.op == "add_rms_norm", results, operands)]

    def kernels(self, call: Callable[..., Any], sets: Sequence[Any], runs: int) -> Kernels:
        if not self.rehearse:
            return jax_kernels(call, sets, runs)
        walls = [
            wall_us(lambda i=i: jax.block_until_ready(call(*sets[i % len(sets)])))
            for i in range(runs)
        ]
        return [[("wall", us)] for us in walls]

    def first_ms(self, case: Case, peer: str, which: str, operands: Any) -> dict[str, float]:
        marks = [time.perf_counter()]
        mark = lambda: marks.append(time.perf_counter())
        traced = jax.jit(_pass(_norm(case, peer), case, which)).trace(*operands)
        mark()
        lowered = traced.lower()
        mark()
        compiled = lowered.compile()
        mark()
        jax.block_until_ready(compiled(*operands))
        mark()
        steps = [(b - a) * 1e3 for a, b in itertools.pairwise(marks)]
        names = ("trace", "lower", "compile", "run")
        return {"total": sum(steps), **dict(zip(names, steps, strict=True))}

    def host(self) -> dict[str, float]:
        """See `host_us`."""
        return host_us(3, 2) if self.rehearse else host_us()

    def synchronize(self) -> None:
        jax.block_until_ready(jnp.zeros(8) + 1)


def _norm(case: Case, peer: str) -> Callable[..., Any]:
    """(x, weight) -> y, or (x, residual, weight) -> (y, sum)."""
    if peer == "ours":
        return jax_ptx.rms_norm if case.op == "rms_norm" else jax_ptx.add_rms_norm
    if peer == "pyptx":
        norm = _pyptx(case)
    elif peer == "tokamax":
        tokamax = importlib.import_module("tokamax")
        norm = lambda x, w: tokamax.layer_norm(x, w, None, epsilon=EPS, subtract_mean=False)
    else:
        norm = formula
    if case.op == "rms_norm":
        return norm

    def added(x: jax.Array, residual: jax.Array, weight: jax.Array) -> tuple[jax.Array, jax.Array]:
        total = x + residual
        return norm(total, weight), total

    return added


def _pyptx(case: Case) -> Callable[..., Any]:
    """Its example: float32, forward, for one shape."""
    if case.op != "rms_norm" or case.dtype != "float32":
        raise NotImplementedError("its RMS norm is float32 only")
    return importlib.import_module("pyptx.examples.hopper.rms_norm").build_rms_norm(
        case.rows, case.n, eps=EPS
    )


def _pass(norm: Callable[..., Any], case: Case, which: str) -> Callable[..., Any]:
    """One set of operands -> (y, [sum], [dx, dw])."""
    n_forward = 3 if case.op == "add_rms_norm" else 2

    def run(*operands: jax.Array) -> tuple[Any, ...]:
        primals, cotangents = operands[:n_forward], operands[n_forward:]
        if which == "forward":
            y = norm(*primals)
            return y if isinstance(y, tuple) else (y,)
        y, pull = jax.vjp(norm, *primals)
        # The residual's gradient is x's: returning both would make XLA copy it.
        dx, *_, dw = pull(cotangents if isinstance(y, tuple) else cotangents[0])
        return (*(y if isinstance(y, tuple) else (y,)), dx, dw)

    return run


@functools.lru_cache(maxsize=2)
def _pool(size: int, dtype: str) -> jax.Array:
    """Numbers for all operands, which are windows of it: drawing them anew compiles anew."""
    return jax.random.normal(jax.random.key(0), (size,), jnp.dtype(dtype))


@functools.partial(jax.jit, static_argnums=(2, 3))
def _window(flat: jax.Array, start: int, rows: int, n: int) -> jax.Array:
    return jax.lax.dynamic_slice(flat, (start,), (rows * n,)).reshape(rows, n)


@functools.partial(jax.jit, static_argnums=0)
def _errors(added: bool, results: Any, operands: Any) -> list[jax.Array]:
    """Of y, [sum], dx: the largest error relative to the value, or to 1 where that is smaller.

    Of dw: relative to the root of the sum of squares of what is summed.
    """
    x, *residual, weight, dy = (
        v.astype(jnp.float64) for v in (operands[:4] if added else operands)
    )
    dsum = operands[4].astype(jnp.float64) if added else 0.0
    exact = []
    if added:
        exact = [x + residual[0]]
        # The op's result is the norm of the rounded sum.
        x = exact[0].astype(operands[0].dtype).astype(jnp.float64)
    rstd = jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + EPS)
    normal, dn = x * rstd, dy * weight
    dx = rstd * (dn - normal * jnp.mean(dn * normal, -1, keepdims=True)) + dsum
    exact = [normal * weight, *exact, dx]
    errors = [
        jnp.max(jnp.abs(got.astype(jnp.float64) - value) / jnp.maximum(jnp.abs(value), 1))
        for got, value in zip(results, exact, strict=False)
    ]
    if len(results) > len(exact):
        products = dy * normal
        scale = jnp.sqrt(jnp.sum(products**2, 0))
        errors.append(jnp.max(jnp.abs(results[-1].astype(jnp.float64) - products.sum(0)) / scale))
    return errors
