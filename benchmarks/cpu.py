"""What can be measured without a GPU: Python to PTX, lowering, what ptxas makes of it, the emulator.

    python benchmarks/cpu.py [--only=tracing,ops,ptxas,emulator]

Times are of this machine, and noisy on a shared one. Beside them stand counts, which are the same on every
run: instructions of a text, and Python's calls (functions of Python and of C), which tracing and lowering
consist of.

- tracing: kernels of n instructions; the time an instruction should not depend on n;
- ops: what JAX does at the first call of rms_norm and add_rms_norm of a new row length, for CUDA;
- ptxas: registers, spills, shared memory and occupancy of the kernels that these lower to;
- emulator: one call of each op, checked access by access.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
from absl import app, flags
from harness.report import table

import jax_ptx
from jax_ptx import Kernel, kernel, ptx, reg
from jax_ptx.ops.target import VARIABLE
from jax_ptx.ptx_text import statements
from jax_ptx.report import report
from jax_ptx.types import f32, u32

SECTIONS = ("tracing", "ops", "ptxas", "emulator")
ONLY = flags.DEFINE_list("only", list(SECTIONS), f"some of {', '.join(SECTIONS)}")
LENGTHS = flags.DEFINE_list(
    "lengths",
    "128,1024,1536,2048,3072,4096,8192,16384,32768,65536,131072,262144,1000,4097,10007",
    "row lengths of the ops and of ptxas",
)
DTYPE = flags.DEFINE_enum("dtype", "bfloat16", ["bfloat16", "float32", "float16", "float64"], "")
TARGET = flags.DEFINE_string("target", "sm_90", "of the ops, and for ptxas")
ROWS = flags.DEFINE_integer("rows", 4096, "of the ops that are lowered", lower_bound=1)

SIZES = (100, 1000, 10000, 100000)
BLOCK = 5  # instructions that the loop below emits in one pass
EMULATED = ((64, 1024), (16, 4096), (16, 4097), (2, 32768))
RUNS = 5
OPS = ("rms_norm", "add_rms_norm")


def counted(run: Callable[[], Any]) -> int:
    """Calls of functions while something runs."""
    calls = 0

    def profile(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(None)
    return calls


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    """Milliseconds of one run, and its result."""
    start = time.perf_counter()
    result = run()
    return (time.perf_counter() - start) * 1e3, result


# ---- tracing ----


def program(n: int) -> Kernel:
    """A kernel of about n instructions: addresses, loads, arithmetic and stores."""

    @kernel
    def traced(x):
        (px,) = ptx.global_ptrs(x)
        i = reg.from_(ptx.special.tid.x(), u32)
        value = reg.scalar(f32)
        for step in range(n // BLOCK):
            p = px + (i + step) * 4
            ptx.inst.ld.global_.f32(value, ptx.addr(p))
            ptx.inst.fma.rn.f32(value, value, value, 1.0)

    return traced


def tracing() -> Iterator[list[str]]:
    yield ["instructions", "ms", "us each", "calls each"]
    for size in SIZES:
        best, text = min(timed(program(size).ptx) for _ in range(max(3, 2000 // size)))
        n = text.count(";\n")
        calls = counted(program(size).ptx) / n if size <= 10000 else None
        yield [str(n), f"{best:.2f}", f"{best * 1e3 / n:.2f}", f"{calls:.0f}" if calls else "-"]


# ---- ops ----


def both(op: Callable[..., Any], n_primals: int) -> Callable[..., Any]:
    """Forward and backward of an op."""

    def run(*operands: Any) -> Any:
        y, pull = jax.vjp(op, *operands[:n_primals])
        cotangents = operands[n_primals:]
        return y, pull(cotangents if isinstance(y, tuple) else cotangents[0])

    return run


def call(op: str, n: int, backward: bool) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """An op's function, and the shapes of its operands."""
    x = jax.ShapeDtypeStruct((ROWS.value, n), jnp.dtype(DTYPE.value))
    rows = (x,) if op == "rms_norm" else (x, x)
    weight = jax.ShapeDtypeStruct((n,), x.dtype)
    function = getattr(jax_ptx, op)
    if not backward:
        return function, (*rows, weight)
    return both(function, len(rows) + 1), (*rows, weight, *rows)


