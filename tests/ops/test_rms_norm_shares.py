"""The forward kernel of few rows, each shared by several CTAs, emulated: bits, races, when it runs."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_ptx
from jax_ptx.dsl import ptx, reg
from jax_ptx.dsl.tile import Tile
from jax_ptx.ops.reduce import row_sum
from jax_ptx.ops.rms_norm.config import SHARING_CTAS, row_shares
from jax_ptx.ops.rms_norm.kernels import forward_launch
from jax_ptx.ops.rms_norm.options import Options
from jax_ptx.ops.vectors import elements_of
from jax_ptx.types import by_numpy_name, f32, u32
from tests.ops.test_rms_norm_values import draw


# A share of one and of several steps, a last step that not every thread has, up to 1,024 threads.
@pytest.mark.parametrize(
    ("rows", "n", "dtype", "shares", "extra"),
    [
        (2, 2048, "bfloat16", 4, {}),
        (3, 4096, "bfloat16", 2, {"with_rstd": True}),
        (1, 8192, "float16", 4, {"residual": True, "with_rstd": True}),
        (2, 8192, "float32", 2, {"weight_dtype": None}),
        (2, 7168, "bfloat16", 2, {"residual": True}),
        (2, 5120, "bfloat16", 3, {"grouped": True}),
        (1, 12280, "float32", 2, {"with_rstd": True}),
        (2, 2048, "float32", 2, {"out_dtype": "float8_e4m3fn"}),
        (2, 512, "float64", 4, {"with_rstd": True}),
        (1, 61440, "bfloat16", 8, {"residual": True}),
    ],
)
def test_the_bits_are_those_of_one_cta_a_row(
    rows: int, n: int, dtype: str, shares: int, extra: dict
) -> None:
    with jax.enable_x64(dtype == "float64"):
        compare(rows, n, dtype, shares, extra)


def compare(rows: int, n: int, dtype: str, shares: int, extra: dict) -> None:
    facts = {
        "weight_dtype": dtype,
        "grouped": False,
        "residual": False,
        "out_dtype": None,
        "with_rstd": False,
    } | extra
    operands = [draw((rows, n), dtype)]
    results = [jax.ShapeDtypeStruct((rows, n), facts["out_dtype"] or operands[0].dtype)]
    if facts["residual"]:
        operands.append(draw((rows, n), dtype, 1))
        results.append(jax.ShapeDtypeStruct((rows, n), operands[0].dtype))
    if facts["weight_dtype"]:
        operands.append(draw((rows, n) if facts["grouped"] else n, dtype, 2))
    if facts["out_dtype"]:
        operands.append(jnp.float32(0.25))
    if facts["with_rstd"]:
        results.append(
            jax.ShapeDtypeStruct((rows,), "float64" if dtype == "float64" else "float32")
        )
    found = {}
    for count in (1, shares):
        launch = forward_launch(
            n=n, x_dtype=dtype, options=Options(1e-6, 0.5), shares=count, target=90, **facts
        )
        assert launch.grid[1] == count
        report = jax_ptx.emulate(
            launch, *operands, result_types=results, race_check=True, schedule="shuffled"
        )
        assert not report.findings
        found[count] = report.outputs
    for one, several in zip(found[1], found[shares], strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(several))


@pytest.mark.parametrize(
    ("rows", "n", "dtype", "shares"),
    [
        (1, 8192, "bfloat16", 4),
        (SHARING_CTAS // 4, 8192, "bfloat16", 4),
        (SHARING_CTAS // 4 + 1, 8192, "bfloat16", 2),
        (SHARING_CTAS // 2 + 1, 8192, "bfloat16", 1),
        (1, 4096, "bfloat16", 2),
        (1, 64, "bfloat16", 1),  # a warp has several rows
        (1, 4097, "bfloat16", 1),  # rows start anywhere
        (1, 131072, "bfloat16", 1),  # a cluster has the row already
        (0, 8192, "bfloat16", 4),
    ],
)
def test_how_many_ctas_share_a_row(rows: int, n: int, dtype: str, shares: int) -> None:
    assert row_shares(rows, n, by_numpy_name(dtype), 90) == shares


def test_rows_that_are_not_known_count_as_many() -> None:
    (rows,) = jax.export.symbolic_shape("rows")
    assert row_shares(rows, 8192, by_numpy_name("bfloat16"), 90) == 1


def test_a_call_of_few_rows_shares_them_and_one_of_many_does_not() -> None:
    def grid(rows: int) -> str:
        x, w = jnp.ones((rows, 8192), jnp.bfloat16), jnp.ones(8192, jnp.bfloat16)
        norm = jax.jit(lambda x, w: jax_ptx.rms_norm(x, w, implementation="ptx"))
        text = norm.lower(x, w).as_text()
        return re.findall(r"grid = dense<\[(\d+), (\d+), 1\]>", text)[0][1]

    assert grid(3) == "4"
    assert grid(70) == "1"


def test_each_row_has_the_same_bits_in_any_batch() -> None:
    x, w = draw((SHARING_CTAS + 1, 4096), "bfloat16"), draw(4096, "bfloat16", 1)
    many = jax_ptx.rms_norm(x, w, implementation="ptx")
    for rows in (1, 20, 40):
        few = jax_ptx.rms_norm(x[:rows], w, implementation="ptx")
        np.testing.assert_array_equal(np.asarray(few), np.asarray(many[:rows]))


@pytest.mark.parametrize("warps", range(2, 9))
def test_a_thread_adds_up_the_parts_of_warps_in_the_order_of_lanes(warps: int) -> None:
    threads = 32 * warps

    def sums(alone: bool):
        @jax_ptx.kernel(
            in_specs=(Tile(threads, f32),),
            out_specs=(Tile(threads, f32),),
            grid=(1, 1, 1),
            block=(threads, 1, 1),
        )
        def kernel(x, y):
            thread = reg.from_(ptx.special.tid.x(), u32)
            px, py = elements_of(x), elements_of(y)
            for part in (px, py):
                part.skip(thread)
            (value,) = px.load(0, 1)
            row_sum(value, thread, threads, alone=alone)
            py.store(0, [value])
            ptx.ret()

        like_y = jax.ShapeDtypeStruct((threads,), jnp.float32)
        x = draw(threads, "float32")
        return jax_ptx.emulate(kernel.launch(), x, result_types=[like_y]).outputs[0]

    np.testing.assert_array_equal(sums(True), sums(False))
