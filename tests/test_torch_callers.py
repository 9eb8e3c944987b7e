"""jax_ptx.torch called in less usual ways: batched gradients, odd strides, symbolic tracing, odd types."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import torch.nn.functional as F  # noqa: E402, N812
from torch._dynamo import compiled_autograd  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.testing._internal.two_tensor import TwoTensor  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import jax_ptx.torch as jt  # noqa: E402
from jax_ptx import Tile, kernel, ptx, reg  # noqa: E402
from jax_ptx.ops.rms_norm.options import Options  # noqa: E402
from jax_ptx.torch import formula  # noqa: E402
from jax_ptx.types import b64  # noqa: E402

# PyTorch's own, in forward mode and where it traces.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

EPS = 1e-6
IMPLEMENTATIONS = ["ptx", "torch"]


def draw(*shape: int, grad: bool = False) -> Any:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).requires_grad_(grad)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_batched_gradients(implementation: Any) -> None:
    x, weight, many = draw(3, 8, grad=True), draw(8, grad=True), draw(5, 3, 8)
    y = jt.rms_norm(x, weight, implementation=implementation)
    expected = F.rms_norm(x, (8,), weight, EPS)
    for result in (y, expected):
        assert result.grad_fn is not None
    got = torch.autograd.grad(y, (x, weight), many, is_grads_batched=True, retain_graph=True)
    exact = torch.autograd.grad(expected, (x, weight), many, is_grads_batched=True)
    for a, b in zip(got, exact, strict=True):
        torch.testing.assert_close(a, b)
    mapped = torch.func.vmap(lambda v: torch.autograd.grad(y, x, v, retain_graph=True)[0])(many)
    torch.testing.assert_close(mapped, exact[0])


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_jacobian(implementation: Any) -> None:
    norm = lambda x: jt.rms_norm(x, implementation=implementation)
    x = draw(2, 4)
    jacobian = torch.autograd.functional.jacobian
    exact = jacobian(lambda x: F.rms_norm(x, (4,), eps=EPS), x)
    for vectorize in (False, True):
        torch.testing.assert_close(jacobian(norm, x, vectorize=vectorize), exact)


@pytest.mark.parametrize("x", [draw(1), draw(4)[::4], draw(4, 8)[::4, ::8]])
def test_one_element_of_any_stride(x: Any) -> None:
    x = x.detach().requires_grad_()
    y = jt.rms_norm(x, implementation="ptx")
    y.sum().backward()  # whose dy is expanded: strides of 0
    torch.testing.assert_close(y, F.rms_norm(x, (1,), eps=EPS))
    assert x.grad is not None


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_sum_that_needs_no_gradient(implementation: Any) -> None:
    x, weight = draw(2, 8), draw(8, grad=True)
    y, added = jt.add_rms_norm(x, x, weight, implementation=implementation)
    assert y.requires_grad
    assert not added.requires_grad


@pytest.mark.parametrize("residual", [None, 1.0])
def test_no_residual(residual: Any) -> None:
    with pytest.raises(TypeError, match="residual must be a tensor of x's shape, got"):
        jt.add_rms_norm(draw(2, 8), residual, draw(8))


def test_what_is_refused_is_refused_after_its_equal_was_taken() -> None:
    x = draw(2, 24)
    jt.rms_norm(x, eps=1, weight_offset=0)
    for wrong in ({"eps": True}, {"eps": complex(1)}, {"round_before_weight": 0}):
        with pytest.raises(TypeError):
            jt.rms_norm(x, **wrong)


def test_the_modules_arguments_are_the_originals() -> None:
    ours = jt.RMSNorm(np.int64(8), np.float32(1e-5))
    theirs = torch.nn.RMSNorm(8, 1e-5)
    x = draw(3, 8)
    torch.testing.assert_close(ours(x), theirs(x))
    with pytest.raises(TypeError, match="weight_offset must be a number, got str"):
        jt.RMSNorm(8, weight_offset="a")
    with pytest.raises(TypeError, match="x must be a tensor, got list"):
        ours([1.0] * 8)


def test_symbolic_tracing() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), jt.RMSNorm(8), jt.RMSNorm((2, 8)))
    traced = torch.fx.symbolic_trace(model)
    x = draw(2, 4)
    assert torch.equal(traced(x), model(x))


def test_symbolic_tracing_of_the_functions() -> None:
    x, weight = draw(2, 8), draw(8)
    for function in (
        lambda x, w: jt.rms_norm(x, w, eps=1e-3),
        lambda x, w: jt.add_rms_norm(x, x, w, weight_offset=1.0)[0],
    ):
        traced = torch.fx.symbolic_trace(function)
        assert [n.op for n in traced.graph.nodes].count("call_function") <= 2
        assert torch.equal(traced(x, weight), function(x, weight))


def test_objects_that_say_what_functions_do_with_them() -> None:
    class Recorder:
        @classmethod
        def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None):
            return function, kwargs

    class Subclass(torch.Tensor):
        pass

    x: Any = Recorder()
    function, named = jt.rms_norm(x, eps=1e-3, weight_offset=1.0)
    assert (function, named["eps"], named["weight_offset"]) == (jt.rms_norm, 1e-3, 1.0)
    assert jt.rms_norm(draw(8), x)[0] is jt.rms_norm
    for tensors in ((x, draw(8)), (draw(8), x), (draw(8), draw(8), x)):
        assert jt.add_rms_norm(*tensors)[0] is jt.add_rms_norm
    # As the original does, to which alone such an object may give a meaning.
    assert jt.RMSNorm((2, 8))(x)[0] is torch.nn.RMSNorm((2, 8))(x)[0]
    subclassed = draw(2, 8).as_subclass(Subclass)
    for implementation in IMPLEMENTATIONS:
        norm = lambda x, i=implementation: jt.rms_norm(x, implementation=i)
        for function in (norm, torch.compile(norm, backend="eager", fullgraph=True)):
            y = function(subclassed)
            assert type(y) is Subclass
            torch.testing.assert_close(y.as_subclass(torch.Tensor), jt.rms_norm(draw(2, 8)))


def test_a_cpu_call_is_pytorchs_own_with_its_node() -> None:
    """Which takes a third of the formula's time, and half of it with a gradient."""
    x, weight = draw(2, 8, grad=True), draw(8, grad=True)
    assert jt.rms_norm(x, weight).grad_fn.name() == F.rms_norm(x, (8,), weight).grad_fn.name()
    assert jt.rms_norm(x).grad_fn.name() == F.rms_norm(x, (8,)).grad_fn.name()
    image = draw(2, 3, 4, 8).to(memory_format=torch.channels_last).requires_grad_()
    assert not F.rms_norm(image, (8,)).is_contiguous()
    assert jt.rms_norm(image).is_contiguous()


