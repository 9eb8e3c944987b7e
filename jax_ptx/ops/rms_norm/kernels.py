"""The forward kernel: `y = x * rstd * weight`, one read of x where the row fits in registers."""

from __future__ import annotations

import functools

from jax_ptx import types
from jax_ptx.dsl import ptx, reg
from jax_ptx.dsl.reg import Reg
from jax_ptx.dsl.tile import RunTime, Tensor, Tile
from jax_ptx.launch import Launch
from jax_ptx.ops import vectors
from jax_ptx.ops.declare import MAX_GRID, launch_of
from jax_ptx.ops.layout import PORTABLE, RowLayout
from jax_ptx.ops.reduce import row_sum
from jax_ptx.ops.rms_norm.config import ForwardConfig, forward_config
from jax_ptx.ops.rms_norm.elementwise import (
    Finish,
    Source,
    group_of,
    inverse_scale,
    rstd_of,
    sum_of_squares,
)
from jax_ptx.ops.rms_norm.kernels_shares import by_shares
from jax_ptx.ops.rms_norm.kernels_staged import staged
from jax_ptx.ops.rms_norm.kernels_turns import by_turns
from jax_ptx.ops.rms_norm.options import Options
from jax_ptx.ops.rows import Predicates, Row
from jax_ptx.ops.vectors import READ, elements_of, first_of
from jax_ptx.types import f32, u32


@functools.cache
def forward_launch(
    *,
    n: int,
    x_dtype: str,
    weight_dtype: str | None,
    grouped: bool,
    options: Options,
    residual: bool,
    out_dtype: str | None,
    with_rstd: bool,
    target: int = PORTABLE,
    shares: int = 1,
) -> Launch:
    """The launch for rows of n elements, however many there are.

    Operands are x, the residual, the weight and the scale; results are y, `x + residual` and rstd, as
    far as they are asked for.

    Args:
        n: elements of a row.
        x_dtype: name of x's, the residual's and their sum's dtype.
        weight_dtype: name of the weight's dtype; None: there is no weight.
        grouped: the weight has several rows, each for as many consecutive rows of x.
        options: what is computed.
        residual: whether there is a residual, which is added to x, and their sum a result.
        out_dtype: name of the 8-bit dtype that y, divided by a scale, is rounded to; None: x's.
        with_rstd: whether `1 / sqrt(mean + eps)` of each row is a result.
        target: the GPU's.
        shares: into how many parts a row is cut, each for a CTA (see `config.row_shares`).
    """
    x_type = types.by_numpy_name(x_dtype)
    # What is added has rows of its own to stage, and 8-bit elements start elsewhere within 16 bytes.
    config = forward_config(n, x_type, target, may_stage=not residual and out_dtype is None)
    layout = config.layout
    if shares not in config.shares(x_type):
        raise ValueError(
            f"rms_norm: shares of a row of {n} must be one of {config.shares(x_type)}, got {shares}"
        )
    rows = Tile(RunTime("rows"), n, x_type)
    inputs, outputs = {"x": rows}, {"y": rows}
    if residual:
        inputs["residual"] = outputs["added"] = rows
    inputs |= weight_tile(n, weight_dtype, grouped)
    if out_dtype:
        inputs["scale"] = Tile(f32)
        outputs["y"] = Tile(RunTime("rows"), n, types.by_numpy_name(out_dtype))
    if with_rstd:
        outputs["rstd"] = Tile(RunTime("rows"), vectors.wide_type(x_type))
    if config.staged:
        body = functools.partial(staged, layout, options, grouped)
    elif shares > 1:
        body = functools.partial(by_shares, layout, shares, options, grouped)
    else:
        body = functools.partial(by_turns if config.slots else _forward, config, options, grouped)
    return launch_of(
        "add_rms_norm" if residual else "rms_norm",
        inputs,
        outputs,
        body,
        grid=(config.runs * layout.cluster if config.slots else MAX_GRID, shares, 1),
        block=(layout.cta_threads, 1, 1),
        cluster=(layout.cluster, 1, 1),
        rows_per_cta=0 if config.slots else layout.rows,
    )


def weight_tile(n: int, weight_dtype: str | None, grouped: bool) -> dict[str, Tile]:
    """The weight's tile, if there is a weight."""
    if weight_dtype is None:
        return {}
    weight_type = types.by_numpy_name(weight_dtype)
    tile = Tile(RunTime("groups"), n, weight_type) if grouped else Tile(n, weight_type)
    return {"weight": tile}


