"""Settings of the whole suite: eight fake devices, strict promotion, and where a GPU test may run."""

from __future__ import annotations

import os
from importlib.metadata import version

# Before jax is imported: sharding tests need several devices. Most of the suite's time is XLA's, for which
# see also below: a third of it goes into the newer of two ways to make a fusion's code, which jaxlib 0.11
# can no longer do without.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_force_host_platform_device_count=8"
    + " --xla_cpu_use_fusion_emitters=false"
    * ("JAX_DISABLE_MOST_OPTIMIZATIONS" not in os.environ and version("jaxlib") < "0.11"),
)

import jax
import pytest

from tests.transformations import table

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(table.OPTION, action="store_true", help="write docs/transformations.md")


def pytest_configure(config: pytest.Config) -> None:
    # The matrix (noxfile.py) runs with all optimisations.
    if "JAX_DISABLE_MOST_OPTIMIZATIONS" not in os.environ and gpu_missing():
        jax.config.update("jax_disable_most_optimizations", True)
    if config.getoption(table.OPTION) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(table.Plugin())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many examples Hypothesis ran, over all tests and workers."""
    passed = terminalreporter.stats.get("passed", [])
    counts = [dict(report.user_properties).get("examples", 0) for report in passed]
    if sum(counts):
        terminalreporter.write_line(f"drawn examples: {sum(counts)}")


def gpu_missing() -> str | None:
    """Why no GPU test can run here; None if it can."""
    try:
        jax.devices("gpu")
    except RuntimeError as error:
        return f"no NVIDIA GPU for JAX: {str(error).splitlines()[0]}"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    reason = gpu_missing() if marked else None
    if reason:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def x64():
    """float64 enabled for the length of a test."""
    with jax.enable_x64(True):
        yield
