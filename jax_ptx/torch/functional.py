"""RMS norm of PyTorch tensors.

A call on plain tensors takes the short way: one look-up of its plan, and an autograd node where a
gradient is needed. What traces, records or wraps tensors (torch.compile, export, fake tensors, dispatch
modes, subclasses) sees the registered operators of `ops` instead, or, by `__torch_function__`, the function
itself (torch.fx); under torch.func's transformations and in forward-mode differentiation the formula runs,
of which PyTorch knows every derivative.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Literal

import torch
from torch.autograd import forward_ad
from torch.overrides import handle_torch_function, has_torch_function

from jax_ptx.torch import formula, ops, sharding
from jax_ptx.torch.arguments import check_implementation, check_layout, not_a_tensor
from jax_ptx.torch.plan import Optional, Plan, checked_plan
from jax_ptx.torch.tensors import known_calls

Implementation = Literal["ptx", "torch"]

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_NVIDIA = torch.version.hip is None  # ROCm's devices call themselves "cuda" too
_functorch: Any = vars(torch._C)["_functorch"]  # which its stub lacks
# Found once: a call spends most of its time on looking names up.
_is_compiling = torch.compiler.is_compiling
_are_functorch_transforms_active = torch._C._are_functorch_transforms_active
_is_legacy_batchedtensor = _functorch.is_legacy_batchedtensor
_len_torch_dispatch_stack = torch._C._len_torch_dispatch_stack
_is_tracing = torch._C._is_tracing
_is_grad_enabled = torch.is_grad_enabled
_is_inference_mode_enabled = torch.is_inference_mode_enabled
_is_autocast_enabled = torch.is_autocast_enabled
_known: Any = (lambda *_: None) if known_calls is None else known_calls.__call__
# Of forward-mode differentiation: -1 outside of it. Where PyTorch does not tell, the formula runs always: a
# kernel would lose a tangent without a word.
_levels: Any = (
    forward_ad if hasattr(forward_ad, "_current_level") else SimpleNamespace(_current_level=0)
)
# Whether autocast casts the operands of this PyTorch's own rms_norm; that of 2.11 did not.
_AUTOCAST = torch._C._dispatch_has_kernel_for_dispatch_key("aten::rms_norm", "AutocastCUDA")


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None = None,
    *,
    eps: float | None = 1e-6,
    weight_offset: float = 0.0,
    round_before_weight: bool = False,
    implementation: Implementation | None = None,
) -> torch.Tensor:
    """Root mean square layer normalisation over the last dimension.

    `y = x / sqrt(mean(x**2, -1) + eps) * (weight_offset + weight)`; statistics and products are float32
    (float64 for float64), and the result is rounded once. The backward pass is one kernel too, and
    derivatives of any order exist. Under torch.func's transformations (vmap, jvp, grad), for batched
    gradients and jagged nested tensors the plain formula runs. DTensors keep their rows where they are.

    Args:
        x: `[..., n]`; float16, bfloat16, float32 or float64. A kernel reads rows that lie n elements
            apart: what is strided or expanded otherwise, or begins at an address that its vectors do not
            fit, is copied first.
        weight: `[n]`, any of those dtypes, on x's device; None means no scaling.
        eps: added to the mean of squares; None: the epsilon of the dtype that the mean is computed in,
            as in `torch.nn.functional.rms_norm`.
        weight_offset: added to the weight in float32: 1.0 for weights stored around zero, as Gemma's.
        round_before_weight: rounds the normalised x to x's dtype before the multiplication with the
            weight, as Hugging Face's Llama does.
        implementation: "ptx": the kernel, on an NVIDIA GPU or, on a CPU, in the emulator (for tests: it
            checks every access, and is slow). "torch": the plain formula. None: "ptx" on a GPU and "torch"
            elsewhere.

    Returns:
        A contiguous tensor of x's shape and dtype. Under CUDA autocast operands are cast to float32
        first where this PyTorch casts those of `torch.nn.functional.rms_norm`.

    Raises:
        TypeError: for a dtype that is not listed, a layout such as a sparse one, or an argument of another
            kind.
        ValueError: for shapes and devices that do not fit, a number that float32 does not hold, or an
            unknown implementation.
    """
    options = (eps, weight_offset, round_before_weight)
    try:
        if implementation is None and weight is not None and _may_be_known(x, weight):
            learns = (x.requires_grad or weight.requires_grad) and _learns()
            if (done := _known(x, weight, options, learns)) is not None:
                return _apply(x, weight, done) if learns else done[1]
        plain = type(x) in _PLAIN and (weight is None or type(weight) in _PLAIN)
        if not plain and _is_overridden(x, weight):
            named = _named(options, implementation)
            return handle_torch_function(rms_norm, (x, weight), x, weight, **named)
        return _call(x, None, weight, options, implementation, plain)[0]
    except RuntimeError:
        _explain("rms_norm", x=x, weight=weight)
        raise


def add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None = None,
    *,
    eps: float | None = 1e-6,
    weight_offset: float = 0.0,
    round_before_weight: bool = False,
    implementation: Implementation | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`(rms_norm(x + residual, weight), x + residual)` in one kernel, and one for the gradients.

    The sum is rounded to its dtype once, and the rounded sum is normalised.

    Args:
        x: as for `rms_norm`.
        residual: of x's shape and dtype.
        weight: as for `rms_norm`.
        eps: as for `rms_norm`.
        weight_offset: as for `rms_norm`.
        round_before_weight: as for `rms_norm`.
        implementation: as for `rms_norm`.

    Returns:
        The normalised sum and the sum.

    Raises:
        TypeError: as for `rms_norm`, or for a residual whose dtype is not x's.
        ValueError: as for `rms_norm`, or for a residual whose shape is not x's.
    """
    options = (eps, weight_offset, round_before_weight)
    plain = (
        type(x) in _PLAIN
        and type(residual) in _PLAIN
        and (weight is None or type(weight) in _PLAIN)
    )
    if not plain:
        tensors = (x, residual, weight)
        if _is_overridden(*tensors):
            named = _named(options, implementation)
            return handle_torch_function(add_rms_norm, tensors, *tensors, **named)
        if not isinstance(residual, torch.Tensor):
            raise TypeError(
                f"add_rms_norm: residual must be a tensor of x's shape, got {type(residual).__name__}; "
                "rms_norm takes none, and jax_ptx.add_rms_norm takes arrays"
            )
    try:
        y, added = _call(x, residual, weight, options, implementation, plain)
    except RuntimeError:
        _explain("add_rms_norm", x=x, residual=residual, weight=weight)
        raise
    return y, added


