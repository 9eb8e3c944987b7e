"""RMS norm as a kernel of one's own: one CTA a row, the row kept in registers.

`Y[b, i] = X[b, i] * W[i] / sqrt(mean(X[b, :]**2) + eps)` in float32. Runs each case under jax.jit and, where
PyTorch is installed, on its tensors; on a machine without a GPU the same PTX runs in the emulator.
The library's own operation, for any dtype and shape, is `jax_ptx.rms_norm`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from runner import Example, run

from jax_ptx import Kernel, Tile, kernel, ptx, reg, smem
from jax_ptx.types import f32, u32

CASES = ((4, 64), (16, 512), (32, 1024), (128, 2048), (256, 4096))
WARP = 32
MAX_THREADS = 1024


def pick_threads(n_accesses: int) -> int:
    """A power of two: about four accesses a thread, and whole warps for the butterfly."""
    threads = WARP
    while threads < MAX_THREADS and threads * 4 < n_accesses:
        threads *= 2
    return threads


def build_rms_norm(B: int, N: int, *, eps: float = 1e-6, arch: str = "auto") -> Kernel:
    """The kernel for B rows of length N; call it as `k(x, w)` with x `[B, N]` and w `[N]`."""
    if B < 1 or N < 1:
        raise ValueError(f"build_rms_norm: B and N must be positive, got {B} and {N}")
    vector = (
        4 if N % 4 == 0 else 1
    )  # floats in one access; 16 bytes where every row is aligned to them
    n_accesses = N // vector
    threads = pick_threads(n_accesses)
    warps = threads // WARP
    steps = -(-n_accesses // threads)

    @kernel(
        in_specs=(Tile(B, N, f32), Tile(N, f32)),
        out_specs=(Tile(B, N, f32),),
        grid=(B, 1, 1),
        block=(threads, 1, 1),
        arch=arch,
    )
    def rms_norm(X, W, Y):
        partials = smem.alloc(f32, (warps,))
        px, pw, py = ptx.global_ptrs(X, W, Y)
        tid = reg.from_(ptx.special.tid.x(), u32)
        row = reg.from_(ptx.special.ctaid.x(), u32)
        first = tid * (4 * vector)  # byte offset of this thread's first access
        row_offset = row * (4 * N)
        px += row_offset + first
        py += row_offset + first
        pw += first

        def access(instruction, step, pointer, values):
            """One load or store of this thread; the row's last step may not reach every thread."""
            inside = None
            if (step + 1) * threads > n_accesses:
                inside = tid < n_accesses - step * threads
            where = ptx.addr(pointer, step * threads * 4 * vector)
            what = values if vector == 4 else values[0]
            wide = instruction.v4.f32 if vector == 4 else instruction.f32
            operands = (where, what) if instruction is store else (what, where)
            wide(*operands, pred=inside)

        load, store = ptx.inst.ld.global_, ptx.inst.st.global_

        # Pass over the row: every load is issued before the first value is used.
        x = [[reg.scalar(f32, init=0.0) for _ in range(vector)] for _ in range(steps)]
        for step in range(steps):
            access(load, step, px, x[step])
        sum_sq = reg.scalar(f32, init=0.0)
        for value in (v for values in x for v in values):
            ptx.inst.fma.rn.f32(sum_sq, value, value, sum_sq)

        # One partial a warp, then every warp sums the partials.
        ptx.warp.reduce_sum(sum_sq)
        with ptx.if_((tid & (WARP - 1)) == 0):
            partials[tid >> 5] = sum_sq
        ptx.bar.sync(0)
        total = partials[tid & (warps - 1)]
        if warps > 1:
            ptx.warp.reduce_sum(total, width=warps)

        rstd = reg.scalar(f32)
        ptx.inst.rsqrt.approx.f32(rstd, total * (1.0 / N) + eps)
        for step in range(steps):
            w = [reg.scalar(f32, init=0.0) for _ in range(vector)]
            access(load, step, pw, w)
            scaled = [value * (rstd * scale) for value, scale in zip(x[step], w, strict=True)]
            access(store, step, py, scaled)
        ptx.ret()

    return rms_norm


def inputs(B: int, N: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(B * 8191 + N)
    x = rng.standard_normal((B, N), dtype=np.float32)
    w = 1 + 0.1 * rng.standard_normal(N, dtype=np.float32)
    return x, w


def jax_formula(x, w, eps: float = 1e-6):
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps) * w


def torch_formula(x, w, eps: float = 1e-6):
    from torch.nn.functional import rms_norm

    return rms_norm(x, w.shape, w, eps)


if __name__ == "__main__":
    run(Example(build_rms_norm, inputs, jax_formula, torch_formula, CASES))
