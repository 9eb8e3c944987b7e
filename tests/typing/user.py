"""A user's module under pyright's strict mode: `make lint` checks it, and `make wheel` against the wheel."""

from __future__ import annotations

from typing import assert_type

import jax

import jax_ptx
from jax_ptx import Kernel, Launch, RunTime, Tensor, Tile, kernel, ptx, ptx_kernel, reg, smem, types
from jax_ptx.types import f32, u32

N = 256
TEXT = ".version 7.0\n.target sm_80\n.address_size 64\n"


@kernel(
    in_specs=(Tile("rows", N, f32),),
    out_specs=(Tile("rows", f32),),
    grid=lambda rows: rows,
    block=N,
)
def sums(x: Tensor, y: Tensor, *, scale: float = 1.0) -> None:
    px, py = ptx.global_ptrs(x, y)
    row = reg.from_(ptx.special.ctaid.x(), u32)
    thread = reg.from_(ptx.special.tid.x(), u32)
    partials = smem.alloc(f32, (N // 32,))
    value = reg.scalar(f32)
    ptx.inst.ld.global_.f32(value, ptx.addr(px + row * (4 * N) + thread * 4))
    ptx.warp.reduce_sum(value)
    with ptx.if_((thread & 31) == 0):
        partials[thread >> 5] = value
    ptx.bar.sync()
    with ptx.if_(thread == 0):
        total = reg.scalar(f32, init=0.0)
        for i in ptx.range_(N // 32):
            total += partials[i]
        ptx.inst.st.global_.f32(ptx.addr(py + row * 4), total * scale)
    with ptx.else_():
        ptx.ret(~(thread < 0))


def elements(specs: tuple[Tile, ...]) -> list[int]:
    return [dim for spec in specs for dim in spec.shape if isinstance(dim, int)]


def text_of(k: Kernel) -> str:
    record = k.launch(rows=3)
    assert_type(record, Launch)
    assert_type(k.block, tuple[int, int, int])
    return record.ptx + k.ptx(rows=3)


def normalized(x: jax.Array, weight: jax.Array) -> jax.Array:
    y = jax_ptx.rms_norm(x, weight, eps=1e-6, implementation="xla")
    assert_type(y, jax.Array)
    total: jax.Array = sums(x, scale=0.5)
    return y + total[:, None]


def dtypes() -> dict[str, types.DType]:
    return {"f32": types.f32, "run time": Tile(RunTime("rows"), N, f32).dtype}


copied = ptx_kernel(
    TEXT,
    in_specs=(Tile(N, f32),),
    out_specs=(Tile(N, f32),),
    grid=1,
    block=N,
)
