"""What a kernel of one's own cannot be called with: no memory, no derivative, or nobody to see the launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, NoReturn

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import get_proxy_mode

_is_functorch_wrapped_tensor: Any = vars(torch._C)["_functorch"].is_functorch_wrapped_tensor
_is_tracing = torch._C._is_tracing
_dispatch = attrgetter("__torch_dispatch__")

_OPERATOR = (
    "wrap the call in a torch.library.custom_op, and say with register_fake what shapes its results "
    "have"
)
_NO_COMPILER = f"torch.compile and torch.export do not see a launch; {_OPERATOR}"


@torch.compiler.disable(reason=_NO_COMPILER)
def call_unseen(function: Callable[..., Any], *arguments: Any) -> Any:
    """A call that PyTorch's compiler leaves out of its graphs, or says why all cannot be one."""
    return function(*arguments)


def refuse(kernel: str, names: Sequence[str], tensors: Sequence[torch.Tensor]) -> None:
    """Refuses tensors that a kernel cannot be launched on, or whose launch nothing would record.

    Args:
        kernel: its name.
        names: what to call the tensors.
        tensors: the operands.

    Raises:
        NotImplementedError: if there is one, or something traces.
    """
    if torch.compiler.is_compiling():
        _not(kernel, _NO_COMPILER)
    if _is_tracing():
        _not(
            kernel,
            "torch.jit.trace does not see a launch; wrap the call in a torch.library.custom_op",
        )
    if get_proxy_mode() is not None:
        _not(kernel, f"make_fx does not see a launch; {_OPERATOR}")
    for name, tensor in zip(names, tensors, strict=True):
        _refuse_tensor(kernel, name, tensor)
    # An empty tensor made here tells what becomes of the results.
    _refuse_without_memory(kernel, "a new tensor", torch.empty(0))


def _refuse_tensor(kernel: str, name: str, tensor: torch.Tensor) -> None:
    if torch.is_grad_enabled() and tensor.requires_grad:
        _not(
            kernel,
            f"{name} requires a gradient, and a kernel has no derivative; call it under "
            "torch.no_grad(), or inside a torch.autograd.Function",
        )
    if forward_ad.unpack_dual(tensor).tangent is not None:
        _not(
            kernel,
            f"{name} carries a tangent, and a kernel has no derivative; pass "
            "torch.autograd.forward_ad.unpack_dual(…).primal, or call the kernel inside a "
            "torch.autograd.Function with a jvp",
        )
    _refuse_without_memory(kernel, name, tensor)
    if tensor.layout is not torch.strided or tensor.is_nested:
        _not(
            kernel,
            f"{name} has layout {tensor.layout}{', nested' * tensor.is_nested}, and a kernel takes "
            "strided tensors; to_dense() or to_padded_tensor(…) makes one",
        )


def _refuse_without_memory(kernel: str, name: str, tensor: torch.Tensor) -> None:
    """What a transformation or a tracer wraps: its address is none, or another tensor's."""
    if _is_functorch_wrapped_tensor(tensor):
        _not(
            kernel,
            f"a kernel takes plain tensors, and {name} belongs to torch.func (vmap, functionalize); "
            "give the kernel the batch as a dimension, or wrap the call in a torch.library.custom_op "
            "and say with register_vmap what to do",
        )
    if isinstance(tensor, FakeTensor):
        _not(
            kernel,
            f"{name} is a FakeTensor, which has no memory; for torch.compile and torch.export {_OPERATOR}",
        )
    if _dispatch(type(tensor)) is not _dispatch(torch.Tensor):
        _not(
            kernel,
            f"{name} is a {type(tensor).__name__}, which stands for other tensors and has no memory of "
            "its own; pass those: to_local() gives a DTensor's, values() a nested tensor's",
        )


def _not(kernel: str, why: str) -> NoReturn:
    raise NotImplementedError(f"{kernel}: {why}")
