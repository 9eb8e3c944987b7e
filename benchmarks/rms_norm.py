"""Kernel time of rms_norm, forward and forward with backward, against the floor, on one NVIDIA GPU.

    python benchmarks/rms_norm.py [--runs 12]

The floor of a forward pass is a device-to-device copy: it, too, reads and writes one tensor. Backward reads
two and writes one, as a sum of two tensors does. Times are the kernels' own, by CUPTI, over input sets that
together exceed the L2 cache; the median of the runs. The peer is the plain formula, jitted, in the same
run. Each case is compared with float64 before it is timed.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags, logging
from jax.experimental.mosaic.gpu import profiler

import jax_ptx

RUNS = flags.DEFINE_integer("runs", 12, "timed runs of each case", lower_bound=3)

# Rows, row length, dtype: bfloat16 tensors of 268 MB at every length, then float32.
CASES = (
    *((2**27 // n, n, "bfloat16") for n in (128, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)),
    (2048, 8192, "float32"),
    (32768, 4096, "float32"),
    (10007, 4096, "bfloat16"),
    (75600, 1536, "bfloat16"),
    (128, 4096, "bfloat16"),
    (1, 4096, "bfloat16"),
)
N_SETS = 3  # input sets that a measurement rotates through
REPEATS = 4  # of all sets in the graph that times the floor


def kernel_us(f: Callable, arguments: list[tuple]) -> float:
    """Median kernel time of `f` in microseconds, over rotating arguments."""
    compiled = jax.jit(f)
    for args in arguments:
        jax.block_until_ready(compiled(*args))
    measure = profiler.Cupti(finalize=False).measure(compiled, aggregate=True)
    times = [measure(*arguments[i % len(arguments)])[1] for i in range(RUNS.value)]
    return float(np.median(times)) * 1e3


def transfer_us(x: jax.Array, n_read: int) -> float:
    """The floor: a device-to-device copy of x's bytes, or a sum of two tensors into a third.

    By CUDA events around a graph of many, so that a launch costs what it costs inside a graph.
    """
    import torch  # torch's copy_ is a cuMemcpyAsync; JAX offers no plain copy

    shape, dtype = x.shape, getattr(torch, x.dtype.name)
    sets = [[torch.randn(shape, device="cuda").to(dtype) for _ in range(3)] for _ in range(N_SETS)]

    def all_sets() -> None:
        for target, *source in sets * REPEATS:
            if n_read == 1:
                target.copy_(source[0])
            else:
                torch.add(*source, out=target)

    all_sets()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        all_sets()
    times = []
    for _ in range(RUNS.value):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        stop.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(stop) * 1e3 / (N_SETS * REPEATS))
    return float(np.median(times))


def check(norm: Callable, x: jax.Array, w: jax.Array, dy: jax.Array) -> float:
    """The largest error of y and dx over the first and last rows, and of dw, relative to float64."""
    y, (dx, dw) = jax.jit(lambda *a: with_gradient(norm, *a))(x, w, dy)
    rows = np.r_[:64, -64:0] if x.shape[0] > 128 else np.arange(x.shape[0])
    wide, g, ww = (np.asarray(v, np.float64) for v in (x[rows], dy[rows], w))
    rstd = 1 / np.sqrt(np.mean(wide**2, -1, keepdims=True) + 1e-6)
    normal, dn = wide * rstd, g * ww
    exact_dx = rstd * (dn - normal * np.mean(dn * normal, -1, keepdims=True))
    errors = [
        np.abs(np.asarray(got[rows], np.float64) - exact) / np.maximum(np.abs(exact), 1)
        for got, exact in ((y, normal * ww), (dx, exact_dx))
    ]
    # dw over all rows, by XLA in float32: its error is relative to the size of what is summed.
    xf, gf = x.astype(jnp.float32), dy.astype(jnp.float32)
    products = gf * xf * jax.lax.rsqrt(jnp.mean(xf * xf, -1, keepdims=True) + 1e-6)
    scale = np.sqrt(np.asarray(jnp.sum(products**2, 0), np.float64))
    errors.append(np.abs(np.asarray(dw, np.float64) - np.asarray(products.sum(0))) / scale)
    return max(float(np.max(e)) for e in errors)


def with_gradient(norm: Callable, x: jax.Array, w: jax.Array, dy: jax.Array):
    y, pull = jax.vjp(norm, x, w)
    return y, pull(dy)


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unexpected argument {argv[1]!r}")
    logging.set_verbosity(logging.WARNING)
    try:
        device = jax.devices("gpu")[0]
    except RuntimeError as error:
        sys.exit(f"this benchmark times an NVIDIA GPU: {error}")
    print(
        f"{device.device_kind}, jax {jax.__version__}, jax_ptx {jax_ptx.__version__}; times in us"
    )
    print(
        f"{'rows x n':>14} {'dtype':>9} | {'copy':>7} {'ptx':>7} {'xla':>7} {'ratio':>6} |"
        f" {'floor':>7} {'ptx':>7} {'xla':>7} {'ratio':>6} | error"
    )
    for rows, n, dtype in CASES:
        keys = jax.random.split(jax.random.key(0), 2 * N_SETS + 1)
        draws = [jax.random.normal(k, (rows, n), jnp.dtype(dtype)) for k in keys[1:]]
        w = jax.random.normal(keys[0], (n,), jnp.dtype(dtype))
        sets = [(x, w, dy) for x, dy in zip(draws[:N_SETS], draws[N_SETS:], strict=True)]
        norms = [functools.partial(jax_ptx.rms_norm, implementation=i) for i in ("ptx", "xla")]
        error = check(norms[0], *sets[0])
        forward = [kernel_us(f, [s[:2] for s in sets]) for f in norms]
        both = [kernel_us(functools.partial(with_gradient, f), sets) for f in norms]
        copy = transfer_us(sets[0][0], 1)
        floor = copy + transfer_us(sets[0][0], 2)
        print(
            f"{f'{rows} x {n}':>14} {dtype:>9} | {copy:7.1f} {forward[0]:7.1f} {forward[1]:7.1f} "
            f"{forward[0] / copy:6.3f} | {floor:7.1f} {both[0]:7.1f} {both[1]:7.1f} "
            f"{both[0] / floor:6.3f} | {error:.1e}",
            flush=True,
        )
        if not error < 16 * float(jnp.finfo(dtype).eps):
            sys.exit(f"wrong result at {rows} x {n} {dtype}: relative error {error}")


if __name__ == "__main__":
    app.run(main)