def _forward(
    config: ForwardConfig,
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
    """The kernel's body."""
    layout = config.layout
    px = elements_of(x, READ, no_allocate=config.large)
    source = Source(px, first_of(residual, READ), first_of(added))
    py, pw = elements_of(y, "first" if config.large else None), first_of(weight)
    in_cta = reg.from_(ptx.special.tid.x(), u32)
    # Several rows of a CTA have threads that are a power of two each, one row has any number of warps.
    mask = layout.threads - 1
    this = Row(layout, in_cta if layout.threads & mask else in_cta & mask)
    number, exists = _row_number(layout, in_cta)
    for part in (*source.moving, py):
        part.skip(number, layout.n)
        this.skip_to_own(part)
    if pw:
        this.skip_to_own(pw)
        if grouped:
            pw.skip(group_of(number, layout.n), layout.n)

    predicates = [] if config.pass_steps else this.predicates(exists)
    kept: list[list[Reg]] = []
    if pw and residual is None and config.weight_first and pw.bytes <= source.x.bytes:
        kept = this.load(pw, predicates, written=True)
        ptx.inst.bar.warp.sync(0xFFFFFFFF)  # which such loads do not pass
    loaded = source.load(this, predicates, in_order=bool(kept))
    if config.pass_steps:
        total = _sum_squares_looped(this, source, config.pass_steps)
    else:
        total = sum_of_squares(loaded, source.dtype)
    in_order = config.weight_in_order(residual=residual is not None)

    def weights_ahead(step: int) -> list[Reg] | None:
        """A step's weight, if it is loaded ahead; a residual leaves no registers for that."""
        if kept:
            return kept[step] if step < len(kept) else None
        if pw is None or not in_order or residual is not None or step >= len(loaded):
            return None
        return pw.load(step * layout.stride, layout.vector, predicates[step], written=True)

    following = weights_ahead(0)
    row_sum(total, in_cta, layout.threads, alone=True)
    row_rstd = rstd_of(total, layout.n, options.eps)
    finish = Finish(
        options,
        source.dtype,
        py,
        pw,
        row_rstd,
        inverse_scale(scale, row_rstd),
        in_order=in_order,
        zero=_zero() if config.widens_again(source.dtype, residual=residual is not None) else None,
    )

    if config.pass_steps:

        def second_pass(steps: Predicates) -> None:
            # The second read of a long row, which L2 serves as far as it reaches.
            for step, packed in enumerate(source.load_again(this, steps)):
                finish.store(packed, step * layout.stride, layout.vector, steps[step])

        moving = [e for e in (source.again, py, pw) if e]
        this.walk(moving, config.pass_steps, second_pass)
    for step, packed in enumerate(loaded):
        weights, following = following, weights_ahead(step + 1)
        finish.store(packed, step * layout.stride, layout.vector, predicates[step], weights)
    if rstd is not None:
        _store_rstd(this, rstd, in_cta, row_rstd)
    ptx.ret()


def _zero() -> Reg:
    """A zero that no compiler knows."""
    zero = reg.scalar(u32)
    ptx.inst.cvt.u32.u64(zero, ptx.run_time_dim("rows") >> 63)
    return zero


def _row_number(layout: RowLayout, in_cta: Reg) -> tuple[Reg, Reg | None]:
    """A thread's row, and whether there is one; None: there is."""
    number = reg.from_(ptx.special.ctaid.x(), u32) * layout.rows
    if layout.rows == 1:
        return number, None
    number += in_cta >> (layout.threads.bit_length() - 1)
    return number, number < ptx.run_time_dim("rows")


def _store_rstd(this: Row, rstd: Tensor, in_cta: Reg, value: Reg) -> None:
    """Comes last, and works the row's number out again: it would take registers from the row."""
    number, exists = _row_number(this.layout, in_cta)
    out, first = elements_of(rstd), this.thread == 0
    out.skip(number)
    out.store(0, [value], first if exists is None else first & exists)


def _sum_squares_looped(this: Row, source: Source, pass_steps: int) -> Reg:
    """A thread's part of the sum over a long row.

    A pass is summed by itself and added with compensation (Kahan, 1965): the error does not grow with
    the number of passes, of which a row of 2**28 has thousands.
    """
    wide = vectors.wide_type(source.dtype)
    total, lost = reg.scalar(wide, init=0.0), reg.scalar(wide, init=0.0)
    source = source.copy()

    def sum_pass(predicates: Predicates) -> None:
        part = sum_of_squares(source.load(this, predicates), source.dtype)
        part -= lost
        new = total + part
        lost.assign((new - total) - part)
        total.assign(new)

    this.walk(source.moving, pass_steps, sum_pass)
    return total
