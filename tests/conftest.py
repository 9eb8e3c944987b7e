"""Settings of the whole suite: eight fake devices, strict promotion, and where a GPU test may run."""

from __future__ import annotations

import os

# Before jax is imported: sharding tests need several devices.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax
import pytest

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


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
