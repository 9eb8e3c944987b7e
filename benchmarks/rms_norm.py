"""Kernel time of rms_norm's forward pass against a copy of the same bytes, on one NVIDIA GPU.

    python benchmarks/rms_norm.py [--runs 12]

The floor of a forward pass is a device-to-device copy: it, too, reads and writes the tensor once. Times are
the kernels' own, by CUPTI, over input sets that together exceed the L2 cache; the median of the runs.
Each case is compared with float64 before it is timed.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from jax.experimental.mosaic.gpu import profiler

import jax_ptx

RUNS = flags.DEFINE_integer("runs", 12, "timed runs of each case", lower_bound=3)

CASES = ((2048, 8192, "float32"), (32768, 4096, "bfloat16"))
L2_BYTES = 60e6


def kernel_us(f: Callable, arguments: list[tuple]) -> float:
    """Median kernel time of `f` in microseconds, over rotating arguments."""
    compiled = jax.jit(f)
    for args in arguments:
        jax.block_until_ready(compiled(*args))
    measure = profiler.Cupti(finalize=False).measure(compiled, aggregate=True)
    times = [measure(*arguments[i % len(arguments)])[1] for i in range(RUNS.value)]
    return float(np.median(times)) * 1e3


def copy_us(x: jax.Array) -> float:
    """Time of cuMemcpyDtoD on x's bytes: XLA's own elementwise kernels are slower and no ceiling."""
    import torch  # torch's copy_ is a cuMemcpyAsync; JAX offers no plain copy

    source = [torch.empty(x.nbytes, dtype=torch.uint8, device="cuda").random_() for _ in range(3)]
    target = [torch.empty_like(s) for s in source]
    for s, t in zip(source, target, strict=True):
        t.copy_(s)
    torch.cuda.synchronize()
    times = []
    for i in range(RUNS.value):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        # The first copy hides the launch: only the second is timed.
        target[(i + 1) % 3].copy_(source[(i + 1) % 3])
        start.record()
        target[i % 3].copy_(source[i % 3])
        stop.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(stop) * 1e3)
    return float(np.median(times))


def check(f: Callable, x: jax.Array, w: jax.Array) -> float:
    """The largest error over the first and the last rows, relative to float64."""
    got = np.concatenate([np.asarray(v, np.float64) for v in (f(x, w)[:64], f(x, w)[-64:])])
    exact = np.concatenate([np.asarray(v, np.float64) for v in (x[:64], x[-64:])])
    exact /= np.sqrt(np.mean(exact**2, -1, keepdims=True) + 1e-6)
    exact *= np.asarray(w, np.float64)
    return float(np.max(np.abs(got - exact) / np.maximum(np.abs(exact), 1e-6)))


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unexpected argument {argv[1]!r}")
    try:
        device = jax.devices("gpu")[0]
    except RuntimeError as error:
        sys.exit(f"this benchmark times an NVIDIA GPU: {error}")
    print(f"{device.device_kind}, jax {jax.__version__}, jax_ptx {jax_ptx.__version__}")
    print(
        f"{'rows x n':>14} {'dtype':>9} {'copy us':>8} {'ptx us':>8} {'xla us':>8} {'ptx/copy':>8}  error"
    )
    for rows, n, dtype in CASES:
        keys = jax.random.split(jax.random.key(0), 4)
        xs = [jax.random.normal(k, (rows, n), jnp.dtype(dtype)) for k in keys[:3]]
        w = jax.random.normal(keys[3], (n,), jnp.dtype(dtype))
        norm = functools.partial(jax_ptx.rms_norm, implementation="ptx")
        plain = functools.partial(jax_ptx.rms_norm, implementation="xla")
        error = check(jax.jit(norm), xs[0], w)
        ours, xla = (kernel_us(f, [(x, w) for x in xs]) for f in (norm, plain))
        copy = copy_us(xs[0])
        print(
            f"{f'{rows} x {n}':>14} {dtype:>9} {copy:8.1f} {ours:8.1f} {xla:8.1f} {ours / copy:8.3f}"
            f"  {error:.1e}"
        )
        if not error < 4 * float(jnp.finfo(dtype).eps):
            sys.exit(f"wrong result at {rows} x {n} {dtype}: relative error {error}")


if __name__ == "__main__":
    app.run(main)
