"""The original layers promote dtypes and ranks as JAX does by default, so here that is allowed."""

from __future__ import annotations

import jax
import pytest


@pytest.fixture(autouse=True)
def default_promotion():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield
