"""RMS norm without a GPU: the emulator against Pallas's interpreter, on the same rows in the same run.

    python benchmarks/emulator.py [--rows=64,128,256,512] [--n=4096]

The emulator runs the PTX that a GPU would run, thread by thread, with every check that is always on: bounds
and alignment of each access, registers and shared memory that nobody wrote, barriers. Pallas interprets a
kernel block by block: each block is an operation of XLA, and nothing is checked; how fast it is depends on
the rows of a block. Both are jitted, and compiled before the first measurement; the least of the times
counts, since a machine that others use only adds to them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from harness.report import table
from jax.experimental import pallas as pl

import jax_ptx
from jax_ptx.ops.rms_norm.kernels import forward_launch
from jax_ptx.ops.rms_norm.options import Options

ROWS = flags.DEFINE_list("rows", "64,128,256,512", "numbers of rows; time should grow like them")
N = flags.DEFINE_integer("n", 4096, "elements of a row")
CLOCK = flags.DEFINE_enum(
    "clock", "wall", ["wall", "cpu"], "cpu: of all threads, which others' work hardly touches"
)
RUNS = flags.DEFINE_integer("runs", 15, "runs of each, in turn")

EPS = 1e-6
BLOCKS = (1, 4, 16)  # rows of a block of Pallas
Function = Callable[[jax.Array, jax.Array], jax.Array]


def emulated(x: jax.Array, w: jax.Array) -> jax.Array:
    return jax_ptx.rms_norm(x, w, eps=EPS, implementation="ptx")


def interpreted(block_rows: int) -> Function:
    """The same in Pallas, `block_rows` rows at a time."""

    def kernel(x_ref, w_ref, y_ref):
        x = x_ref[...]
        scale = jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + EPS)
        y_ref[...] = x * scale * w_ref[...]

    def run(x: jax.Array, w: jax.Array) -> jax.Array:
        rows, n = x.shape
        return pl.pallas_call(
            kernel,
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
            grid=(rows // block_rows,),
            in_specs=[
                pl.BlockSpec((block_rows, n), lambda i: (i, 0)),
                pl.BlockSpec((n,), lambda i: (0,)),
            ],
            out_specs=pl.BlockSpec((block_rows, n), lambda i: (i, 0)),
            interpret=True,
        )(x, w)

    return run


def now() -> float:
    return time.perf_counter() if CLOCK.value == "wall" else time.process_time()


def least(functions: dict[str, Function], x: jax.Array, w: jax.Array) -> dict[str, float]:
    """Milliseconds of each, after it has compiled and agreed with numpy."""
    wide = np.asarray(x, np.float64)
    want = wide / np.sqrt((wide**2).mean(1, keepdims=True) + EPS) * np.asarray(w)
    compiled = {name: jax.jit(function) for name, function in functions.items()}
    for run in compiled.values():
        np.testing.assert_allclose(np.asarray(run(x, w)), want, rtol=1e-5, atol=1e-6)
    times: dict[str, list[float]] = {name: [] for name in compiled}
    for _ in range(RUNS.value):
        for name, run in compiled.items():
            start = now()
            jax.block_until_ready(run(x, w))
            times[name].append((now() - start) * 1e3)
    return {name: min(of) for name, of in times.items()}


def measured() -> Iterator[list[str]]:
    functions = {"emulator": emulated}
    functions |= {f"Pallas, blocks of {b}": interpreted(b) for b in BLOCKS}
    yield [
        "rows",
        "emulator ms",
        "us a row",
        *(f"{name} ms" for name in functions if name != "emulator"),
        "ratios",
    ]
    rng = np.random.default_rng(0)
    for rows in map(int, ROWS.value):
        x = jnp.asarray(rng.standard_normal((rows, N.value)), jnp.float32)
        w = jnp.asarray(rng.standard_normal(N.value), jnp.float32)
        ms = least(functions, x, w)
        own, others = ms["emulator"], [ms[name] for name in functions if name != "emulator"]
        ratios = ", ".join(f"{other / own:.2f}" for other in others)
        yield [
            str(rows),
            f"{own:.2f}",
            f"{own * 1e3 / rows:.1f}",
            *(f"{o:.2f}" for o in others),
            ratios,
        ]


def with_findings() -> Iterator[list[str]]:
    """`jax_ptx.emulate`, whose CTAs run one after the other, and what the search for races adds."""
    rows = int(ROWS.value[-1])
    launch = forward_launch(
        n=N.value,
        x_dtype="float32",
        weight_dtype="float32",
        grouped=False,
        options=Options(EPS),
        residual=False,
        out_dtype=None,
        with_rstd=False,
    )
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape, np.float32) for shape in ((rows, N.value), (N.value,)))
    results = [jax.ShapeDtypeStruct(x.shape, x.dtype)]
    times: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(RUNS.value):
        for race_check, of in times.items():
            start = now()
            jax_ptx.emulate(launch, x, w, result_types=results, race_check=race_check)
            of.append((now() - start) * 1e3)
    plain, checked = min(times[False]), min(times[True])
    yield ["rows", "emulate() ms", "with race_check ms", "ratio"]
    yield [str(rows), f"{plain:.2f}", f"{checked:.2f}", f"{checked / plain:.2f}"]


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unexpected argument {argv[1]!r}")
    jax.config.update("jax_platforms", "cpu")
    print(f"rms_norm, float32, n = {N.value}; a ratio is Pallas's time over the emulator's")
    print(table(measured()))
    print()
    print(table(with_findings()))


if __name__ == "__main__":
    app.run(main)
