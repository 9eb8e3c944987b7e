"""One process compiles, exports and serialises; two others, of other hash seeds, run what it left."""

from __future__ import annotations

import base64
import os
import pickle
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.ops import oracle
from tests.processes import programs
from tests.tolerance import assert_close

# The processes run once, whichever tests a worker of pytest-xdist is given.
pytestmark = pytest.mark.xdist_group("processes")

SEEDS = ("0", "1", "4242")


def run(module: str, folder: Path, seed: str) -> str:
    environment = {
        **os.environ,
        "PYTHONHASHSEED": seed,
        "JAX_PLATFORMS": folder.name,  # a process on the CPU has no GPU, even where there is one
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # there are three, and this one
        "JAX_COMPILATION_CACHE_DIR": str(folder / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    command = [sys.executable, "-m", f"tests.processes.{module}", str(folder)]
    child = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert child.returncode == 0, child.stderr
    return child.stdout


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the author left its work; its name is the platform."""
    folder = tmp_path_factory.mktemp("processes") / request.param
    folder.mkdir()
    for name, value in zip("xw", programs.operands(), strict=True):
        np.save(folder / f"{name}.npy", value)
    run("author", folder, SEEDS[0])
    return folder


@pytest.fixture(scope="module")
def readers(folder: Path) -> list[dict[str, Any]]:
    """What two fresh processes found."""
    with ThreadPoolExecutor() as pool:
        outputs = pool.map(lambda seed: run("reader", folder, seed), SEEDS[1:])
        return [pickle.loads(base64.b64decode(output)) for output in outputs]


@pytest.fixture(scope="module")
def author(folder: Path) -> dict[str, Any]:
    """The author's results, which are checked against float64."""
    results = pickle.loads((folder / "results.pickle").read_bytes())
    x, w = programs.operands()
    exact = oracle.rms_norm(x, w, eps=1e-6)
    assert_close(results["forward"], exact, programs.N)
    dx, dw, size = oracle.rms_norm_grad(x, w, 3 * exact**2, eps=1e-6)
    # The cotangent comes from a float32 result: a few units more than of one rounding.
    assert_close(results["gradient"][0], dx, 100 * programs.N, scale=size)
    assert_close(results["gradient"][1], dw.sum(0), 100 * programs.N, scale=np.abs(dw).sum(0))
    np.testing.assert_array_equal(results["users_kernel"], 2 * (x + w))
    return results


def assert_same(got: Any, expected: Any) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, got, expected)


def test_the_compilation_cache_has_one_entry_a_function(folder: Path, readers, author) -> None:
    for reader in readers:
        assert_same(reader["cached"], author)
        assert reader["hits"] == len(programs.PROGRAMS)
    entries = Counter(p.name.rsplit("-", 2)[0] for p in (folder / "cache").glob("*-cache"))
    assert [entries[f"jit_{name}"] for name in programs.PROGRAMS] == [1, 1, 1], entries


def test_an_export_runs_where_the_op_was_never_traced(readers, author) -> None:
    for reader in readers:
        assert reader["texts written"] == 0
        assert_same(reader["exported"], author)


def test_an_exports_second_derivative(readers) -> None:
    x, w = programs.operands()
    norm = lambda w: (jax.grad(programs.loss)(x, w) ** 2).sum()
    expected = jax.jit(jax.grad(norm))(w)
    for reader in readers:
        np.testing.assert_allclose(reader["second order"], expected, rtol=1e-4)


def test_an_export_with_a_symbolic_number_of_rows(readers) -> None:
    x, w = programs.operands()
    for reader in readers:
        for rows, got in reader["symbolic"].items():
            expected = jax.value_and_grad(programs.loss, (0, 1))(x[:rows], w)
            jax.tree.map(
                lambda g, e: np.testing.assert_allclose(g, e, rtol=1e-4, atol=1e-4), got, expected
            )


def test_an_export_says_what_it_lacks(folder: Path, readers) -> None:
    other = "cpu" if folder.name == "cuda" else "cuda"
    for reader in readers:
        assert "jax_ptx_launch" in reader["without the library"]
        assert f"'{other}'" in reader["exported for another platform"]


def test_a_serialised_executable_runs_in_another_process(readers, author) -> None:
    for reader in readers:
        assert_same(reader["executables"], author)


def test_executables_outlive_the_functions_they_were_made_from(folder: Path, author) -> None:
    results, gone = pickle.loads((folder / "collected.pickle").read_bytes())
    assert gone
    assert_same(results, author)
