"""`jax_ptx.emulate`: what it takes, what it returns, what it counts."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_ptx
from jax_ptx import RunTime, Tile, kernel, ptx, ptx_kernel, reg
from jax_ptx.emulate import TRACE_LIMIT, TraceStep
from jax_ptx.ops.rms_norm.kernels import forward_launch
from jax_ptx.ops.rms_norm.options import Options
from jax_ptx.types import bf16, f32, u32
from tests.ffi.emulation import kernel as text_of


@kernel(
    in_specs=(Tile("n", f32),),
    out_specs=(Tile("n", f32),),
    grid=lambda n: -(-n // 64),
    block=(64, 1, 1),
)
def double(x, y, *, n, factor=2.0):
    px, py = ptx.global_ptrs(x, y)
    i = reg.from_(ptx.special.ctaid.x(), u32)
    ptx.inst.mad.lo.u32(i, i, 64, reg.from_(ptx.special.tid.x(), u32))
    with ptx.if_(i < n):
        value = reg.scalar(f32)
        ptx.inst.ld.global_.f32(value, ptx.addr(px + i * 4))
        ptx.inst.st.global_.f32(ptx.addr(py + i * 4), value * factor)


def text_kernel(body, n=32, out=f32, grid=1, block=32, **options):
    """A kernel of two tensors, x and y, of n elements."""
    return ptx_kernel(
        text_of(body),
        in_specs=(Tile(n, f32),),
        out_specs=(Tile(n, out),),
        grid=(grid, 1, 1),
        block=(block, 1, 1),
        **options,
    )


COPY = "mad.wide.u32 %rd1, %i, 4, %x; mad.wide.u32 %rd2, %i, 4, %y;\n"
COPY += "ld.global.f32 %f1, [%rd1]; st.global.f32 [%rd2], %f1;"


def test_a_kernel_gives_what_its_call_gives() -> None:
    x = jnp.arange(100.0)
    report = jax_ptx.emulate(double, x, factor=3.0, race_check=True)
    np.testing.assert_array_equal(report.outputs, double(x, factor=3.0))
    assert isinstance(report.outputs, np.ndarray)
    assert report.findings == ()
    assert report.grid == (2, 1, 1)
    assert str(report).startswith("double: nothing found; grid (2, 1, 1), block (64, 1, 1)\n")


def test_a_text_kernel_and_a_launch_record() -> None:
    x = np.arange(32, dtype=np.float32)
    made = text_kernel(COPY)
    np.testing.assert_array_equal(jax_ptx.emulate(made, x).outputs, x)
    result = jax.ShapeDtypeStruct((32,), np.float32)
    (y,) = jax_ptx.emulate(made.launch(), x, result_types=[result]).outputs
    np.testing.assert_array_equal(y, x)


def test_outputs_of_a_run_time_size_and_in_place() -> None:
    @kernel(
        in_specs=(Tile(RunTime("n"), bf16),),
        out_specs=(Tile(RunTime("n"), bf16),),
        grid=(4, 1, 1),
        block=(32, 1, 1),
        rows_per_cta=32,
        input_output_aliases={0: 0},
    )
    def negate(x, y):
        (py,) = ptx.global_ptrs(y)
        i = reg.from_(ptx.special.ctaid.x(), u32)
        ptx.inst.mad.lo.u32(i, i, 32, reg.from_(ptx.special.tid.x(), u32))
        value = reg.scalar(bf16)
        ptx.inst.ld.global_.b16(value, ptx.addr(py + i * 2))
        ptx.inst.neg.bf16(value, value)
        ptx.inst.st.global_.b16(ptx.addr(py + i * 2), value)

    x = jnp.arange(64, dtype=jnp.bfloat16)
    report = jax_ptx.emulate(negate, x)
    assert report.outputs.dtype == jnp.bfloat16
    assert report.grid == (2, 1, 1)
    np.testing.assert_array_equal(report.outputs, np.asarray(-x))
    assert x[1] == 1


def test_counts() -> None:
    counts = jax_ptx.emulate(double, np.ones(100, np.float32)).counts
    assert counts.instructions["ld"] >= 4  # of four warps, besides those of parameters
    assert counts.bytes == {("global", "read"): 400, ("global", "write"): 400}
    assert (counts.sectors, counts.least_sectors) == (26, 26)
    load = next(line for line in counts.lines if line.instruction.startswith("ld.global"))
    assert (load.warps, load.threads) == (4, 100)


def test_sectors_and_bank_conflicts() -> None:
    body = """
    .shared .align 16 .b8 a[4096];
    mov.u32 %r1, a;
    mad.lo.u32 %r2, %t, 32, %r1;
    st.shared.u32 [%r2], %t;
    mad.lo.u32 %r3, %t, 16, %r1;
    st.shared.v4.u32 [%r3], {%t, %t, %t, %t};
    ld.shared.u32 %r4, [%r1];
    mad.wide.u32 %rd1, %i, 256, %x;
    ld.global.f32 %f1, [%rd1];
    mad.wide.u32 %rd1, %i, 4, %y;
    st.global.f32 [%rd1], %f1;
    """
    report = jax_ptx.emulate(
        ptx_kernel(
            text_of(body),
            in_specs=(Tile(2048, f32),),
            out_specs=(Tile(32, f32),),
            block=(32, 1, 1),
        ),
        np.ones(2048, np.float32),
    )
    by_text = {line.instruction: line for line in report.counts.lines}
    # 32 words, 8 banks apart: 4 banks with 8 words each.
    assert by_text["st.shared.u32 [%r2], %t"].bank_conflicts == 7
    assert by_text["st.shared.v4.u32 [%r3], {%t, %t, %t, %t}"].bank_conflicts == 0
    assert by_text["ld.shared.u32 %r4, [%r1]"].bank_conflicts == 0
    load = by_text["ld.global.f32 %f1, [%rd1]"]
    assert (load.sectors, load.least_sectors) == (32, 4)
    assert "7 bank conflicts" in str(report)
    assert "`ld.global.f32 %f1, [%rd1]`: 32 sectors where 4 would do" in str(report)


def test_a_barrier_counts_once_for_each_warp() -> None:
    report = jax_ptx.emulate(
        text_kernel("bar.sync 0; shfl.sync.bfly.b32 %r1, %t, 1, 31, -1;" + COPY, n=96, block=96),
        np.ones(96, np.float32),
    )
    assert report.counts.instructions["bar"] == report.counts.instructions["shfl"] == 3


SCHEDULES = [
    ("round_robin", 0),
    ("shuffled", 0),
    ("shuffled", 1),
    ("adversarial", 0),
    ("adversarial", 1),
]


def test_a_correct_kernel_gives_the_same_under_every_schedule_and_number_of_threads() -> None:
    x = np.random.default_rng(0).standard_normal((37, 1000), np.float32)
    launch = forward_launch(
        n=1000,
        x_dtype="float32",
        weight_dtype=None,
        grouped=False,
        options=Options(1e-6),
        residual=False,
        out_dtype=None,
        with_rstd=False,
    )
    expected = jax_ptx.rms_norm(x, implementation="ptx")  # on XLA's threads
    result = jax.ShapeDtypeStruct(x.shape, x.dtype)
    for schedule, seed in SCHEDULES:
        report = jax_ptx.emulate(
            launch, x, result_types=[result], schedule=schedule, seed=seed, race_check=True
        )
        np.testing.assert_array_equal(report.outputs[0], expected)


@pytest.mark.parametrize(
    "look", ["ld.acquire.gpu.global.u32 %r3, [done];", "atom.or.b32 %r3, [done], 0;"]
)
def test_ctas_that_wait_for_smaller_numbers(look: str) -> None:
    """A chained scan: each CTA takes the sum so far from the one before it."""
    body = f"""
    mov.u32 %r1, %ctaid.x; setp.ne.u32 %p1, %t, 0; @%p1 ret;
    WAIT: {look} setp.lo.u32 %p2, %r3, %r1; @%p2 bra WAIT;
    ld.global.f32 %f1, [total]; mad.wide.u32 %rd1, %r1, 4, %x; ld.global.f32 %f2, [%rd1];
    add.f32 %f1, %f1, %f2; st.global.f32 [total], %f1;
    mad.wide.u32 %rd1, %r1, 4, %y; st.global.f32 [%rd1], %f1;
    add.u32 %r1, %r1, 1; st.release.gpu.global.u32 [done], %r1;
    """
    variables = ".global .u32 done = 0; .global .f32 total = 0f00000000;\n"
    made = ptx_kernel(
        text_of(body, before=variables),
        in_specs=(Tile(8, f32),),
        out_specs=(Tile(8, f32),),
        grid=(8, 1, 1),
        block=(32, 1, 1),
    )
    x = np.arange(8, dtype=np.float32)
    for schedule, seed in SCHEDULES:
        report = jax_ptx.emulate(made, x, schedule=schedule, seed=seed, step_limit=100_000)
        np.testing.assert_array_equal(report.outputs, np.cumsum(x))
        assert report.counts.bytes["global", "write"] == 8 * 12


def test_an_incorrect_kernel_does_not() -> None:
    """Each warp takes the next number; which one, nothing says."""
    body = """
    .shared .b32 next; setp.eq.u32 %p1, %t, 0; @%p1 st.shared.u32 [next], 0; bar.sync 0;
    and.b32 %r1, %t, 31; setp.eq.u32 %p1, %r1, 0; mov.u32 %r2, 0;
    @%p1 atom.shared.add.u32 %r2, [next], 1;
    cvt.rn.f32.u32 %f1, %r2; mad.wide.u32 %rd2, %i, 4, %y; st.global.f32 [%rd2], %f1;
    """
    made, x = text_kernel(body, n=256, block=256), np.ones(256, np.float32)
    outputs = {
        tuple(jax_ptx.emulate(made, x, schedule=schedule, seed=seed).outputs[::32].tolist())
        for schedule, seed in SCHEDULES
    }
    # The warp that completes the barrier goes on, then the others in their order.
    assert (1, 2, 3, 4, 5, 6, 7, 0) in outputs  # round robin
    assert (0, 7, 6, 5, 4, 3, 2, 1) in outputs  # adversarial
    assert len(outputs) >= 4
    again = jax_ptx.emulate(made, x, schedule="shuffled", seed=1).outputs
    np.testing.assert_array_equal(
        again, jax_ptx.emulate(made, x, schedule="shuffled", seed=1).outputs
    )


def test_trace(tmp_path) -> None:
    x, steps = np.ones(32, np.float32), []
    jax_ptx.emulate(text_kernel(COPY), x, trace=steps)
    assert [s.instruction for s in steps][-3:] == [
        "ld.global.f32 %f1, [%rd1]",
        "st.global.f32 [%rd2], %f1",
        "ret",
    ]
    assert steps[-1] == TraceStep((0, 0, 0), 0, 0xFFFFFFFF, steps[-1].line, "ret")
    jax_ptx.emulate(text_kernel(COPY), x, trace=tmp_path / "trace.txt")
    last = (tmp_path / "trace.txt").read_text().splitlines()[-1]
    assert last == f"CTA (0,0,0) warp 0 lanes 0xffffffff line {steps[-1].line}: ret"
    loop = "mov.u32 %r1, 0; L: add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 40000; @%p1 bra L;" + COPY
    steps.clear()
    jax_ptx.emulate(text_kernel(loop), x, trace=steps)
    assert len(steps) == TRACE_LIMIT


def test_a_fault_is_an_error_with_the_report() -> None:
    bad = text_kernel("ld.global.f32 %f1, [%x+128];")
    with pytest.raises(jax_ptx.EmulationError) as caught:
        jax_ptx.emulate(bad, np.ones(32, np.float32))
    (finding,) = caught.value.report.findings
    assert str(caught.value) == finding.message
    assert (finding.kind, finding.memory, finding.offset) == (
        "out_of_bounds",
        "parameter 0 (`p_x`)",
        128,
    )
    assert finding.site is not None
    assert finding.site.thread == (0, 0, 0)
    assert finding.site.instruction == "ld.global.f32 %f1, [%x+128]"
    assert str(caught.value.report).startswith("k: 1 finding; ")
    report = jax_ptx.emulate(bad, np.ones(32, np.float32), raise_on_finding=False)
    assert report.findings == caught.value.report.findings


def test_a_jitted_call_says_the_same() -> None:
    bad = text_kernel("ld.global.f32 %f1, [%x+128];")
    x = np.ones(32, np.float32)
    with pytest.raises(jax_ptx.EmulationError) as caught:
        jax_ptx.emulate(bad, x)
    with pytest.raises(jax.errors.JaxRuntimeError) as jitted:
        jax.block_until_ready(jax.jit(bad)(x))
    assert str(caught.value) in str(jitted.value)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"schedule": "fair"}, ValueError, "schedule must be one of round_robin, shuffled, "),
        ({"seed": -1}, ValueError, "seed must be 0 or more, got -1"),
        ({"step_limit": 0}, ValueError, "step_limit must be 1 or more, got 0"),
        ({"own_rows": 1.5}, TypeError, "own_rows must be an int, got 1.5"),
        ({"trace": 3}, TypeError, "trace must be a list to append to or the path"),
        ({"m": 3}, TypeError, "unexpected keyword 'm'"),
    ],
)
def test_arguments_that_mean_nothing(settings, error, message) -> None:
    with pytest.raises(error, match=message):
        jax_ptx.emulate(double, np.ones(4, np.float32), **settings)


def test_what_is_no_kernel() -> None:
    number: Any = 5
    with pytest.raises(
        TypeError, match="takes a kernel that @kernel or ptx_kernel made, a Launch or"
    ):
        jax_ptx.emulate(number, np.ones(4, np.float32))
    with pytest.raises(ValueError, match=r"the PTX text has no \.entry"):
        jax_ptx.emulate("text", np.ones(4, np.float32))
    with pytest.raises(TypeError, match="expected 1 input"):
        jax_ptx.emulate(double)
    with pytest.raises(NotImplementedError, match=r"unknown instruction `frob\.u32`"):
        jax_ptx.emulate(text_kernel("frob.u32 %r1, %r2;"), np.ones(32, np.float32))
