"""The table of docs/transformations.md: transformation x operands x where it runs."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_ptx
from tests.ops.test_rms_norm_values import draw
from tests.tolerance import assert_close
from tests.transformations import table
from tests.transformations.rows import OPERANDS, ROWS, Case, Row

N = 6
EPS = 1e-5
# It is no linear function of x.
REFUSED = {("linear_transpose", "x only"), ("linear_transpose", "both")}


def formula(x: Any, w: Any) -> Any:
    """What the op computes, as anyone would write it; in float64 the oracle, with JAX's derivatives."""
    mean = jnp.mean(x * x, axis=-1, keepdims=True)
    return x / jnp.sqrt(mean + jnp.asarray(EPS, x.dtype)) * w.reshape((1,) * (x.ndim - 1) + w.shape)


@functools.cache
def expected(plain: Row, operands: str, n_devices: int) -> Any:
    cpu = jax.devices("cpu")[0]
    with jax.enable_x64(True), jax.default_device(cpu):
        x, w = (jnp.asarray(v, jnp.float64) for v in arguments())
        case = Case(formula, (x, w), OPERANDS[operands], (cpu,) * n_devices)
        return jax.tree.map(np.asarray, plain(case))


def arguments() -> tuple[np.ndarray, np.ndarray]:
    return np.asarray(draw((4, 2, N), "float32")), np.asarray(draw(N, "float32", 1))


def per_row_devices(devices: list[Any]) -> tuple[Any, ...]:
    """As many as divide the four rows."""
    return tuple(devices[: 1 << (min(len(devices), 4).bit_length() - 1)])


RUNS = [
    pytest.param("CPU emulator", "cpu", "ptx", id="emulator"),
    pytest.param("XLA path", "cpu", "xla", id="xla"),
    pytest.param("H200", "gpu", None, id="gpu", marks=pytest.mark.gpu),
]


@pytest.mark.parametrize(("column", "platform", "implementation"), RUNS)
@pytest.mark.parametrize("operands", OPERANDS)
@pytest.mark.parametrize("name", ROWS)
def test_row(
    name: str, operands: str, column: str, platform: str, implementation: Any, record_property
) -> None:
    devices = jax.devices(platform)
    norm = lambda x, w: jax_ptx.rms_norm(x, w, eps=EPS, implementation=implementation)
    refused = (name, operands) in REFUSED
    record_property(table.PROPERTY, [name, operands, column, "refused" if refused else "passed"])
    with jax.default_device(devices[0]):
        values = jax.tree.map(jnp.asarray, arguments())  # committed to no device
        case = Case(norm, values, OPERANDS[operands], per_row_devices(devices))
        if refused:
            # Of the plain formula JAX says it in its own way.
            said = None if implementation == "xla" else "not linear in x"
            with pytest.raises(Exception, match=said):
                ROWS[name][0](case)
            return
        got = ROWS[name][0](case)
    wanted = expected(ROWS[name][1], operands, len(case.devices))
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    for g, e in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        # Derivatives of derivatives: the errors of many sums, relative to the largest value.
        assert_close(g, np.asarray(e, np.float64), 10**6, scale=np.abs(e).max())


def test_the_page_lists_every_row_and_none_failed() -> None:
    cells, _ = table.read()
    rows = [(name, operands) for name in ROWS for operands in OPERANDS]
    assert list(dict.fromkeys(cell[:2] for cell in cells)) == rows, (
        f"docs/transformations.md has other rows: pytest tests/transformations {table.OPTION}"
    )
    for (name, operands, column), value in cells.items():
        good = "refused" if (name, operands) in REFUSED else "passed"
        assert value in (good, table.NOT_RUN), f"{name}, {operands}, {column}: {value}"
        assert value == good or column == "H200", f"{name}, {operands} did not run: {column}"
