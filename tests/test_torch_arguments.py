"""What jax_ptx.torch's functions and module say of arguments that make no sense, and take of odd ones."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import jax_ptx  # noqa: E402
import jax_ptx.torch as jt  # noqa: E402
from tests.test_torch_callers import IMPLEMENTATIONS, draw  # noqa: E402

X = draw(2, 8)
NONE: dict[str, Any] = {}


@pytest.mark.parametrize(
    ("shape", "options", "error", "text"),
    [
        ("12", NONE, TypeError, "normalized_shape must be an int or ints, got str"),
        ([8.9], NONE, TypeError, "normalized_shape must be an int or ints, got float"),
        (True, NONE, TypeError, "normalized_shape must be an int or ints, got bool"),
        (8, {"implementation": "xla"}, ValueError, "implementation must be 'ptx', 'torch' or None"),
        (8, {"weight_offset": float("nan")}, ValueError, "weight_offset must be a finite"),
        (8, {"weight_offset": 10**400}, ValueError, "weight_offset must be a finite"),
        (8, {"weight_offset": "a"}, TypeError, "weight_offset must be a number, got str"),
        (8, {"weight_offset": 1.0, "elementwise_affine": False}, ValueError, "there is none"),
    ],
)
def test_a_module_is_refused_when_it_is_made(
    shape: Any, options: Any, error: Any, text: str
) -> None:
    with pytest.raises(error, match="RMSNorm: .*" + text):
        jt.RMSNorm(shape, **options)


def test_a_module_whose_weight_went() -> None:
    module: Any = jt.RMSNorm(torch.Size([8]), weight_offset=1.0)
    module.weight = None
    with pytest.raises(ValueError, match=r"weight_offset=1.0 is added to the weight"):
        module(X)


@pytest.mark.parametrize("eps", [torch.tensor(1e-5), True, 1e-50, -0.1])
def test_an_epsilon_that_only_the_original_takes(eps: Any) -> None:
    assert torch.equal(jt.RMSNorm(8, eps)(X), torch.nn.RMSNorm(8, eps)(X))
    with pytest.raises((TypeError, ValueError), match="eps must be"):
        jt.RMSNorm(8, eps, implementation="ptx")(X)


@pytest.mark.filterwarnings("ignore")  # that masked tensors are a prototype
def test_numbers_that_only_the_original_takes() -> None:
    x = X.to(torch.complex64)
    for options in ({}, {"dtype": torch.complex64}, {"elementwise_affine": False}):
        assert torch.equal(jt.RMSNorm(8, **options)(x), torch.nn.RMSNorm(8, **options)(x))
    masked = torch.masked.masked_tensor(X, torch.ones(2, 8, dtype=torch.bool))
    y = jt.RMSNorm(8)(masked)
    torch.testing.assert_close(y.get_data(), jt.RMSNorm(8)(X))


def test_what_the_original_refuses_has_its_class() -> None:
    for shape, x in ((8, X[:, :4]), ((), X), (8, X.int()), (8, X[0, 0]), ((2, 8), X[:1])):
        raised = []
        for module in (torch.nn.RMSNorm(shape), jt.RMSNorm(shape)):
            with pytest.raises(Exception, match=r".") as caught:
                module(x)
            raised.append((type(caught.value), str(caught.value)))
        assert raised[0] == raised[1]
    # Of more than the original has, in our words.
    zero = jt.RMSNorm((), weight_offset=1.0)
    with pytest.raises(ValueError, match=r"normalized_shape must have one dimension or more, got"):
        zero(X)


def test_a_module_of_pytorchs_given_the_class() -> None:
    module = torch.nn.RMSNorm(8)
    expected = module(X)
    module.__class__ = jt.RMSNorm
    torch.testing.assert_close(module(X), expected)


def test_the_repr_names_the_implementation() -> None:
    assert repr(jt.RMSNorm(8, implementation="ptx")).endswith("implementation='ptx')")
    assert "implementation" not in repr(jt.RMSNorm(8))


@pytest.mark.filterwarnings("ignore")  # that scripting is deprecated
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_scripted_module(dtype: Any) -> None:
    x = draw(2, 3, 8).to(dtype)
    for module in (
        jt.RMSNorm(8, implementation="ptx"),
        jt.RMSNorm((3, 8), 1e-5, weight_offset=1.0, dtype=torch.bfloat16),
        jt.RMSNorm(8, elementwise_affine=False),
    ):
        torch.testing.assert_close(torch.jit.script(module)(x), module(x))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_the_least_epsilon_is_that_of_jaxs_side(implementation: Any) -> None:
    for eps in (1e-40, 2**-149):
        y = jt.rms_norm(X, eps=eps, implementation=implementation)
        np.testing.assert_allclose(y, jax_ptx.rms_norm(jnp.asarray(X), eps=eps), rtol=1e-6)
    for eps in (2**-150, 10**400, -1.0):
        with pytest.raises(ValueError, match=r"rms_norm: eps must be 0 or a positive"):
            jt.rms_norm(X, eps=eps, implementation=implementation)


def test_a_sums_errors_have_its_name() -> None:
    x: Any
    options: Any
    for x, weight, options in (
        (X, X, NONE),
        (X, None, {"weight_offset": 10**400}),
        (X.int(), None, NONE),
        (X.numpy(), None, NONE),
        (X, None, {"implementation": "xla"}),
        (X, X[0].to("meta"), NONE),
    ):
        with pytest.raises((TypeError, ValueError), match=r"^add_rms_norm: "):
            jt.add_rms_norm(x, X, weight, **options)


def test_arrays_and_devices_name_the_mend() -> None:
    x: Any
    for x, make in ((np.ones(8), "from_numpy"), (jnp.ones(8), "from_dlpack")):
        with pytest.raises(TypeError, match=f"torch.{make} makes one, and jax_ptx.rms_norm takes"):
            jt.rms_norm(x)
    with pytest.raises(ValueError, match=r"weight must be on x's device cpu, got meta; .to moves"):
        jt.rms_norm(X, torch.ones(8, device="meta"))


@pytest.mark.filterwarnings("ignore")  # of what PyTorch calls a prototype
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_layouts(implementation: Any) -> None:
    weight = draw(8, grad=True)
    jagged = torch.nested.nested_tensor([X, X[:1]], layout=torch.jagged)
    y = jt.rms_norm(jagged, weight, implementation=implementation)
    torch.testing.assert_close(y.values()[:2], jt.rms_norm(X, weight))
    turned = torch.nested.nested_tensor([draw(2, 6, 8), draw(3, 6, 8)], layout=torch.jagged)
    turned = turned.transpose(1, 2)  # whose rows are not contiguous
    y = jt.rms_norm(turned, weight, implementation=implementation)
    for rows, expected in zip(y.unbind(), turned.unbind(), strict=True):
        torch.testing.assert_close(rows, jt.rms_norm(expected, weight))
    _, added = jt.add_rms_norm(jagged, jagged, implementation=implementation)
    torch.testing.assert_close(added.values()[:2], 2 * X)
    other = torch.nested.nested_tensor([X[:1], X], layout=torch.jagged)
    with pytest.raises(
        ValueError, match=r"nested_tensor_from_jagged\(values, x.offsets\(\)\) makes"
    ):
        jt.add_rms_norm(jagged, other, implementation=implementation)
    jt.add_rms_norm(
        jagged, torch.nested.nested_tensor_from_jagged(other.values(), jagged.offsets())
    )
    jt.rms_norm(X, implementation=implementation)  # whose plan a sparse tensor finds
    for other in (X.to_sparse(), X.to_mkldnn(), torch.nested.nested_tensor([X])):
        with pytest.raises(TypeError, match=r"x must be a strided tensor or a jagged one, got"):
            jt.rms_norm(other, implementation=implementation)
