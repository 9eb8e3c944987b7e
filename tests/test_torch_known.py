"""Which calls of rms_norm the extension is asked about, on tensors that seem to be a GPU's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import torch.autograd.forward_ad as forward_ad  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import jax_ptx.torch as jt  # noqa: E402
from jax_ptx.torch import functional, tensors  # noqa: E402
from jax_ptx.torch import plan as plans  # noqa: E402
from jax_ptx.torch.plan import checked_plan  # noqa: E402
from tests.test_torch_rms_norm import draw  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]

N = 16


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether a gradient was needed, of each call that was asked about and is known."""
    seen: list[bool] = []

    def call(x: Any, weight: Any, options: Any, learns: bool) -> Any:
        seen.append(learns)
        with torch.no_grad():
            plan = checked_plan(x, None, weight, options, True)
            y, _, rstd = plan.forward(x, weight, None, learns)
        return (plan, y, rstd) if learns else (plan, y)

    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda tensor: True))
    monkeypatch.setattr(functional, "_known", call)
    return seen


@pytest.mark.parametrize("learn", [(), ("x",), ("weight",), ("x", "weight")])
def test_a_known_call_has_the_values_and_gradients_of_any(
    learn: tuple[str, ...], asked: list[bool]
) -> None:
    x, weight = draw(3, N, grad="x" in learn), draw(N, seed=1, grad="weight" in learn)
    y, expected = (jt.rms_norm(x, weight, implementation=way) for way in (None, "ptx"))
    assert asked == [bool(learn)]
    assert torch.equal(y, expected)
    at = [t for t in (x, weight) if t.requires_grad]
    assert y.requires_grad == bool(at)
    if at:
        dy = draw(3, N, seed=2)
        for a, b in zip(*(torch.autograd.grad(z, at, dy) for z in (y, expected)), strict=True):
            assert torch.equal(a, b)
    with torch.no_grad():
        assert not jt.rms_norm(x, torch.nn.Parameter(weight.detach())).requires_grad
    with torch.inference_mode():
        jt.rms_norm(x, weight)
    assert asked == [bool(learn), False, False]


class Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Subclass(torch.Tensor):
    pass


def in_a_mode(x: Any, weight: Any) -> None:
    with Mode():
        jt.rms_norm(x, weight)


def in_forward_mode(x: Any, weight: Any) -> None:
    with forward_ad.dual_level():
        jt.rms_norm(x, weight)


@pytest.mark.parametrize(
    "call",
    [
        lambda x, w: jt.rms_norm(x),
        lambda x, w: jt.rms_norm(x, w, implementation="ptx"),
        lambda x, w: jt.rms_norm(x.as_subclass(Subclass), w),
        lambda x, w: jt.rms_norm(x, w.as_subclass(Subclass)),
        lambda x, w: torch.func.vmap(lambda x: jt.rms_norm(x, w))(x),
        lambda x, w: torch.func.grad(lambda x: jt.rms_norm(x, w).sum())(x),
        lambda x, w: torch.compile(jt.rms_norm, backend="eager")(x, w),
        lambda x, w: torch.jit.trace(lambda x, w: jt.rms_norm(x, w), (x, w), check_trace=False),
        lambda x, w: make_fx(lambda x, w: jt.rms_norm(x, w))(x, w),
        in_a_mode,
        in_forward_mode,
    ],
)
def test_what_records_or_transforms_is_not_asked_about(
    call: Callable[..., Any], asked: list[bool]
) -> None:
    call(draw(3, N), draw(N, seed=1))
    assert asked == []


def test_autocast_that_casts_is_not_asked_about(
    asked: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    for casts in (True, False):
        monkeypatch.setattr(functional, "_AUTOCAST", casts)
        torch.set_autocast_enabled("cuda", True)
        try:
            jt.rms_norm(draw(3, N), draw(N, seed=1))
        finally:
            torch.set_autocast_enabled("cuda", False)
        assert asked == ([] if casts else [False])


def test_a_pytorch_that_lacks_what_it_takes_has_the_slower_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert tensors._tensors() is not None
    monkeypatch.setattr(torch.Tensor, "__dlpack_c_exchange_api__", 1)
    assert tensors._tensors() is None


@pytest.mark.parametrize("changed", [lambda *a: None, lambda a: None, lambda *a: torch.ones(2, 3)])
def test_a_private_function_that_changed_is_not_called(
    changed: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    guards = torch._C._dynamo.guards
    on_gpu = lambda *arguments: None
    monkeypatch.setattr(guards, "_empty_strided_cuda", on_gpu)
    assert tensors._empty_at_once() is on_gpu
    monkeypatch.setattr(guards, "_empty_strided_cpu", changed)
    assert tensors._empty_at_once() is None


def test_a_plan_asks_about_the_calls_that_it_made_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the registered operators do, which compiled programs call."""
    x, weight, options = draw(3, N), draw(N, seed=1), (1e-6, 0.0, False)
    plan = checked_plan(x, None, weight, options, True)
    asked: list[Any] = []
    answer: Any = (plan, x, weight)
    monkeypatch.setattr(plans, "known_calls", lambda *call: asked.append(call) or answer)
    assert plan.forward(x, weight)[0] is not x
    assert asked == []
    monkeypatch.setattr(plan, "_known", {True})
    assert plan.forward(x, weight) == (x, None, weight)
    ((*tensors, given, with_rstd),) = asked
    assert [t is own for t, own in zip(tensors, (x, weight), strict=True)] == [True, True]
    assert (given, with_rstd) == (options, True)
    answer = None
    assert torch.equal(plan.forward(x, weight)[0], jt.rms_norm(x, weight, implementation="ptx"))
