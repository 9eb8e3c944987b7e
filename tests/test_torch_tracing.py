"""jax_ptx.torch under what traces: opcheck, torch.compile, export, fake tensors."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import jax_ptx.torch as jt  # noqa: E402
from tests.test_torch_rms_norm import EPS, IMPLEMENTATIONS, N, draw, exact, leaves  # noqa: E402

# PyTorch's own, in its compiler.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


def operator_cases(kernel: int) -> list[tuple[str, tuple[Any, ...]]]:
    x, other = draw(3, N, grad=True), draw(3, N, seed=1, grad=True)
    weight, rstd = draw(N, seed=2, grad=True), torch.rand(3) + 1
    return [
        ("rms_norm", (x, weight, kernel, 1e-6, 1.0, False)),
        ("rms_norm", (draw(2, 2, N, dtype=torch.bfloat16), None, kernel, 1e-6, 0.0, False)),
        ("add_rms_norm", (x, other, weight, kernel, 1e-6, 0.0, True)),
        ("rms_norm", (torch.ones(2, 0), None, kernel, 1e-6, 0.0, False)),
        ("add_rms_norm", (*[torch.ones(2, 0)] * 2, None, kernel, 1e-6, 0.0, False)),
        ("rms_norm_backward", (x, other, rstd, weight, None, kernel, 1e-6, 0.0, True, True)),
        (
            "rms_norm_backward",
            (x, other, rstd, weight, draw(3, N, seed=4), kernel, 1e-6, 0.0, False, True),
        ),
    ]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("case", range(len(operator_cases(0))))
def test_opcheck(case: int, implementation: Any) -> None:
    name, arguments = operator_cases(int(implementation == "ptx"))[case]
    results = torch.library.opcheck(getattr(torch.ops.jax_ptx, name).default, arguments)
    assert len(results) == 4
    assert set(results.values()) == {"SUCCESS"}


def test_a_derivative_of_the_operators_rstd() -> None:
    x, weight = leaves((3, 5), (5,))
    options = (0, EPS, 0.0, False)
    assert torch.autograd.gradcheck(
        lambda *a: torch.ops.jax_ptx.rms_norm(*a, *options), (x, weight)
    )
    assert torch.autograd.gradgradcheck(
        lambda *a: torch.ops.jax_ptx.add_rms_norm(*a, *options), (x, x.detach() + 1, weight)
    )


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_as_one_graph(dynamic: bool, implementation: Any) -> None:
    options: Any = {"eps": EPS, "weight_offset": 1.0, "implementation": implementation}

    def block(x: Any, residual: Any, weight: Any) -> Any:
        y, added = jt.add_rms_norm(2 * x, residual, weight, **options)
        return jt.rms_norm(y + added, weight, **options) * added

    compiled = torch.compile(block, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for rows in (3, 5):
        at = [
            draw(rows, N, grad=True),
            draw(rows, N, seed=1, grad=True),
            draw(N, seed=2, grad=True),
        ]
        got, expected = compiled(*at), block(*at)
        torch.testing.assert_close(got, expected)
        for a, b in zip(
            torch.autograd.grad(got.sum(), at), torch.autograd.grad(expected.sum(), at), strict=True
        ):
            torch.testing.assert_close(a, b)


def test_compile_of_a_module_by_the_default_backend() -> None:
    module = jt.RMSNorm(N, implementation="ptx")
    x = draw(3, N)
    torch.testing.assert_close(torch.compile(module, fullgraph=True)(x), module(x))


def test_what_is_compiled_is_checked_and_compiled_once() -> None:
    function = lambda x, w: torch.func.grad(lambda x: jt.rms_norm(x, w).pow(3).sum())(x)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    x, weight = draw(3, N), draw(N, seed=1)
    torch.testing.assert_close(compiled(x, weight), function(x, weight))
    jt.rms_norm(draw(3, N + 1))  # a plan more
    with torch.compiler.set_stance("fail_on_recompile"):
        compiled(x + 1, weight)
    with pytest.raises(Exception, match=r"weight must have shape"):
        torch.compile(lambda x: jt.rms_norm(x, weight[:1]), fullgraph=True, backend="eager")(x)


def test_only_the_weight_of_a_sum_needs_a_gradient() -> None:
    x, residual, weight = draw(3, N), draw(3, N, seed=1), draw(N, seed=2, grad=True)
    for implementation in IMPLEMENTATIONS:
        y, added = jt.add_rms_norm(x, residual, weight, eps=EPS, implementation=implementation)
        (got,) = torch.autograd.grad(y.sum() + added.sum(), weight)
        (expected,) = torch.autograd.grad(exact(x + residual, weight).sum(), weight)
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def test_export_and_fake_tensors_hold_the_operator() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    program = torch.export.export(jt.RMSNorm(N, implementation="ptx"), (draw(3, N),))
    assert "torch.ops.jax_ptx.rms_norm.default" in str(program.graph)
    torch.testing.assert_close(program.module()(draw(3, N)), jt.RMSNorm(N)(draw(3, N)))
    with FakeTensorMode():
        fake = jt.rms_norm(torch.empty(2, N, dtype=torch.bfloat16), implementation="ptx")
        assert (fake.shape, fake.dtype) == ((2, N), torch.bfloat16)
    meta = jt.rms_norm(torch.empty(2, N, device="meta"), implementation="ptx")
    assert meta.shape == (2, N)