def _is_overridden(x: Any, *others: Any) -> bool:
    """Whether one's class says by `__torch_function__` what a function of PyTorch's does with it."""
    if _is_compiling():
        return False  # the compiler asks them of each operation
    if isinstance(x, torch.Tensor) and x.is_nested:
        return False  # its class takes any function of the name rms_norm for PyTorch's
    return has_torch_function((x, *others))


def _named(options: tuple[Any, Any, Any], implementation: Any) -> dict[str, Any]:
    names = ("eps", "weight_offset", "round_before_weight", "implementation")
    return dict(zip(names, (*options, implementation), strict=True))


def _explain(op: str, **tensors: Any) -> None:
    """Raises a clearer error where one of PyTorch's is about a layout, which no call is slowed to ask."""
    for name, tensor in tensors.items():
        check_layout(op, name, tensor)


def _may_be_known(x: Any, weight: Any) -> bool:
    """Whether it may be a known call: of plain tensors, which nothing but autograd records.

    For all others `_call` finds what is to be done, or says what is wrong.
    """
    return not (
        _is_compiling()
        or type(x) not in _PLAIN
        or type(weight) not in _PLAIN
        or not x.is_cuda
        or _are_functorch_transforms_active()
        or _len_torch_dispatch_stack()
        or _is_tracing()
        or _levels._current_level >= 0
        or (_AUTOCAST and _is_autocast_enabled("cuda"))
    )


def _learns() -> bool:
    """Whether autograd keeps what it needs for gradients."""
    return _is_grad_enabled() and not _is_inference_mode_enabled()


def _call(
    x: torch.Tensor,
    residual: Optional,
    weight: Optional,
    options: tuple[Any, Any, Any],
    implementation: Any,
    plain: bool,
) -> tuple[Any, Any]:
    """y, and the sum if there is a residual."""
    if not isinstance(x, torch.Tensor):
        raise not_a_tensor("rms_norm" if residual is None else "add_rms_norm", "x", x)
    if implementation is None:
        kernel = x.is_cuda and _NVIDIA
    else:
        check_implementation("rms_norm" if residual is None else "add_rms_norm", implementation)
        kernel = implementation == "ptx" and not x.is_meta
    compiling = _is_compiling()
    if not kernel and plain and residual is None and x.is_cpu and not compiling:
        plan = checked_plan(x, None, weight, options, False)
        if plan.is_torchs:
            y = torch.rms_norm(x, plan.weight_shape, weight, plan.options.eps)
            return y if y.is_contiguous() else y.contiguous(), None
    if _AUTOCAST and _is_autocast_enabled("cuda") and x.is_cuda and x.dtype != torch.float64:
        x = x.float()
        residual, weight = (
            t if t is None or t.dtype == torch.float64 else t.float() for t in (residual, weight)
        )
    transformed = _are_functorch_transforms_active()
    # A compiler fuses the formula with its neighbours, and may drop roundings in the middle of it.
    fusible = residual is None and not options[2] and not kernel
    if compiling and not transformed and not fusible:
        return _registered(x, residual, weight, options, kernel)
    plan = checked_plan(x, residual, weight, options, kernel, keep=not compiling)
    # The last, since only PyTorch's operations save what they need instead of all operands.
    if (
        compiling
        or transformed
        or _levels._current_level >= 0
        or (not kernel and plain and x.is_inference())
    ):
        added = x if residual is None else x + residual
        return formula.forward(added, weight, plan.options)[0], added
    if not plain or _len_torch_dispatch_stack() or _is_tracing():
        return _registered(x, residual, weight, options, kernel)
    if not (
        (
            x.requires_grad
            or (weight is not None and weight.requires_grad)
            or (residual is not None and residual.requires_grad)
        )
        and _learns()
    ):
        y, added, _ = plan.forward(x, weight, residual, False)
        return y, added
    if residual is None:
        return _apply(x, weight, (plan,)), None
    return _apply_add(x, residual, weight, plan)


