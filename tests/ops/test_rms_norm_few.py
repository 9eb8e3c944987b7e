"""The backward kernel of few rows, emulated: values, bits, races, and when it runs."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_ptx
from jax_ptx import Launch
from jax_ptx.ops.rms_norm.config_few import FEW_ROWS, few_config, few_rows, takes_slices
from jax_ptx.ops.rms_norm.kernels_backward import backward_launch
from jax_ptx.ops.rms_norm.parts import backward_parts
from jax_ptx.types import by_numpy_name
from tests.ops import oracle
from tests.ops.test_rms_norm_values import draw
from tests.tolerance import assert_close

BF16 = by_numpy_name("bfloat16")


def launch_of(n: int, dtype: str, **facts) -> Launch:
    facts = {"weight_dtype": dtype, "grouped": False, "weight_offset": 0.5, "addend": False} | facts
    launch = backward_launch(n=n, x_dtype=dtype, target=90, **facts)
    assert launch is not None
    return launch


# A row less than fits at once, and one more than two turns and two rounds; rows that share a warp; threads
# that are left without a row; more dw than dx; blocks.
@pytest.mark.parametrize(
    ("rows", "n", "dtype", "addend", "blocks"),
    [
        (2, 1536, "bfloat16", False, 1),
        (259, 64, "float16", True, 1),
        (131, 1024, "float32", False, 1),
        (3, 4096, "float32", True, 1),
        (129, 4096, "bfloat16", True, 1),
        (1, 7168, "bfloat16", False, 1),
        (3, 12288, "bfloat16", True, 1),
        (45, 512, "bfloat16", False, 3),
    ],
)
def test_the_kernel(rows: int, n: int, dtype: str, addend: bool, blocks: int) -> None:
    few = few_config(n, by_numpy_name(dtype), 90)
    assert few
    x, dy, added = (draw((rows, n), dtype, seed) for seed in (0, 1, 2))
    w, rstd = draw(n, dtype, 3), jnp.abs(draw(rows, "float32", 4)) + 0.5
    operands = [x, dy, *[added] * addend, rstd, w]
    like_x = jax.ShapeDtypeStruct(x.shape, x.dtype)
    like_dw = jax.ShapeDtypeStruct((blocks * few.slices, few.columns), w.dtype)
    facts = {"addend": addend, "final": True, "one_block": blocks == 1}
    launch = launch_of(n, dtype, **facts, need_dx=True, runs=1, few=few)
    reports = [
        jax_ptx.emulate(
            launch, *operands, result_types=[like_x, like_dw], race_check=True, schedule=schedule
        )
        for schedule in ("shuffled", "adversarial")
    ]
    dx, dw = reports[0].outputs
    for report in reports:
        assert not report.findings
        for a, b in zip(report.outputs, (dx, dw), strict=True):
            np.testing.assert_array_equal(a, b)

    wide = [np.asarray(value, np.float64) for value in (dy, x, rstd)]
    terms = (wide[0] * wide[1] * wide[2][:, None]).reshape(blocks, -1, n)
    assert_close(jnp.asarray(dw).reshape(blocks, n), terms.sum(1), n, scale=np.abs(terms).sum(1))

    # dx has the bits of the kernel that gives nothing else, and of the one for many rows.
    alone = launch_of(n, dtype, addend=addend, final=False, one_block=False, need_dx=True, runs=0)
    (of_alone,) = jax_ptx.emulate(alone, *operands, result_types=[like_x]).outputs
    np.testing.assert_array_equal(dx, of_alone)
    many = launch_of(n, dtype, **facts | {"one_block": True}, need_dx=True, runs=1)
    like_sum = jax.ShapeDtypeStruct((1, n), w.dtype)
    of_many, _ = jax_ptx.emulate(many, *operands, result_types=[like_x, like_sum]).outputs
    np.testing.assert_array_equal(dx, of_many)

    # dw alone: fewer threads, the same sums.
    alone = launch_of(n, dtype, **facts, need_dx=False, runs=1, few=few)
    (of_alone,) = jax_ptx.emulate(alone, *operands, result_types=[like_dw]).outputs
    np.testing.assert_array_equal(dw, of_alone)


def test_the_text_has_no_number_of_rows_in_it() -> None:
    few = few_config(4096, BF16, 90)
    facts = {"need_dx": True, "runs": 1, "final": True, "one_block": True, "few": few}
    launch = launch_of(4096, "bfloat16", **facts)
    assert launch.dims == (2, 2, 2, 0, 2, 1)  # rows, the weight of a fixed size, parts
    assert len(launch.ptx) < 25_000


# ---- when it runs ----


@pytest.fixture
def one_device(monkeypatch):
    """Rows that XLA may shard take blocks instead."""
    monkeypatch.setattr(jax, "device_count", lambda *_: 1)
    jax.clear_caches()
    yield
    jax.clear_caches()


def loss(x, w):
    return (jax_ptx.rms_norm(x, w, eps=1e-5, implementation="ptx") ** 2).sum()


def entries(f, *args) -> list[str]:
    """The kernels behind the forward one."""
    return re.findall(r'entry = "(\w+)"', jax.jit(f).lower(*args).as_text())[1:]


@pytest.mark.parametrize("shape", [(2, 64), (3, 5, 128), (17, 40, 32)])
def test_gradients(one_device, shape) -> None:
    x, w = draw(shape, "float32"), draw(shape[-1], "float32", 1)
    many = np.prod(shape[:-1]) > FEW_ROWS
    expected = ["rms_norm_dx_dw", "column_sum"] if many else ["rms_norm_few_dx_dw"]
    assert entries(jax.grad(loss, (0, 1)), x, w) == expected
    assert entries(jax.grad(loss, 0), x, w) == ["rms_norm_dx"]
    assert entries(jax.grad(loss, 1), x, w) == [name.replace("dx_", "") for name in expected]
    got = jax.jit(jax.grad(loss, (0, 1)))(x, w)
    y = jax_ptx.rms_norm(x, w, eps=1e-5, implementation="xla")
    dx, dw, size = oracle.rms_norm_grad(x, w, 2 * y, eps=1e-5)
    lead = tuple(range(x.ndim - 1))
    assert_close(got[0], dx, shape[-1], scale=size)
    assert_close(got[1], dw.sum(lead), shape[-1], scale=np.abs(dw).sum(lead))
    np.testing.assert_array_equal(jax.grad(loss, 0)(x, w), got[0])
    np.testing.assert_array_equal(jax.grad(loss, 1)(x, w), got[1])


@pytest.mark.parametrize("mapped", [None, 0])
def test_a_map_adds_blocks(one_device, mapped: int | None) -> None:
    x, w = draw((3, 5, 64), "float32"), draw((3, 64), "float32", 1)
    w = w[0] if mapped is None else w
    gradient = jax.vmap(jax.grad(loss, (0, 1)), (0, mapped))
    assert entries(gradient, x, w) == ["rms_norm_few_dx_dw"]
    dx, dw = gradient(x, w)
    for i in range(3):
        alone = jax.grad(loss, (0, 1))(x[i], w if mapped is None else w[i])
        np.testing.assert_array_equal(dx[i], alone[0])
        np.testing.assert_array_equal(dw[i], alone[1])


def test_a_map_of_many_blocks_takes_a_cta_for_each(one_device) -> None:
    x, w = draw((300, 2, 64), "float32"), draw(64, "float32", 1)
    gradient = jax.vmap(jax.grad(loss, 1), (0, None))
    assert entries(gradient, x, w) == ["rms_norm_dw"]
    dw = gradient(x, w)
    for i in (0, 299):
        np.testing.assert_allclose(dw[i], jax.grad(loss, 1)(x[i], w), rtol=1e-5, atol=1e-5)


def test_another_wide_type_of_the_weight(one_device, x64) -> None:
    x, w = draw((6, 64), "float32"), draw(64, "float64", 1)
    assert "rms_norm_few_dw" in entries(jax.grad(loss, 1), x, w)
    got = jax.grad(loss, 1)(x, w)
    assert got.dtype == jnp.float64
    formula = lambda w: (jax_ptx.rms_norm(x, w, eps=1e-5, implementation="xla") ** 2).sum()
    np.testing.assert_allclose(got, jax.grad(formula)(w), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("n", "dtype", "target"),
    # Not aligned; an odd number of accesses; a cluster's; with too many bits for its registers.
    [(4097, "bfloat16", 90), (8, "bfloat16", 80), (16384, "bfloat16", 90), (4096, "float64", 80)],
)
def test_rows_that_it_does_not_take(n: int, dtype: str, target: int) -> None:
    assert few_config(n, by_numpy_name(dtype), target) is None
    assert not few_rows(n, by_numpy_name(dtype), target)


@pytest.mark.parametrize("target", [80, 90])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_slices_cover_the_columns(dtype: str, target: int) -> None:
    found = 0
    for n in range(8, 17000, 8):
        if few := few_config(n, by_numpy_name(dtype), target):
            found += 1
            assert few.slices * few.columns == n
            assert few.columns == few.lanes * few.layout.vector
            assert few.threads % few.columns == few.threads % 32 == 0
            assert few.threads + few.layout.cta_threads <= 1024
    assert found > 100


def test_which_rows_are_few() -> None:
    few = few_rows(4096, BF16, 90)
    assert 1 in few
    assert 128 in few
    assert 1000 not in few
    parts = backward_parts((1, 128), (1, 1), 0, 1, 264, few)
    assert (parts.runs, parts.final) == (1, True)
    assert backward_parts((1, 128), (1, 1), 0, 8, 264, few).blocks == (1, 8)
    assert takes_slices((1, 128), (1, 1), 4096, BF16, 90)
    assert takes_slices((4, 128), (4, 1), 4096, BF16, 90)
    assert takes_slices((500, 128), (500, 1), 4096, BF16, 90) is None
    assert takes_slices((1, 128), (1, "b"), 4096, BF16, 90) is None
