"""What a kernel of one's own refuses of PyTorch: what would record no launch, or has no memory."""

from __future__ import annotations

import re
import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import jax_ptx  # noqa: E402
from jax_ptx import Tile, kernel, ptx, reg  # noqa: E402
from jax_ptx.types import f32, u32  # noqa: E402
from tests.test_torch import COPY, call_copy  # noqa: E402

copy = jax_ptx.ptx_kernel(
    COPY.replace("%r3, 2;", "%r3, 4;").replace(".u16", ".u32").replace("%h0", "%r0"),
    in_specs=(Tile(8, f32),),
    out_specs=(Tile(8, f32),),
    block=8,
)
OPERATOR = torch.library.custom_op(
    "jax_ptx_tests::refused_copy", copy, mutates_args=(), schema="(Tensor x) -> Tensor"
)
OPERATOR.register_fake(torch.empty_like)
# PyTorch's own, of its tracers and of what it calls a prototype.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_make_fx_would_record_no_launch(mode: Any) -> None:
    x = torch.arange(8.0)
    with pytest.raises(NotImplementedError, match=r"copy: make_fx does not see.*custom_op"):
        make_fx(lambda x: copy(x) * 2, tracing_mode=mode)(x)
    traced = make_fx(lambda x: OPERATOR(x) * 2, tracing_mode=mode)(x)
    assert torch.equal(traced(x + 1), 2 * x + 2)


def test_a_mode_that_records_nothing_is_no_obstacle() -> None:
    class Count(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.calls += 1
            return func(*args, **(kwargs or {}))

    x = torch.arange(8.0)
    with Count() as mode:
        y = copy(x)
    assert torch.equal(y, x)
    assert mode.calls > 0


def test_compilers_name_the_way_round() -> None:
    @kernel(in_specs=(Tile("n", f32),), out_specs=(Tile("n", f32),), block=8)
    def double(x, y):
        px, py = ptx.global_ptrs(x, y)
        i = reg.from_(ptx.special.tid.x(), u32)
        value = reg.scalar(f32)
        ptx.inst.ld.global_.f32(value, ptx.addr(px + i * 4))
        ptx.inst.st.global_.f32(ptx.addr(py + i * 4), value + value)

    x = torch.arange(8.0)
    with pytest.raises(Exception, match=r"torch.compile and torch.export do not see a launch"):
        torch.compile(double, backend="eager", fullgraph=True)(x)  # which was never called before
    function = lambda x: copy(x) * 2
    with pytest.raises(Exception, match=r"torch.compile and torch.export do not see a launch"):
        torch.compile(function, backend="eager", fullgraph=True)(x)
    assert torch.equal(torch.compile(function, backend="eager")(x), 2 * x)  # a graph break
    with warnings.catch_warnings(action="error", category=UserWarning):
        assert torch.equal(torch.compile(lambda x: double(x) + 1, backend="eager")(x), 2 * x + 1)
    with pytest.raises(NotImplementedError, match=r"torch.jit.trace does not see.*custom_op"):
        torch.jit.trace(function, (x,))
    assert torch.equal(torch.jit.trace(lambda x: OPERATOR(x) * 2, (x,))(x + 1), 2 * x + 2)


def test_a_tensor_that_stands_for_others_is_named() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    x = torch.arange(8.0)
    jagged = torch.nested.nested_tensor([x, x], layout=torch.jagged)
    for wrapper in (TwoTensor(x, x), jagged):
        with pytest.raises(NotImplementedError, match=r"copy: argument x is a .*to_local\(\)"):
            copy(wrapper)
    for other in (x.to_sparse(), x.to_mkldnn(), torch.nested.nested_tensor([x])):
        with pytest.raises(NotImplementedError, match=r"copy: argument x has layout.*to_dense"):
            copy(other)

    class Tagged(torch.Tensor):
        pass

    assert torch.equal(copy(x.as_subclass(Tagged)), x)


def test_derivatives_name_the_argument_and_what_helps() -> None:
    class Copy(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return copy(x)

        @staticmethod
        def jvp(ctx: Any, tangent: Any) -> Any:
            return tangent

    forward_ad, x = torch.autograd.forward_ad, torch.arange(8.0)
    with pytest.raises(
        NotImplementedError, match=re.escape("copy: argument x requires a gradient")
    ):
        copy(x.clone().requires_grad_())
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, x + 1)
        with pytest.raises(NotImplementedError, match=r"argument x carries a tangent.*with a jvp"):
            copy(dual)
        assert torch.equal(copy(forward_ad.unpack_dual(dual).primal), x)
        primal, tangent = forward_ad.unpack_dual(Copy.apply(dual))
        assert torch.equal(primal, x)
        assert torch.equal(tangent, x + 1)


def test_a_gradient_is_never_lost_in_silence() -> None:
    x = torch.arange(8.0, requires_grad=True)
    with pytest.raises(NotImplementedError, match=r"copy: operand 0 requires a gradient.*no_grad"):
        call_copy(x)
    with torch.no_grad():
        y = call_copy(x)
    assert torch.equal(y, x)
    assert not y.requires_grad


@pytest.mark.filterwarnings(
    "ignore:`torch.jit.script` is deprecated"
)  # PyTorch's own, in dual_level
def test_a_tangent_is_never_lost_in_silence() -> None:
    x = torch.arange(8.0)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones(8))
        with pytest.raises(
            NotImplementedError, match=r"copy: operand 0 carries a tangent.*unpack_dual"
        ):
            call_copy(dual)


def test_a_transformations_tensors_are_refused() -> None:
    """Functionalised ones even gave values that nobody wrote."""
    for transform in (torch.func.vmap, torch.func.functionalize):
        with pytest.raises(NotImplementedError, match=r"custom_op and say with register_vmap"):
            transform(call_copy)(torch.ones(2, 8))


def test_fake_tensors_are_refused() -> None:
    mode = FakeTensorMode()
    fake = mode.from_tensor(torch.ones(8))
    with pytest.raises(
        NotImplementedError, match=r"is a FakeTensor.*custom_op, and say with register_fake"
    ):
        call_copy(fake)
    with mode, pytest.raises(NotImplementedError, match="FakeTensor"):
        call_copy(torch.ones(8))
