"""Kernels that are called with PyTorch tensors."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from jax_ptx import Tile, kernel, ptx, reg
from jax_ptx.types import bf16, u32
from tests.dsl.test_aliases import accumulate


def test_pytorch_tensors():
    torch = pytest.importorskip("torch")

    @kernel(
        in_specs=(Tile("n", bf16),), out_specs=(Tile("n", bf16), Tile("n", u32)), grid=lambda n: n
    )
    def k(x, y, z):
        px, py, pz = ptx.global_ptrs(x, y, z)
        i = reg.from_(ptx.special.ctaid.x(), u32)
        value = reg.scalar(bf16)
        ptx.inst.ld.global_.b16(value, ptx.addr(px + i * 2))
        ptx.inst.st.global_.b16(ptx.addr(py + i * 2), value)
        ptx.inst.st.global_.u32(ptx.addr(pz + i * 4), i)

    x = torch.arange(5).to(torch.bfloat16)
    y, z = k(x)
    assert torch.equal(y, x)
    assert z.tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(
        TypeError, match=r"k: argument x must have dtype bfloat16 .bf16., got float32"
    ):
        k(x.float())
    with pytest.raises(ValueError, match="k: argument x must have rank 1"):
        k(x[None])
    for other, make in ((jnp.ones(8), "from_dlpack"), (np.ones(8, np.float32), "from_numpy")):
        for arrays in ((torch.ones(8), other), (other, torch.ones(8))):
            name = "x" if arrays[1] is other else "total"
            with pytest.raises(TypeError, match=f"{name} must be a PyTorch tensor, .*torch.{make}"):
                accumulate({})(*arrays)