@pytest.mark.parametrize("options", [{}, {"weight_offset": 1.0}, {"dtype": torch.bfloat16}])
def test_inference_tensors_where_the_weight_learns(options: Any) -> None:
    with torch.inference_mode():
        x = draw(2, 8)
    module = jt.RMSNorm(8, **options)
    module(x).sum().backward()
    expected = jt.RMSNorm(8, **options)
    expected(x.clone()).sum().backward()
    assert torch.equal(module.weight.grad, expected.weight.grad)
    # The kernel's node keeps its operands, as PyTorch's does on a GPU.
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        jt.RMSNorm(8, implementation="ptx", **options)(x)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_a_cpu_call_has_the_bits_of_the_formula(dtype: str) -> None:
    """Where PyTorch's own operation runs, with a gradient and without."""
    dtype = getattr(torch, dtype)
    x, weight = draw(64, 200).to(dtype), draw(200).to(dtype)
    expected, _ = formula.forward(x, weight, Options(EPS))
    for learnt in (False, True):
        y = jt.rms_norm(x, weight.requires_grad_(learnt)).detach()
        torch.testing.assert_close(y, expected, rtol=torch.finfo(dtype).eps, atol=0)
        # rsqrt and the mean may round otherwise
        assert (y != expected).sum() <= y.numel() // 20


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_tensor_may_still_be_resized(implementation: Any) -> None:
    x = draw(3, 8)  # as FSDP does with parameters
    y = jt.rms_norm(x, torch.ones(8), implementation=implementation)
    for tensor in (x, y):
        assert tensor.resize_(5, 8).shape == (5, 8)


def test_zeros_without_memory() -> None:
    zeros = torch._efficientzerotensor((2, 8))
    assert jt.rms_norm(zeros, torch.ones(8), implementation="ptx").tolist() == [[0.0] * 8] * 2
    x = draw(2, 8, grad=True)
    y = jt.rms_norm(x, torch.ones(8), implementation="ptx")
    assert torch.autograd.grad(y, x, zeros)[0].tolist() == [[0.0] * 8] * 2


def test_freed_memory_is_named() -> None:
    x = draw(2, 8)
    x.untyped_storage().resize_(0)
    with pytest.raises(
        RuntimeError, match=r"an operand of shape \[2, 8\] has no memory: its storage"
    ):
        jt.rms_norm(x, torch.ones(8), implementation="ptx")