def _registered(
    x: torch.Tensor, residual: Optional, weight: Optional, options: Any, kernel: bool
) -> tuple[torch.Tensor, Optional]:
    eps, weight_offset, rounding = options
    if eps is None:
        eps = torch.finfo(formula.wide_dtype(x.dtype)).eps
    if x.is_nested:  # a jagged one: only PyTorch's own operations know its rows
        plan = checked_plan(x, residual, weight, options, kernel, keep=False)
        added = x if residual is None else x + residual
        return formula.normalize(added, weight, plan.options)[0], added
    sharding.register()
    rest = (weight, int(kernel), eps, weight_offset, rounding)
    if residual is None:
        return ops.rms_norm(x, *rest)[0], None
    return ops.add_rms_norm(x, residual, *rest)[:2]


def _gradients(
    plan: Plan, saved: Any, dy: torch.Tensor, addend: Optional, need_dx: bool, need_dw: bool
) -> tuple[Optional, Optional]:
    x, weight, rstd = saved
    options = plan.options
    if (
        _are_functorch_transforms_active()
        or _is_legacy_batchedtensor(dy)  # is_grads_batched=True
        or _levels._current_level >= 0
    ):
        dx, dw = formula.backward(x, dy, weight, addend, options)
        return dx, dw if need_dw else None
    # As in the forward pass, which may have run elsewhere. create_graph=True enables gradients: the operator
    # has a derivative, the plan has none.
    if (
        _is_grad_enabled()
        or _is_compiling()
        or type(dy) not in _PLAIN
        or (addend is not None and type(addend) not in _PLAIN)
        or _len_torch_dispatch_stack()
        or _is_tracing()
    ):
        rest = (int(plan.kernel), options.eps, options.weight_offset, need_dx, need_dw)
        return ops.rms_norm_backward(x, dy, rstd, weight, addend, *rest)
    return plan.backward(x, dy, rstd, weight, addend, need_dx, need_dw)


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: Optional, done: tuple[Any, ...]) -> torch.Tensor:
        """`done`: the plan and, for a known call, its results."""
        if len(done) == 1:
            ctx.plan = done[0]
            y, _, rstd = ctx.plan.forward(x, weight)
        else:
            ctx.plan, y, rstd = done
        ctx.save_for_backward(x, weight, rstd)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        need_dx, need_dw, _ = ctx.needs_input_grad
        dx, dw = _gradients(ctx.plan, ctx.saved_tensors, grads[0], None, need_dx, need_dw)
        return dx if need_dx else None, dw if need_dw else None, None


class _AddRMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, residual: Any, weight: Optional, plan: Plan) -> Any:
        y, added, rstd = plan.forward(x, weight, residual)
        ctx.save_for_backward(added, weight, rstd)
        ctx.plan = plan
        ctx.set_materialize_grads(False)
        if not any(ctx.needs_input_grad[:2]):
            ctx.mark_non_differentiable(added)
        return y, added

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        dy, d_added = grads
        need_x, need_residual, need_dw, _ = ctx.needs_input_grad
        if dy is None:
            return d_added, d_added, None, None
        need_dx = need_x or need_residual
        addend = d_added if need_dx else None
        dx, dw = _gradients(ctx.plan, ctx.saved_tensors, dy, addend, need_dx, need_dw)
        return dx if need_x else None, dx if need_residual else None, dw if need_dw else None, None


# What Function.apply does once it has seen that no transformation is active, as `_call` has.
_function: Any = super(torch.autograd.Function, _RMSNorm)
_apply = _function.apply
_function = super(torch.autograd.Function, _AddRMSNorm)
_apply_add = _function.apply
