"""Row-wise programs as authors of this style of language write them, for the tests of the whole."""

from __future__ import annotations

from jax_ptx import Kernel, Tile, kernel, ptx, reg, smem
from jax_ptx.types import f32, u32


def scaled_rows(rows_per_cta: int = 1, arch: str = "auto") -> Kernel:
    """y = x * w / sum(x): some rows a CTA, string dimensions, every kind of statement."""

    @kernel(
        in_specs=(Tile("B", "N", f32), Tile("N", f32)),
        out_specs=(Tile("B", "N", f32),),
        grid=lambda B, N: -(-B // rows_per_cta),  # noqa: N803
        block=(64, 1, 1),
        arch=arch,
    )
    def scaled_rows(X, W, Y, *, bias=0.0):  # noqa: N803
        n_rows, n = X.shape
        partials = smem.alloc(f32, (2, 1))
        px, pw, py = ptx.global_ptrs(X, W, Y)
        tid = reg.from_(ptx.special.tid.x(), u32)
        first_row = reg.scalar(u32)
        ptx.inst.mul.lo.u32(first_row, reg.from_(ptx.special.ctaid.x(), u32), rows_per_cta)
        for r in range(rows_per_cta):
            row = first_row + r
            with ptx.if_(row < n_rows):
                offset = row * (n * 4)
                x_row, y_row = px + offset, py + offset
                total = reg.scalar(f32, init=bias)
                for i in ptx.range_(tid, n, 64):
                    x = reg.scalar(f32)
                    ptx.inst.ld.global_.f32(x, ptx.addr(x_row + i * 4))
                    total += x
                ptx.warp.reduce_sum(total)
                with ptx.if_((tid & 31) == 0):
                    partials[tid >> 5, 0] = total
                ptx.bar.sync(0)
                total = partials[0, 0] + partials[1, 0]
                scale = 1.0 / total
                for i in ptx.range_(tid, n, 64):
                    x, w = reg.array(f32, 2)
                    off = i * 4
                    ptx.inst.ld.global_.f32(x, ptx.addr(x_row + off))
                    ptx.inst.ld.global_.f32(w, ptx.addr(pw + off))
                    ptx.inst.st.global_.f32(ptx.addr(y_row + off), x * scale * w)
                ptx.bar.sync(0)
        ptx.ret()

    return scaled_rows