def lowered(op: str, n: int, backward: bool) -> tuple[float, float, Any]:
    """Milliseconds of tracing and of lowering, which has the kernels' texts made; the latter's result."""
    function, operands = call(op, n, backward)
    trace_ms, traced = timed(lambda: jax.jit(function).trace(*operands))
    lower_ms, result = timed(lambda: traced.lower(lowering_platforms=("cuda",)))
    return trace_ms, lower_ms, result


def launches(result: Any) -> dict[str, Any]:
    """The attributes of the custom calls that a function lowers to, by entry."""
    found: dict[str, Any] = {}

    def visit(operation: Any) -> None:
        for region in operation.regions:
            for block in region:
                for inner in block:
                    attributes = inner.operation.attributes
                    if "mhlo.backend_config" in attributes:
                        config = attributes["mhlo.backend_config"]
                        if "ptx" in config:
                            found[config["entry"].value] = config
                    visit(inner.operation)

    visit(result.compiler_ir("stablehlo").operation)
    return found


def ops() -> Iterator[list[str]]:
    yield ["op", "n", "pass", "trace ms", "lower ms", "calls", "instructions", "PTX KB"]
    lowered("rms_norm", 96, True)  # what is done once in a process
    for op in OPS:
        for n in map(int, LENGTHS.value):
            for backward in (False, True):
                trace_ms, lower_ms, result = lowered(op, n, backward)
                texts = [config["ptx"].value for config in launches(result).values()]
                # Rows one element longer: nothing of them is cached.
                calls = counted(lambda: lowered(op, n + 1, backward))  # noqa: B023
                count = sum(1 for text in texts for _ in statements(text))
                yield [
                    *(op, str(n), "fwd+bwd" if backward else "fwd"),
                    *(f"{trace_ms:.1f}", f"{lower_ms:.1f}", str(calls)),
                    *(str(count), f"{sum(map(len, texts)) / 1e3:.1f}"),
                ]


# ---- ptxas ----


def ptxas() -> Iterator[list[str]]:
    yield [
        *("op", "n", "kernel", "threads", "cluster", "registers", "spill bytes", "shared bytes"),
        *("CTAs/SM", "occupancy", "instructions"),
    ]
    for op in OPS:
        for n in map(int, LENGTHS.value):
            for entry, config in launches(lowered(op, n, True)[2]).items():
                threads, cluster = (int(config[key][0]) for key in ("block", "cluster"))
                text, smem_bytes = config["ptx"].value, config["smem_bytes"].value
                made = report(text, entry, threads, smem_bytes, (TARGET.value,))
                view = made.targets.get(TARGET.value)
                numbers = ["refused"] * 5
                if view:
                    numbers = [
                        *(str(v) for v in (view.registers, view.spill_bytes, view.smem_bytes)),
                        *(str(view.ctas_per_sm), f"{view.occupancy:.0%}"),
                    ]
                count = str(sum(made.instructions.values()))
                yield [op, str(n), entry, str(threads), str(cluster), *numbers, count]


# ---- emulator ----


def emulator() -> Iterator[list[str]]:
    cpu = jax.local_devices(backend="cpu")[0]
    yield ["rms_norm", "pass", "ms", "ns an element"]
    for rows, n in EMULATED:
        for backward in (False, True):
            op = lambda x, w: jax_ptx.rms_norm(x, w, implementation="ptx")
            function = jax.jit(both(op, 2) if backward else op)
            x = jax.device_put(jnp.ones((rows, n), jnp.dtype(DTYPE.value)), cpu)
            operands = (x, x[0], x) if backward else (x, x[0])
            jax.block_until_ready(function(*operands))
            run = lambda f=function, o=operands: jax.block_until_ready(f(*o))
            ms = min(timed(run)[0] for _ in range(RUNS))
            which = "fwd+bwd" if backward else "fwd"
            yield [f"{rows} x {n}", which, f"{ms:.2f}", f"{ms * 1e6 / (rows * n):.1f}"]


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unexpected argument {argv[1]!r}")
    sections = {"tracing": tracing, "ops": ops, "ptxas": ptxas, "emulator": emulator}
    if unknown := set(ONLY.value) - set(sections):
        raise app.UsageError(f"--only: expected some of {', '.join(sections)}, got {unknown}")
    for name in ONLY.value:
        # The emulator's are those that a process without a GPU writes.
        target = {VARIABLE: TARGET.value} if name in ("ops", "ptxas") else {}
        with mock.patch.dict(os.environ, target):
            print(f"{name}:\n{table(sections[name]())}\n", flush=True)


if __name__ == "__main__":
    app.run(main)