def test_the_gradient_operator_of_nothing() -> None:
    x, rstd = draw(2, 8), torch.ones(2)
    arguments = (x, x, rstd, None, None, 1, 1e-6, 0.0, False, False)
    torch.library.opcheck(torch.ops.jax_ptx.rms_norm_backward.default, arguments)


def backward_under(context: Any, add: bool) -> Any:
    """dx of a graph that was made outside of a context, whose dy comes from `context`, a function of dy."""
    x, w = draw(2, 3, 8, grad=True), draw(8, grad=True)
    options = {"implementation": "ptx"}
    y = jt.add_rms_norm(x, x, w, **options)[0] if add else jt.rms_norm(x, w, **options)
    expected = F.rms_norm(x + x if add else x, (8,), w, EPS)
    backward = lambda y: lambda dy: torch.autograd.grad(y, x, dy, retain_graph=True)[0]
    return context(backward(y)), context(backward(expected))


@pytest.mark.parametrize("add", [False, True])
def test_a_backward_in_forward_mode_has_a_tangent(add: bool) -> None:
    def tangent(backward: Any) -> Any:
        with forward_ad.dual_level():
            dy = forward_ad.make_dual(torch.ones(2, 3, 8), draw(2, 3, 8))
            return forward_ad.unpack_dual(backward(dy)).tangent

    got, expected = backward_under(tangent, add)
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("add", [False, True])
def test_a_backward_that_is_traced_is_a_function_of_its_gradient(add: bool) -> None:
    dy = draw(2, 3, 8)
    traced = lambda backward: make_fx(backward)(torch.ones(2, 3, 8))(dy)
    got, expected = backward_under(traced, add)
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("add", [False, True])
def test_a_gradient_of_two_tensors_is_two_tensors(add: bool) -> None:
    dy = torch.ones(2, 3, 8)
    got, expected = backward_under(lambda backward: backward(TwoTensor(dy, 2 * dy)), add)
    assert type(got) is TwoTensor
    torch.testing.assert_close((got.a, got.b), (expected.a, expected.b))


@pytest.mark.parametrize("modes", [(True, False), (False, True)])
def test_a_checkpoint_of_which_one_pass_runs_in_a_mode(modes: tuple[bool, bool]) -> None:
    x, w = draw(2, 3, 8, grad=True), draw(8)
    f = lambda x: jt.rms_norm(x, w, implementation="ptx")
    mode = lambda on: FlopCounterMode(display=False) if on else contextlib.nullcontext()
    with mode(modes[0]):
        y = checkpoint(f, x, use_reentrant=False)
    with mode(modes[1]):
        (got,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(got, torch.autograd.grad(f(x).sum(), x)[0])


@pytest.mark.parametrize("options", [{}, {"weight_offset": 0.5}, {"implementation": "ptx"}])
def test_inference_mode_is_stronger_than_gradients(options: Any) -> None:
    x, w = draw(2, 8, grad=True), draw(8, grad=True)
    expected = jt.rms_norm(x, w, **options).detach()
    with torch.inference_mode(), torch.enable_grad():
        y, (z, _) = jt.rms_norm(x, w, **options), jt.add_rms_norm(x, x, w, **options)
    assert not y.requires_grad
    assert not z.requires_grad
    torch.testing.assert_close(y.clone(), expected)


def test_a_kernel_reads_a_conjugate() -> None:
    @kernel(in_specs=(Tile(4, b64),), out_specs=(Tile(4, b64),))
    def copy(x, y):
        px, py = ptx.global_ptrs(x, y)
        for i in range(4):
            value = reg.scalar(b64)
            ptx.inst.ld.global_.b64(value, ptx.addr(px, 8 * i))
            ptx.inst.st.global_.b64(ptx.addr(py, 8 * i), value)

    x = torch.complex(draw(4), draw(4))
    assert torch.equal(copy(x.conj()).view(torch.complex64), x.conj().resolve_conj())


@pytest.mark.filterwarnings("ignore")  # of what PyTorch itself asks for while it compiles
def test_a_backward_that_is_compiled_by_itself() -> None:
    x, w = draw(2, 3, 8, grad=True), draw(8, grad=True)
    norms = (
        lambda: jt.rms_norm(x, w, implementation="ptx"),
        lambda: F.rms_norm(x, (8,), w, EPS),
    )
    grads = []
    for norm in norms:
        loss = norm().square().sum()
        x.grad = w.grad = None
        with compiled_autograd._enable(lambda graph: torch.compile(graph, backend="eager")):
            loss.backward()
        grads.append((x.grad, w.grad))
    torch.testing.assert_close(*grads)
