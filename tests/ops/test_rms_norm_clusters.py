"""rms_norm as it is for a GPU with large clusters, in the emulator."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_ptx
from jax_ptx import emulate
from jax_ptx.ops import target
from jax_ptx.ops.rms_norm.config import forward_config
from jax_ptx.ops.rms_norm.config_backward import backward_config
from jax_ptx.ops.rms_norm.kernels import forward_launch
from jax_ptx.ops.rms_norm.kernels_backward import backward_launch
from jax_ptx.ops.rms_norm.options import Options
from jax_ptx.types import by_numpy_name
from tests.ops import oracle
from tests.ops.test_rms_norm_values import draw
from tests.tolerance import assert_close

# Rows and n: a cluster of two, with less than a turn each, and several; with a number of warps that is no
# power of two; of four; of eight, forward too; whose rows stay in shared memory, the last piece in part.
BACKWARD = [
    (5, 16384, "bfloat16"),
    (3, 18432, "float16"),
    (140, 8224, "float32"),
    (35, 32768, "bfloat16"),
    (2, 65536, "float32"),
    (17, 66048, "float32"),
]
FORWARD = [(32, 131072, "bfloat16"), (2, 131072, "float32"), (1, 100000, "bfloat16")]


@pytest.fixture(autouse=True)
def _hopper(monkeypatch):
    monkeypatch.setenv(target.VARIABLE, "sm_90")
    jax.clear_caches()  # what was compiled for another target
    yield
    jax.clear_caches()


def results(x, residual, w, dy, implementation: str):
    """y, the sum, dx and dw of add_rms_norm."""
    norm = lambda *a: jax_ptx.add_rms_norm(*a, implementation=implementation)
    values, pull = jax.vjp(norm, x, residual, w)
    dx, _, dw = pull((dy, dy))
    return *values, dx, dw


@pytest.mark.parametrize(("rows", "n", "dtype"), [*BACKWARD, *FORWARD])
def test_rows_that_ctas_share(rows: int, n: int, dtype: str) -> None:
    kind = by_numpy_name(dtype)
    configs = [forward_config(n, kind, 90)] if (rows, n, dtype) in FORWARD else []
    configs += [config] if (config := backward_config(n, kind, 90)) else []
    assert any(config.layout.cluster > 1 for config in configs)
    x, residual, dy = (draw((rows, n), dtype, seed) for seed in (0, 1, 2))
    w = draw(n, "float32", 3)
    got, expected = (results(x, residual, w, dy, i) for i in ("ptx", "xla"))
    eps = float(jnp.finfo(dtype).eps)
    for a, b in zip(got, expected, strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        np.testing.assert_allclose(a, b, rtol=2 * eps, atol=2 * eps * np.abs(b).max())


# A CTA has more rows than slots: aligned ones; those of 2, 4 and 8 bytes, whose last may end within 16 bytes.
@pytest.mark.parametrize(
    ("rows", "n", "dtype"),
    [
        (2645, 1032, "bfloat16"),
        (2645, 1025, "float16"),
        (2641, 1026, "bfloat16"),
        (1985, 515, "float32"),
        (3, 10007, "bfloat16"),
    ],
)
def test_rows_that_bulk_copies_bring(rows: int, n: int, dtype: str) -> None:
    config = backward_config(n, by_numpy_name(dtype), 90)
    assert config
    assert config.bulk
    x, dy = (draw((rows, n), dtype, seed) for seed in (0, 1))
    w = draw(n, "float32", 2)
    norm = lambda *a: jax_ptx.rms_norm(*a, eps=1e-5, implementation="ptx")
    got_dx, got_dw = jax.vjp(norm, x, w)[1](dy)
    dx, dw, size = oracle.rms_norm_grad(x, w, dy, eps=1e-5)
    assert_close(got_dx, dx, n, scale=size)
    assert_close(got_dw, dw.sum(0), n, scale=np.abs(dw).sum(0))


# Rows of 2 and 4 bytes an access; they start at every element of 16 bytes, and the last ends within them.
@pytest.mark.parametrize("weight", [None, "float32"])
@pytest.mark.parametrize(("n", "dtype"), [(2305, "bfloat16"), (4098, "float16"), (1541, "float32")])
def test_rows_that_shared_memory_takes(n: int, dtype: str, weight: str | None) -> None:
    assert forward_config(n, by_numpy_name(dtype), 90, may_stage=True).staged
    x = draw((9, n), dtype)
    w = draw(n, weight, 1) if weight else None
    launch = forward_launch(
        n=n,
        x_dtype=dtype,
        weight_dtype=weight,
        grouped=False,
        options=Options(1e-5),
        residual=False,
        out_dtype=None,
        with_rstd=True,
        target=90,
    )
    types = [jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct((9,), jnp.float32)]
    report = emulate(
        launch,
        *(x, w)[: 1 + bool(weight)],
        result_types=types,
        race_check=True,
        schedule="shuffled",
    )
    expected = oracle.rms_norm(x, w, eps=1e-5)
    assert_close(jnp.asarray(report.outputs[0]), expected, n)
    np.testing.assert_array_equal(
        report.outputs[0], jax_ptx.rms_norm(x, w, eps=1e-5, implementation="ptx")
    )
    rstd = 1 / np.sqrt(np.square(np.asarray(x, np.float64)).mean(1) + 1e-5)
    np.testing.assert_allclose(report.outputs[1], rstd, rtol=1e-6)


@pytest.mark.parametrize("n", [2305, 4097])
def test_a_rows_bits_do_not_depend_on_where_it_starts(n: int) -> None:
    x, w = draw((9, n), "bfloat16"), draw(n, "bfloat16", 1)
    norm = lambda x: jax_ptx.rms_norm(x, w, implementation="ptx")
    for first in range(1, 9):
        np.testing.assert_array_equal(norm(x)[first:], norm(x[first:]))


# A CTA's rows by bulk copies, aligned and not; a cluster's by cp.async and by bulk copies. Dw alone needs
# no sum over the row.
@pytest.mark.parametrize(("n", "dtype"), [(8193, "bfloat16"), (8193, "float32")])
def test_a_residual_changes_no_bit(n: int, dtype: str) -> None:
    """Rows that shared memory takes: with a residual it does not take them, and adds in the same order."""
    assert forward_config(n, by_numpy_name(dtype), 90, may_stage=True).staged
    x, residual, w = draw((37, n), dtype), draw((37, n), dtype, 1), draw(n, "float32", 2)
    y, added = jax_ptx.add_rms_norm(x, residual, w, implementation="ptx")
    alone = jax_ptx.rms_norm(added, w, implementation="ptx")
    np.testing.assert_array_equal(y, alone)


@pytest.mark.parametrize("need_dx", [True, False])
@pytest.mark.parametrize("n", [1032, 1025, 16384, 24576 + 16384])
def test_nothing_races_where_ctas_take_rows_by_turns(n: int, need_dx: bool) -> None:
    config = backward_config(n, by_numpy_name("bfloat16"), 90)
    assert config
    rows, runs, ctas = 2 * config.slots + 3, 2, 2 * config.layout.cluster
    launch = backward_launch(
        n=n,
        x_dtype="bfloat16",
        weight_dtype=None,
        grouped=False,
        weight_offset=0.0,
        addend=False,
        need_dx=need_dx,
        runs=runs,
        final=False,
        one_block=True,
        target=90,
    )
    assert launch
    x, dy = (draw((rows, n), "bfloat16", seed) for seed in (0, 1))
    types = [jax.ShapeDtypeStruct((rows, n), jnp.bfloat16)] if need_dx else []
    types.append(jax.ShapeDtypeStruct((ctas, n // config.layout.cluster), jnp.float32))
    report = emulate(
        launch,
        x,
        dy,
        np.ones(rows, np.float32),
        result_types=types,
        race_check=True,
        schedule="shuffled",
    )
    dw = np.asarray(report.outputs[-1]).reshape(runs, n).sum(0)
    expected = (np.asarray(x, np.float64) * np.asarray(dy, np.float64)).sum(0)
    np.testing.assert_allclose(dw, expected, atol=1e-4)


def test_the_results_do_not_depend_on_the_rows_that_come_with_a_row() -> None:
    x, w = draw((17, 131072), "bfloat16"), draw(131072, "bfloat16", 1)
    norm = lambda x: jax_ptx.rms_norm(x, w, implementation="ptx")
    np.testing.assert_array_equal(norm(x)[16:], norm(x[16:]))


def test_a_weight_for_each_of_several_rows() -> None:
    x, w = draw((2, 3, 131072), "float32"), draw((2, 131072), "float32", 1)
    got = jax.vmap(lambda *a: jax_ptx.rms_norm(*a, implementation="ptx"))(x, w)
    for i in range(2):
        alone = jax_ptx.rms_norm(x[i], w[i], implementation="ptx")
        np.testing.assert_array_equal(got[i], alone)


@pytest.mark.parametrize("asked", ["hopper", "sm_75", "90x"])
def test_a_target_that_is_none(asked: str, monkeypatch) -> None:
    monkeypatch.setenv(target.VARIABLE, asked)
    with pytest.raises(ValueError, match=f"JAX_PTX_TARGET must be .* got '{asked}'"):
        target.device_target()


def test_sixteen_ctas_share_a_row_where_the_gpu_has_room(monkeypatch) -> None:
    f32 = by_numpy_name("float32")
    sizes = {wide: backward_config(131072, f32, 90, wide=wide) for wide in (False, True)}
    assert {wide: c and c.layout.cluster for wide, c in sizes.items()} == {False: 8, True: 16}
    monkeypatch.delenv(target.VARIABLE, raising=False)
    for sms, wide in ((132, True), (78, False), (0, False)):
        monkeypatch.setattr(target, "_least_sms", lambda sms=sms: sms)
        assert target.has_wide_clusters() is wide
    monkeypatch.setenv(target.VARIABLE, "sm_90")
    monkeypatch.setattr(target, "_least_sms", lambda: 132)
    assert not target.has_wide_clusters()
