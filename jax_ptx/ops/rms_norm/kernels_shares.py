"""The forward kernel of few rows: several CTAs share a row, of which each sums all and finishes a part.

A row is read from L2 by all of them and summed in the order of the kernel for many rows, so that it has the
same bits; what follows the sum takes as long as the steps of a thread, and each CTA has few of them.
"""

from __future__ import annotations

from jax_ptx.dsl import ptx, reg
from jax_ptx.dsl.reg import Reg
from jax_ptx.dsl.tile import Tensor
from jax_ptx.ops.layout import RowLayout
from jax_ptx.ops.reduce import row_sum
from jax_ptx.ops.rms_norm.elementwise import (
    Finish,
    Source,
    group_of,
    inverse_scale,
    rstd_of,
    sum_of_squares,
)
from jax_ptx.ops.rms_norm.options import Options
from jax_ptx.ops.rows import Row
from jax_ptx.ops.vectors import elements_of, first_of
from jax_ptx.types import u32, u64


def by_shares(
    layout: RowLayout,
    shares: int,
    options: Options,
    grouped: bool,
    *,
    x: Tensor,
    y: Tensor,
    residual: Tensor | None = None,
    added: Tensor | None = None,
    weight: Tensor | None = None,
    scale: Tensor | None = None,
    rstd: Tensor | None = None,
) -> None:
    """The kernel's body: CTA (r, k) has row r, and of each thread's steps the k-th of `shares` parts."""
    in_cta = reg.from_(ptx.special.tid.x(), u32)
    number, share = reg.scalar(u64), reg.from_(ptx.special.ctaid.y(), u32)
    ptx.inst.cvt.u64.u32(number, reg.from_(ptx.special.ctaid.x(), u32))
    this, steps = Row(layout, in_cta), layout.steps // shares
    # Without a policy for L2, which would have to be made before the first load: few rows fit there.
    source = Source(elements_of(x), first_of(residual))
    py, p_added, pw = elements_of(y), first_of(added), first_of(weight)
    for part in (source.x, source.residual, py, p_added):
        if part:
            part.skip(number, layout.n)
            this.skip_to_own(part)
    if pw:
        this.skip_to_own(pw)
        if grouped:
            pw.skip(group_of(number, layout.n), layout.n)
    for part in (py, p_added, pw):
        if part:
            part.skip(share, steps * layout.stride)

    inside = this.predicates(None)
    loaded = source.load(this, inside)
    own: list[Reg | None] = [None] * steps
    if inside[-1] is not None:
        own[-1] = inside[-1] | (share < shares - 1)
    weights = this.load(pw, own) if pw else [None] * steps
    total = sum_of_squares(loaded, source.dtype)
    mine = _share_of(loaded, share, shares)
    row_sum(total, in_cta, layout.threads, alone=True)
    row_rstd = rstd_of(total, layout.n, options.eps)
    inverse = inverse_scale(scale, row_rstd)
    finish = Finish(options, source.dtype, py, pw, row_rstd, inverse)
    for step, packed in enumerate(mine):
        offset = step * layout.stride
        if p_added:
            p_added.store_packed(offset, packed, layout.vector, own[step])
        finish.store(packed, offset, layout.vector, own[step], weights[step])
    if rstd is not None:
        out = elements_of(rstd)
        out.skip(number)
        out.store(0, [row_rstd], (in_cta + share) == 0)
    ptx.ret()


def _share_of(loaded: list[list[Reg]], share: Reg, shares: int) -> list[list[Reg]]:
    """This CTA's part of a thread's steps."""
    steps = len(loaded) // shares
    mine = [[reg.from_(each, each.dtype) for each in packed] for packed in loaded[:steps]]
    for other in range(1, shares):
        chosen = share == other
        for packed, others in zip(mine, loaded[other * steps :], strict=False):
            for register, value in zip(packed, others, strict=True):
                select = getattr(ptx.inst.selp, register.dtype.name)
                select(register, value, register, chosen)
    return mine
