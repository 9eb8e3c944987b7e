"""What the processes of these tests run: a forward pass, a gradient, a kernel of a user's."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_ptx
from jax_ptx import Tile, kernel, ptx, reg
from jax_ptx.types import f32, u32

N = 48


def operands(rows: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """x and the weight, as NumPy arrays: making them compiles nothing."""
    draw = np.random.default_rng(rows).standard_normal
    return draw((rows, N), np.float32), draw(N, np.float32)


def forward(x: Any, w: Any) -> jax.Array:
    return jax_ptx.rms_norm(x, w, implementation="ptx")


def loss(x: Any, w: Any) -> jax.Array:
    return (forward(x, w) ** 3).sum()


def gradient(x: Any, w: Any) -> tuple[jax.Array, jax.Array]:
    return jax.grad(loss, (0, 1))(x, w)


ADDED: dict[str, Any] = {
    "in_specs": (Tile(N, f32), Tile(N, f32)),
    "out_specs": (Tile(N, f32),),
    "block": (N, 1, 1),
}


def add(x: Any, w: Any, y: Any) -> None:
    """The body of a kernel: y = x + w, one element a thread."""
    offset = reg.from_(ptx.special.tid.x(), u32) * 4
    px, pw, py = (p + offset for p in ptx.global_ptrs(x, w, y))
    a, b = reg.scalar(f32), reg.scalar(f32)
    ptx.inst.ld.global_.f32(a, ptx.addr(px))
    ptx.inst.ld.global_.f32(b, ptx.addr(pw))
    ptx.inst.st.global_.f32(ptx.addr(py), a + b)


@kernel(**ADDED)
def added(x, w, y):
    add(x, w, y)


def users_kernel(x: Any, w: Any) -> jax.Array:
    return jax.vmap(added, (0, None))(x, w) * jnp.float32(2)


PROGRAMS = {"forward": forward, "gradient": gradient, "users_kernel": users_kernel}
