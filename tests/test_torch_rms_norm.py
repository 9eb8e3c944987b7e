"""rms_norm and add_rms_norm on PyTorch tensors. What needs a GPU is in tests/gpu."""

from __future__ import annotations

import importlib.util
import pickle
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import torch.nn.functional as F  # noqa: E402, N812
from torch.autograd import forward_ad  # noqa: E402

import jax_ptx.torch as jt  # noqa: E402
from jax_ptx.torch import functional  # noqa: E402

IMPLEMENTATIONS = (None, "ptx")  # the formula, and the kernel in the emulator
# PyTorch's own, in forward mode and in its compiler.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

N = 24
EPS = 1e-3


def draw(*shape: int, dtype: Any = torch.float32, seed: int = 0, grad: bool = False) -> Any:
    values = np.random.default_rng(seed).standard_normal(shape)
    return torch.tensor(values, dtype=dtype, requires_grad=grad)


def exact(x: Any, weight: Any = None, eps: float = EPS, offset: float = 0.0) -> Any:
    wide = x.double()
    y = wide / torch.sqrt(wide.square().mean(-1, keepdim=True) + eps)
    return y if weight is None else y * (weight.double() + offset)


def close(got: Any, expected: Any) -> None:
    """Up to a unit of a narrow dtype, or a few of float32."""
    eps = torch.finfo(got.dtype).eps
    limit = eps if eps > 1e-4 else max(16 * eps, 1e-14)
    torch.testing.assert_close(got.double(), expected.double(), rtol=limit, atol=limit)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("weight_dtype", [None, "float32", "bfloat16"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_values(dtype: str, weight_dtype: str | None, implementation: Any) -> None:
    x = draw(2, 3, N, dtype=getattr(torch, dtype))
    weight = None
    if weight_dtype is not None:
        weight = draw(N, dtype=getattr(torch, weight_dtype), seed=1)
    y = jt.rms_norm(x, weight, eps=EPS, implementation=implementation)
    assert y.dtype == x.dtype
    close(y, exact(x, weight))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_an_added_residual_and_options(implementation: Any) -> None:
    x, residual = (draw(5, N, dtype=torch.bfloat16, seed=i) for i in (0, 1))
    weight = draw(N, seed=2)
    options: Any = {"eps": EPS, "weight_offset": 1.0, "implementation": implementation}
    y, added = jt.add_rms_norm(x, residual, weight, **options)
    assert torch.equal(added, x + residual)
    assert torch.equal(y, jt.rms_norm(added, weight, **options))
    close(y, exact(added, weight, offset=1.0))
    rounded = jt.rms_norm(
        x, weight, eps=EPS, round_before_weight=True, implementation=implementation
    )
    two_steps = jt.rms_norm(x, eps=EPS, implementation=implementation).float() * weight
    assert torch.equal(rounded, two_steps.to(torch.bfloat16))
    assert jt.rms_norm(x, eps=None).equal(jt.rms_norm(x, eps=torch.finfo(torch.float32).eps))


def strided() -> dict[str, Any]:
    x = draw(6, 4, N)
    return {
        "transposed rows": x.transpose(0, 1),
        "transposed columns": draw(N, 5).T,
        "expanded": draw(1, N).expand(4, N),
        "a slice of rows": x[1::2],
        "a slice of columns": draw(3, 2 * N)[:, N:],
        "steps in a row": draw(3, 2 * N)[:, ::2],
        "begins anywhere": draw(3 * N + 1)[1:].view(3, N),
        "a permuted image": draw(2, N, 3, 3).permute(0, 2, 3, 1),
        "negated": torch.view_as_complex(draw(3, N, 2)).conj().imag,
        "one row": draw(N),
        "no rows": draw(0, N),
    }


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("kind", strided())
def test_memory_of_any_shape(kind: str, implementation: Any) -> None:
    x, weight = strided()[kind], draw(2 * N, seed=1)[::2]
    dy = draw(*x.shape, seed=3).transpose(0, -1).contiguous().transpose(0, -1)
    y = jt.rms_norm(x, weight, eps=EPS, implementation=implementation)
    close(y, exact(x, weight))
    assert y.is_contiguous()
    at = [x.detach().requires_grad_(), weight.detach().requires_grad_()]
    got = torch.autograd.grad(jt.rms_norm(*at, eps=EPS, implementation=implementation), at, dy)
    for gradient, expected in zip(
        got, torch.autograd.grad(exact(*at), at, dy.double()), strict=True
    ):
        torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_only_what_a_kernel_cannot_read_is_copied(implementation: Any, monkeypatch: Any) -> None:
    from jax_ptx.torch import launch

    seen = []
    operand = launch.Runner.operand
    record = lambda self, t: seen.append((t, operand(self, t))) or seen[-1][1]
    monkeypatch.setattr(launch.Runner, "operand", record)
    for x, copied in ((draw(4, N), False), (draw(6, N)[2:], False), (draw(N, 4).T, True)):
        seen.clear()
        jt.rms_norm(x, implementation=implementation)
        assert [a is not b for a, b in seen] == ([copied] if implementation else [])


def test_what_a_gpu_launch_is_given(monkeypatch: Any) -> None:
    from jax_ptx.torch import launch, plan, tensors

    given = []

    class Recorder:
        def __init__(self, attributes: dict[str, Any], n_results: int) -> None:
            self.known = (attributes["entry"], n_results)

        def __call__(self, device: int, stream: int, *places: int) -> None:
            given.append((self.known, device, stream, places))

    def places(*tensors: Any) -> tuple[int, ...]:
        return tuple(value for t in tensors for value in (t.data_ptr(), t.nbytes))

    monkeypatch.setattr(launch._ext, "Launcher", Recorder)
    monkeypatch.setattr(launch, "current_stream", lambda device: 70 + device)
    for module in (launch, tensors):  # with them: tests/ffi/test_known_calls.py
        monkeypatch.setattr(module, "tensors", None)
    monkeypatch.setattr(plan, "known_calls", None)
    monkeypatch.setattr(torch.Tensor, "get_device", lambda self: 1)
    # A length that no other test has: a launch record keeps its launcher.
    x, residual, weight = draw(4, 29), draw(4, 29, seed=1), draw(29, seed=2, grad=True)
    for _ in range(2):
        y = jt.rms_norm(x, implementation="ptx")
        assert given.pop() == (("rms_norm", 1), 1, 71, places(x, y))
    plain = weight.detach()
    for _ in range(2):
        y = jt.rms_norm(x, plain, implementation="ptx")
        assert given.pop() == (("rms_norm", 1), 1, 71, places(x, plain, y))
    even = draw(44)
    for odd in (draw(44, 4).T, draw(180)[1:177].reshape(4, 44)):  # strided, misaligned: copied
        for x_or_copy in (odd.contiguous().clone(), odd):
            y = jt.rms_norm(x_or_copy, even, implementation="ptx")
            (*_, seen) = given.pop()
            assert (seen[0] == x_or_copy.data_ptr()) == (x_or_copy is not odd)
            assert seen[1:] == (odd.nbytes, *places(even, y))
            assert y.is_contiguous()
    learnt = even.clone().requires_grad_()
    for _ in range(2):
        y = jt.rms_norm(draw(4, 44), learnt, implementation="ptx")
        (known, *_, seen) = given.pop()
        x_saved, _, rstd = y.grad_fn.saved_tensors
        assert seen == places(x_saved, learnt, y, rstd)
    assert jt.rms_norm(x[:0], plain, implementation="ptx").shape == (0, 29)
    assert not given
    y, added = jt.add_rms_norm(x, residual, weight, implementation="ptx")
    (known, *_, seen) = given.pop()
    assert known == ("add_rms_norm", 3)
    rstd = y.grad_fn.saved_tensors[2]
    assert seen == places(x, residual, weight, y, added, rstd)
    dy = draw(4, 29, seed=3)
    (dw,) = torch.autograd.grad(y, weight, dy)
    (known, *_, seen) = given.pop()
    assert known == ("column_sum", 1)
    parts = seen[:2]
    assert parts[1] > dw.nbytes
    assert seen[2:] == places(dw)
    (known, *_, seen) = given.pop()
    assert known == ("rms_norm_dw", 1)
    assert seen == (*places(added, dy, rstd, weight), *parts)
    assert not given
    # Few rows whose length slices divide: no partial sums.
    x, weight = draw(4, 56, grad=True), draw(56, seed=2, grad=True)
    y = jt.rms_norm(x, weight, implementation="ptx")
    dy, rstd = draw(4, 56, seed=3), y.grad_fn.saved_tensors[2]
    dx, dw = torch.autograd.grad(y, (x, weight), dy)
    (known, *_, seen) = given.pop()
    assert known == ("rms_norm_few_dx_dw", 2)
    assert seen == places(x, dy, rstd, weight, dx, dw)


# ---- derivatives ----


def leaves(*shapes: tuple[int, ...]) -> list[Any]:
    return [draw(*s, dtype=torch.float64, seed=i, grad=True) for i, s in enumerate(shapes)]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_gradients_of_first_and_second_order(implementation: Any) -> None:
    options: Any = {"eps": EPS, "weight_offset": 0.5, "implementation": implementation}
    x, residual, weight = leaves((3, 5), (3, 5), (5,))
    cases = [
        (lambda x: jt.rms_norm(x, eps=EPS, implementation=implementation), (x,)),
        (lambda x, w: jt.rms_norm(x, w, **options), (x, weight)),
        (lambda w: jt.rms_norm(x.detach(), w, **options), (weight,)),
        (lambda x: jt.rms_norm(x, weight.detach(), **options), (x,)),
        (lambda x, r, w: jt.add_rms_norm(x, r, w, **options), (x, residual, weight)),
        (lambda x, w: jt.add_rms_norm(x, residual.detach(), w, **options)[1], (x, weight)),
        (lambda r: jt.add_rms_norm(x.detach(), r, weight, **options)[0], (residual,)),
    ]
    for function, at in cases:
        assert torch.autograd.gradcheck(function, at)
        assert torch.autograd.gradgradcheck(function, at)


def test_a_third_derivative() -> None:
    (x,) = leaves((1, 4))
    y = jt.rms_norm(x, eps=EPS).pow(3).sum()
    expected = exact(x).pow(3).sum()
    for _ in range(3):
        (y,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        (expected,) = torch.autograd.grad(expected.sum(), x, create_graph=True)
    torch.testing.assert_close(y, expected)


def test_a_second_derivative_where_dy_depends_on_x() -> None:
    x, weight = leaves((3, 5), (5,))

    def norm_of_gradient(function: Any) -> Any:
        loss = (function(x, weight) * x.sin()).sum()  # so that dy is a function of x
        return sum(
            g.square().sum() for g in torch.autograd.grad(loss, (x, weight), create_graph=True)
        )

    got = torch.autograd.grad(norm_of_gradient(lambda *a: jt.rms_norm(*a, eps=EPS)), (x, weight))
    expected = torch.autograd.grad(norm_of_gradient(lambda *a: exact(*a)), (x, weight))
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_float32_weight_of_bfloat16_rows_keeps_float32_gradients(implementation: Any) -> None:
    x, weight = draw(40, N, dtype=torch.bfloat16, grad=True), draw(N, seed=1, grad=True)
    y = jt.rms_norm(x, weight, eps=EPS, implementation=implementation)
    dy = draw(40, N, dtype=torch.bfloat16, seed=2)
    dx, dw = torch.autograd.grad(y, (x, weight), dy)
    assert (dx.dtype, dw.dtype) == (torch.bfloat16, torch.float32)
    at = [t.detach().double().requires_grad_() for t in (x, weight)]
    expected = torch.autograd.grad(exact(*at), at, dy.double())
    torch.testing.assert_close(dw.double(), expected[1], rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(dx.double(), expected[0], rtol=0.01, atol=0.01)


def test_rows_too_long_for_the_backward_kernel() -> None:
    x, weight = draw(2, 8200, grad=True), draw(8200, seed=1, grad=True)
    got = torch.autograd.grad(
        jt.rms_norm(x, weight, eps=EPS, implementation="ptx").sum(), (x, weight)
    )
    expected = torch.autograd.grad(exact(x, weight).sum(), (x, weight))
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_modified_operands_are_noticed() -> None:
    x, weight = draw(3, N, grad=True), draw(N, seed=1, grad=True)
    kept = x * 1
    y = jt.rms_norm(kept, weight)
    kept.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_forward_mode_and_transformations() -> None:
    x, weight = draw(3, 4, N, dtype=torch.float64), draw(N, dtype=torch.float64, seed=1)
    norm, plain = (lambda x, w: jt.rms_norm(x, w, eps=EPS)), exact
    loss = lambda f: lambda x, w: f(x, w).pow(3).sum()
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, x.cos())
        tangent = forward_ad.unpack_dual(norm(dual, weight)).tangent
    expected = torch.func.jvp(lambda x: plain(x, weight), (x,), (x.cos(),))[1]
    torch.testing.assert_close(tangent, expected)
    pairs = [
        lambda f: torch.func.vmap(f, (0, None))(x, weight),
        lambda f: torch.func.vmap(f, (1, None), 1)(x, weight),
        lambda f: torch.func.vmap(f)(x, torch.stack([weight, 2 * weight, -weight])),
        lambda f: torch.func.grad(loss(f), (0, 1))(x, weight),
        lambda f: torch.func.vmap(torch.func.grad(loss(f), (0, 1)), (0, None))(x, weight),
        lambda f: torch.func.jvp(f, (x, weight), (x.cos(), weight.cos()))[1],
        lambda f: torch.func.hessian(loss(f))(x[0, 0, :4], weight[:4]),
    ]
    for transformed in pairs:
        torch.testing.assert_close(transformed(norm), transformed(plain))
    y, added = torch.func.vmap(jt.add_rms_norm)(x, x.sin())
    torch.testing.assert_close(added, x + x.sin())
    torch.testing.assert_close(y, exact(added, eps=1e-6))


# ---- what is refused ----


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (([1.0],), {}, TypeError, "x must be a tensor, got list"),
        ((torch.ones(3), [1.0]), {}, TypeError, "weight must be a tensor, got list"),
        (
            (torch.ones(3, dtype=torch.int32),),
            {},
            TypeError,
            "x must have dtype float16, .*, got .*int32",
        ),
        ((torch.ones(3), torch.ones(3, dtype=torch.int8)), {}, TypeError, "weight must have dtype"),
        ((torch.ones(()),), {}, ValueError, "one dimension or more, got a scalar"),
        ((torch.ones(2, 3), torch.ones(4)), {}, ValueError, r"shape \[3\] to match .* got \[4\]"),
        ((torch.ones(2, 3), torch.ones(1)), {}, ValueError, r"shape \[3\] to match .* got \[1\]"),
        ((torch.ones(3), torch.ones(3, device="meta")), {}, ValueError, "device cpu, got meta"),
        ((torch.ones(3),), {"eps": -1.0}, ValueError, "eps must be 0 or a positive .*, got -1.0"),
        ((torch.ones(3),), {"eps": 1e-50}, ValueError, "eps must be 0 or a positive"),
        ((torch.ones(3),), {"eps": "1"}, TypeError, "eps must be a number, got str"),
        ((torch.ones(3),), {"weight_offset": 1.0}, ValueError, "there is none; pass weight"),
        ((torch.ones(3),), {"round_before_weight": 2}, TypeError, "True or False, got int"),
        ((torch.ones(3),), {"implementation": "xla"}, ValueError, "'ptx', 'torch' or None, got"),
    ],
)
def test_errors(arguments: Any, options: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        jt.rms_norm(*arguments, **options)


def test_errors_of_the_residual() -> None:
    x = torch.ones(2, 3)
    with pytest.raises(ValueError, match=r"residual must have x's shape \[2, 3\], got \[3\]"):
        jt.add_rms_norm(x, torch.ones(3))
    with pytest.raises(TypeError, match=r"residual must have x's dtype torch.float32, got"):
        jt.add_rms_norm(x, x.double())


# ---- the module ----


@pytest.mark.parametrize("shape", [N, (N,), [4, N]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("eps", [None, 1e-2])
def test_the_module_beside_the_original(shape: Any, dtype: Any, eps: float | None) -> None:
    original, ours = (cls(shape, eps, dtype=dtype) for cls in (torch.nn.RMSNorm, jt.RMSNorm))
    original.weight.data = draw(*original.weight.shape, dtype=dtype, seed=1)
    assert ours.load_state_dict(original.state_dict()) == torch.nn.RMSNorm(shape).load_state_dict(
        original.state_dict()
    )
    assert original.load_state_dict(ours.state_dict()).missing_keys == []
    x = draw(3, 4, N, dtype=dtype) * 1e-2
    close(ours(x), original(x))
    assert repr(ours) == repr(original)
    assert isinstance(pickle.loads(pickle.dumps(ours)), jt.RMSNorm)


def test_the_modules_options() -> None:
    x = draw(3, N)
    plain = jt.RMSNorm(N, elementwise_affine=False)
    assert list(plain.parameters()) == []
    close(plain(x), exact(x, eps=torch.finfo(torch.float32).eps))
    zero = jt.RMSNorm(N, EPS, weight_offset=1.0, implementation="ptx")
    assert torch.equal(zero.weight, torch.zeros(N))
    close(zero(x), exact(x))
    assert "weight_offset=1.0" in repr(zero)
    with torch.device("meta"):
        empty = jt.RMSNorm(N)
    assert empty.weight.is_meta
    with pytest.raises(
        ValueError, match=r"x must end with the module's shape \[24\], got \[3, 8\]"
    ):
        zero(x[:, :8])


def test_autocast_is_the_originals() -> None:
    x, weight = draw(3, N, dtype=torch.bfloat16), draw(N, dtype=torch.bfloat16, seed=1)
    with torch.autocast("cpu", dtype=torch.bfloat16):  # that of CUDA is tested on a GPU
        assert jt.rms_norm(x, weight).dtype == F.rms_norm(x, (N,), weight).dtype == torch.bfloat16


def test_a_pytorch_that_does_not_tell_its_levels_has_the_formula(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A kernel would lose the tangent of a dual tensor without a word."""
    monkeypatch.delattr(forward_ad, "_current_level")
    assert functional.__spec__ is not None
    copy = importlib.util.module_from_spec(functional.__spec__)
    assert functional.__spec__.loader is not None
    functional.__spec__.loader.exec_module(copy)
    assert copy._levels._current_level >= 0
