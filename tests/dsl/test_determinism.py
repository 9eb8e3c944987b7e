"""The text of a kernel is the same in any thread, process and order; tracing costs what it emits."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from jax_ptx import ptx, reg
from jax_ptx.types import f32
from tests.dsl.programs import scaled_rows
from tests.dsl.tracing import text_of
from tests.ptxas import assemble_everywhere

ROOT = Path(__file__).parents[2]
PROGRAM = (
    "from tests.dsl.programs import scaled_rows; print(scaled_rows(3).ptx(B=7, N=100), end='')"
)


def test_the_same_text_twice_and_after_other_kernels():
    first = scaled_rows(3).ptx(B=7, N=100)
    text_of(lambda: [reg.scalar(f32, 1.0) for _ in range(10)])
    assert scaled_rows(3).ptx(B=7, N=100) == first
    assemble_everywhere(first)


def test_the_same_text_in_every_thread():
    kernels = [scaled_rows(rows) for rows in (1, 2, 3, 4)]
    alone = [k.ptx(B=9, N=70) for k in kernels]
    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(lambda i: kernels[i % 4].ptx(B=9, N=70), range(200)))
    assert together == [alone[i % 4] for i in range(200)]


def test_kernels_may_be_traced_while_another_is():
    inner = scaled_rows()
    alone = inner.ptx(B=2, N=64)
    seen = []

    def body():
        a = reg.scalar(f32, 1.0)
        seen.append(inner.ptx(B=2, N=64))
        a += 1

    text = text_of(body)
    assert seen == [alone]
    assert "add.rn.f32 %f0, %f0, 0f3F800000;" in text


def test_the_same_text_in_another_process():
    environment = {**os.environ, "PYTHONHASHSEED": "4711", "JAX_PLATFORMS": "cpu"}
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout == scaled_rows(3).ptx(B=7, N=100)


def test_tracing_time_is_linear_in_the_instructions():
    def trace(n):
        def body():
            total, one = reg.scalar(f32, 0.0), reg.scalar(f32, 1.0)
            for _ in range(n):
                ptx.inst.add.rn.f32(total, total, one)

        best = float("inf")
        for _ in range(5):
            start = time.perf_counter()
            text_of(body)
            best = min(best, time.perf_counter() - start)
        return best

    trace(100)
    small, large = trace(2000), trace(20000)
    assert large < 30 * small  # ten times the work; the rest is noise
