"""The registered operators, `torch.ops.jax_ptx.*`: what torch.compile, export and dispatch modes see.

Each has an implementation for real tensors, one for shapes alone (fake), and a derivative. The options are
arguments one by one, as a schema wants them.
"""

from __future__ import annotations

from typing import Any

import torch

from jax_ptx.ops.rms_norm.options import Options
from jax_ptx.torch import formula
from jax_ptx.torch.plan import Optional, Plan, checked_plan

_LIBRARY = torch.library.Library("jax_ptx", "DEF")
# DTensor keeps what it found for a call under a key that has the arguments from the first int on.
_OPTIONS = "int kernel, float eps, float weight_offset, bool round_before_weight"
_LIBRARY.define(f"rms_norm(Tensor x, Tensor? weight, {_OPTIONS}) -> (Tensor y, Tensor rstd)")
_LIBRARY.define(
    f"add_rms_norm(Tensor x, Tensor residual, Tensor? weight, {_OPTIONS}) -> "
    "(Tensor y, Tensor added, Tensor rstd)"
)
_LIBRARY.define(
    "rms_norm_backward(Tensor x, Tensor dy, Tensor rstd, Tensor? weight, Tensor? addend, int kernel, "
    "float eps, float weight_offset, bool need_dx, bool need_dw) -> (Tensor dx, Tensor dw)"
)


def _plan(x: Any, residual: Any, weight: Any, *rest: Any) -> Plan:
    """Of the operators' arguments, which end with kernel, eps, weight_offset and round_before_weight."""
    kernel, *options = rest
    return checked_plan(x, residual, weight, tuple(options), bool(kernel))


def _rms_norm(x: torch.Tensor, weight: Optional, *rest: Any) -> tuple[torch.Tensor, Any]:
    y, _, rstd = _plan(x, None, weight, *rest).forward(x, weight)
    return y, rstd


def _add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: Optional, *rest: Any
) -> tuple[torch.Tensor, Any, Any]:
    y, added, rstd = _plan(x, residual, weight, *rest).forward(x, weight, residual)
    return y, added, rstd


def _rms_norm_backward(
    x: torch.Tensor,
    dy: torch.Tensor,
    rstd: torch.Tensor,
    weight: Optional,
    addend: Optional,
    kernel: int,
    eps: float,
    weight_offset: float,
    need_dx: bool,
    need_dw: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    plan = _plan(x, None, weight, kernel, eps, weight_offset, False)
    dx, dw = plan.backward(x, dy, rstd, weight, addend, need_dx, need_dw)
    # An operator's results are tensors, always.
    return x.new_empty(0) if dx is None else dx, x.new_empty(0) if dw is None else dw


# ---- shapes ----


def _like(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _statistic(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape[:-1], dtype=formula.wide_dtype(x.dtype))


def _fake_rms_norm(x: Any, weight: Any, *rest: Any) -> Any:
    _plan(x, None, weight, *rest)
    return _like(x), _statistic(x)


def _fake_add_rms_norm(x: Any, residual: Any, weight: Any, *rest: Any) -> Any:
    _plan(x, residual, weight, *rest)
    return _like(x), _like(x), _statistic(x)


def _fake_backward(x: Any, dy: Any, rstd: Any, weight: Any, *rest: Any) -> Any:
    *_, need_dx, need_dw = rest
    return _like(x) if need_dx else x.new_empty(0), _like(weight) if need_dw else x.new_empty(0)


# ---- derivatives ----


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    """For both forward operators: what was normalised, the weight, rstd, and the options."""
    *tensors, kernel, eps, weight_offset, _ = inputs
    normalised = tensors[0] if len(tensors) == 2 else output[1]
    ctx.save_for_backward(normalised, tensors[-1], output[-1])
    ctx.options = (kernel, eps, weight_offset)
    ctx.set_materialize_grads(False)


def _derivative(ctx: Any, *grads: Any) -> Any:
    dy, *added, drstd = grads
    x, weight, rstd = ctx.saved_tensors
    dx: Any = None
    dw: Any = None
    need_dw = ctx.needs_input_grad[1 + len(added)]
    addend = added[0] if added else None
    if drstd is not None:  # rstd = (mean(x**2) + eps) ** -1/2
        through = (-drstd * rstd**3 / x.shape[-1]).unsqueeze(-1) * x
        addend = (through if addend is None else through + addend).to(x.dtype)
    if dy is None:
        dx = addend
    else:
        dx, dw = rms_norm_backward(x, dy, rstd, weight, addend, *ctx.options, True, need_dw)
    of_inputs = [dx] * (1 + len(added))  # x and the residual
    return *of_inputs, dw if need_dw else None, None, None, None, None


def _save_backward(ctx: Any, inputs: Any, output: Any) -> None:
    x, dy, _, weight, addend, _, eps, weight_offset, *_ = inputs
    ctx.save_for_backward(x, dy, weight, addend)
    ctx.options = Options(eps, weight_offset)
    ctx.set_materialize_grads(False)


def _second_derivative(ctx: Any, ddx: Any, ddw: Any) -> Any:
    """Through the formula, in which rstd is a function of x: the saved one only spares its computation."""
    higher = torch.is_grad_enabled()
    with torch.enable_grad():
        # Aliases: a derivative with respect to x alone, even where dy was computed from it.
        at: list[Any] = [None if t is None else t.view_as(t) for t in ctx.saved_tensors]
        at = [t.requires_grad_() if t is not None and not t.requires_grad else t for t in at]
        x, dy, weight, addend = at
        results: Any = formula.backward(x, dy, weight, addend, ctx.options)
        pairs = [
            (result, grad)
            for result, grad in zip(results, (ddx, ddw), strict=True)
            if result is not None and grad is not None and grad.shape == result.shape
        ]
        given = [t for t in at if t is not None]
        grads = iter(
            torch.autograd.grad(
                [result for result, _ in pairs],
                given,
                [grad for _, grad in pairs],
                create_graph=higher,
                allow_unused=True,
            )
            if pairs
            else [None] * len(given)
        )
    d_x, d_dy, d_weight, d_addend = (None if t is None else next(grads) for t in at)
    return d_x, d_dy, None, d_weight, d_addend, None, None, None, None, None


for _name, _real, _fake, _setup, _gradient in (
    ("rms_norm", _rms_norm, _fake_rms_norm, _save, _derivative),
    ("add_rms_norm", _add_rms_norm, _fake_add_rms_norm, _save, _derivative),
    (
        "rms_norm_backward",
        _rms_norm_backward,
        _fake_backward,
        _save_backward,
        _second_derivative,
    ),
):
    _LIBRARY.impl(_name, _real, "CompositeExplicitAutograd")
    _qualified = f"jax_ptx::{_name}"
    torch.library.register_fake(_qualified, _fake, lib=_LIBRARY)
    torch.library.register_autograd(_qualified, _gradient, setup_context=_setup, lib=_LIBRARY)

rms_norm = torch.ops.jax_ptx.rms_norm.default
add_rms_norm = torch.ops.jax_ptx.add_rms_norm.default
rms_norm_backward = torch.ops.jax_ptx.rms_norm_backward.default
