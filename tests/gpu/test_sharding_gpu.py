"""rms_norm with its rows on several GPUs: the same values, and no row leaves its GPU."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_ptx
from tests.ops import oracle
from tests.ops.test_rms_norm_values import draw
from tests.tolerance import assert_close

pytestmark = pytest.mark.gpu

N = 4096


@pytest.fixture
def gpus() -> list[jax.Device]:
    gpus = jax.devices("gpu")
    if len(gpus) < 2:
        pytest.skip("needs two GPUs")
    return gpus[: 2 * (len(gpus) // 2)]


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("add", [False, True])
def test_rows_on_several_gpus(gpus: list[jax.Device], kind: AxisType, add: bool) -> None:
    mesh = jax.make_mesh((len(gpus),), ("d",), axis_types=(kind,), devices=gpus)
    x, residual, dy = (draw((512, N), "bfloat16", seed) for seed in range(3))
    w = draw(N, "bfloat16", 3)
    rows = lambda v: jax.device_put(v, NamedSharding(mesh, P("d")))
    whole = lambda v: jax.device_put(v, NamedSharding(mesh, P()))

    def both_ways(x, residual, w, dy):
        if not add:
            y, pull = jax.vjp(jax_ptx.rms_norm, x, w)
            return y, *pull(dy)
        (y, added), pull = jax.vjp(jax_ptx.add_rms_norm, x, residual, w)
        dx, _, dw = pull((dy, jnp.zeros_like(added)))
        return y, dx, dw

    with jax.set_mesh(mesh):
        operands = rows(x), rows(residual), whole(w), rows(dy)
        compiled = jax.jit(both_ways).lower(*operands).compile()
        text = compiled.as_text() or ""
        y, dx, dw = compiled(*operands)
    assert not re.search("all-gather|all-to-all|collective-permute", text)
    assert "all-reduce" in text  # of dw
    assert len(y.sharding.device_set) == len(dx.sharding.device_set) == len(gpus)
    total = x + residual if add else x
    assert_close(y, oracle.rms_norm(total, w, eps=1e-6), N)
    exact_dx, exact_dw, size = oracle.rms_norm_grad(total, w, dy, eps=1e-6)
    assert_close(dx, exact_dx, N, scale=size)
    assert_close(dw, exact_dw.sum(0), N, scale=np.abs(exact_dw).sum(0))
    np.testing.assert_array_equal(y, jax.jit(jax_ptx.rms_norm)(jnp.asarray(total), jnp.asarray(w)))


def test_the_feature_axis_on_several_gpus(gpus: list[jax.Device]) -> None:
    mesh = jax.make_mesh((len(gpus),), ("d",), axis_types=(AxisType.Explicit,), devices=gpus)
    x, w = draw((64, N), "bfloat16"), draw(N, "bfloat16", 1)
    with jax.set_mesh(mesh):
        operands = (
            jax.device_put(v, NamedSharding(mesh, P(*(None,) * (v.ndim - 1), "d"))) for v in (x, w)
        )
        compiled = jax.jit(jax_ptx.rms_norm).lower(*(operands := tuple(operands))).compile()
        y = compiled(*operands)
    assert "all-gather" not in (compiled.as_text() or "")
    assert_close(y, oracle.rms_norm(x, w, eps=1e-6), N)
