"""The forward kernel for rows that start anywhere within 16 bytes: through shared memory (sm_90)."""

from __future__ import annotations

from jax_ptx.dsl import ptx, reg
from jax_ptx.dsl.tile import Tensor
from jax_ptx.ops import vectors
from jax_ptx.ops.bulk import BulkRing, store_row
from jax_ptx.ops.layout import RowLayout
from jax_ptx.ops.reduce import row_sum
from jax_ptx.ops.rms_norm.elementwise import Finish, group_of, rstd_of, sum_of_squares
from jax_ptx.ops.rms_norm.options import Options
from jax_ptx.ops.rows import Row
from jax_ptx.ops.vectors import READ, elements_of, first_of
from jax_ptx.types import u32, u64


def staged(
    layout: RowLayout,
    options: Options,
    grouped: bool,
    *,
    x: Tensor,
    y: Tensor,
    weight: Tensor | None = None,
    rstd: Tensor | None = None,
) -> None:
    """The kernel's body: one bulk copy brings a CTA's row, another takes the result from the same place.

    Global memory is accessed by 16 bytes although threads take elements by their number in the row, so that
    the order of summation is the same wherever a row starts.
    """
    in_cta = reg.from_(ptx.special.tid.x(), u32)
    this, number = Row(layout, in_cta), reg.scalar(u64)
    ptx.inst.cvt.u64.u32(number, reg.from_(ptx.special.ctaid.x(), u32))
    px, py, pw = elements_of(x, READ), elements_of(y), first_of(weight)
    row_bytes, rows = layout.n * px.bytes, ptx.run_time_dim("rows")
    end = px.pointer + rows * row_bytes
    for part in (px, py):
        part.skip(number, layout.n)
    ring = BulkRing(layout, [px], 0, in_cta, 1, [end])
    ring.fill(number < rows)
    if pw:
        this.skip_to_own(pw)
        if grouped:
            pw.skip(group_of(number, layout.n), layout.n)
    inside = this.predicates(None)
    slot, own = ring.slot(), ring.own_elements()
    ptx.bar.sync(0)  # the mbarrier is there
    (row,) = ring.read(inside)
    total = sum_of_squares(row, px.dtype)
    row_sum(total, in_cta, layout.threads)
    row_rstd = rstd_of(total, layout.n, options.eps)
    finish = Finish(options, px.dtype, py, pw, row_rstd)
    for step, (packed, p) in enumerate(zip(row, inside, strict=True)):
        offset = step * layout.stride
        values = vectors.pack(finish.values(packed, offset, layout.vector, p), px.dtype)
        own.store_shared(offset * px.bytes, values, layout.vector, p)
    store_row(vectors.Elements(slot, px.dtype), py.pointer, row_bytes, in_cta)
    if rstd is not None:
        out = elements_of(rstd)
        out.skip(number)
        out.store(0, [row_rstd], in_cta == 0)
    ptx.ret()
