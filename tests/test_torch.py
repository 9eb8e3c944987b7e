"""Kernels on PyTorch tensors. What needs a GPU is in tests/gpu."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from jax_ptx import Tile, kernel, ptx, reg  # noqa: E402
from jax_ptx import torch as bridge  # noqa: E402
from jax_ptx.launch import Launch  # noqa: E402
from jax_ptx.types import f32  # noqa: E402

COPY = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry copy(.param .u64 x, .param .u64 y)
{
  .reg .u16 %h<1>;
  .reg .u32 %r<4>;
  .reg .u64 %rd<5>;
  ld.param.u64 %rd0, [x];
  ld.param.u64 %rd1, [y];
  mov.u32 %r0, %tid.x;
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mad.lo.u32 %r3, %r1, %r2, %r0;
  mul.wide.u32 %rd2, %r3, 2;
  add.s64 %rd3, %rd0, %rd2;
  add.s64 %rd4, %rd1, %rd2;
  ld.global.u16 %h0, [%rd3];
  st.global.u16 [%rd4], %h0;
  ret;
}
"""


def copy_launch(n_bytes: int) -> Launch:
    """Copies 8 values of 16 bits a CTA."""
    return Launch(
        ptx=COPY,
        entry="copy",
        grid=(n_bytes // 16, 1, 1),
        block=(8, 1, 1),
        cluster=(1, 1, 1),
        smem_bytes=0,
        unit_bytes=(n_bytes, n_bytes),
        dims=(0, 0),
    )


@pytest.mark.parametrize(
    "name", ["float32", "bfloat16", "float16", "float8_e4m3fn", "int64", "bool"]
)
def test_every_dtype_passes_unchanged(name: str) -> None:
    dtype = getattr(torch, name)
    x = torch.arange(48).reshape(3, 16).to(dtype)
    (y,) = bridge.call(copy_launch(x.nbytes), [x], [((3, 16), name)])
    assert y.dtype == dtype
    assert y.device == x.device
    assert torch.equal(y.view(torch.uint8), x.view(torch.uint8))


def test_a_tensor_that_is_not_contiguous_is_copied() -> None:
    x = torch.arange(64.0).reshape(8, 8).T
    (y,) = bridge.call(copy_launch(x.nbytes), [x], [((8, 8), "float32")])
    assert torch.equal(y, x)
    assert y.is_contiguous()


# 16 bytes a thread, which the addresses must be multiples of.
WIDE_COPY = (
    COPY.replace("%r3, 2;", "%r3, 16;")
    .replace("ld.global.u16 %h0", "ld.global.v4.u32 {%r0, %r1, %r2, %r3}")
    .replace("st.global.u16 [%rd4], %h0", "st.global.v4.u32 [%rd4], {%r0, %r1, %r2, %r3}")
)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "uint8"])
@pytest.mark.parametrize("first", [1, 3, 16])
def test_a_view_that_begins_anywhere(name: str, first: int) -> None:
    dtype = getattr(torch, name)
    x = torch.arange(128 + first).to(dtype)[first:]
    assert x.is_contiguous()
    launch = dataclasses.replace(copy_launch(x.nbytes), ptx=WIDE_COPY, grid=(x.nbytes // 128, 1, 1))
    (y,) = bridge.call(launch, [x], [((128,), name)])
    assert torch.equal(y, x)


def test_a_view_with_pending_negation_passes_its_values() -> None:
    x = torch.view_as_complex(torch.arange(32.0).reshape(16, 2)).conj().imag
    assert x.is_neg()
    (y,) = bridge.call(copy_launch(x.nbytes), [x], [((16,), "float32")])
    assert torch.equal(y, x)


def test_a_view_into_a_larger_tensor() -> None:
    x = torch.arange(40.0)[3:35]
    (y,) = bridge.call(copy_launch(x.nbytes), [x], [((32,), "float32")])
    assert torch.equal(y, x)


def test_nothing_to_do() -> None:
    (y,) = bridge.call(copy_launch(0), [torch.empty(0, 4)], [((0, 4), "float32")])
    assert y.shape == (0, 4)


def test_a_kernel_inside_an_autograd_function() -> None:
    class Copy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return bridge.call(copy_launch(x.nbytes), [x], [(tuple(x.shape), "float32")])[0]

        @staticmethod
        def backward(ctx, gradient):
            return bridge.call(
                copy_launch(gradient.nbytes), [gradient], [(tuple(gradient.shape), "float32")]
            )[0]

    x = torch.arange(8.0, requires_grad=True)
    Copy.apply(x).backward(torch.arange(8.0))
    assert x.grad is not None
    assert torch.equal(x.grad, torch.arange(8.0))


def call_copy(x: Any) -> Any:
    return bridge.call(copy_launch(x.nbytes), [x], [(tuple(x.shape), "float32")])[0]


@pytest.mark.filterwarnings("ignore")  # PyTorch's own, of its compiler
def test_a_kernel_as_an_operator_under_compile_and_vmap() -> None:
    """The way that the errors above name."""

    operator = torch.library.custom_op(
        "jax_ptx_tests::copy", mutates_args=(), schema="(Tensor x) -> Tensor"
    )
    copy = operator(call_copy)
    copy.register_fake(torch.empty_like)
    copy.register_vmap(lambda info, dims, x: (call_copy(x.movedim(dims[0], 0)), 0))
    x = torch.arange(32.0).reshape(4, 8)
    assert torch.equal(torch.compile(copy, fullgraph=True, backend="aot_eager")(x), x)
    assert torch.equal(torch.func.vmap(copy, in_dims=1)(x), x.T)


def test_devices_are_checked() -> None:
    launch = copy_launch(32)
    x, meta = torch.zeros(8), torch.zeros(8, device="meta")
    with pytest.raises(ValueError, match="copy: the operands must be on one device, got cpu, meta"):
        bridge.call(launch, [x, meta], [])
    with pytest.raises(
        ValueError, match="copy: the operands must be on a CPU or an NVIDIA GPU, got"
    ):
        bridge.call(launch, [meta], [])
    with pytest.raises(
        ValueError, match="copy: the operands must be on one device, got no tensors"
    ):
        bridge.call(launch, [], [((8,), "float32")])


def test_a_dtype_that_torch_lacks() -> None:
    with pytest.raises(TypeError, match="copy: a result has dtype float6_e2m3, which PyTorch"):
        bridge.call(copy_launch(32), [torch.zeros(8)], [((8,), "float6_e2m3")])


def test_errors_of_the_emulator_are_pythons() -> None:
    with pytest.raises(ValueError, match="kernel `copy`: result 0 must have 32 bytes, got 16"):
        bridge.call(copy_launch(32), [torch.zeros(8)], [((4,), "float32")])


def test_a_kernel_that_writes_in_place_leaves_its_operand_alone() -> None:
    @kernel(in_specs=(Tile(4, f32),), out_specs=(Tile(4, f32),), input_output_aliases={0: 0})
    def double(x, y):
        px, py = ptx.global_ptrs(x, y)
        for i in range(4):
            value = reg.scalar(f32)
            ptx.inst.ld.global_.f32(value, ptx.addr(px, 4 * i))
            ptx.inst.st.global_.f32(ptx.addr(py, 4 * i), value + value)

    x = torch.arange(4.0)
    y = double(x)
    assert torch.equal(y, 2 * torch.arange(4.0))
    assert torch.equal(x, torch.arange(4.0))
    assert y.data_ptr() != x.data_ptr()
