"""Kernels that write in place: `input_output_aliases`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from jax_ptx import Kernel, Tile, kernel, ptx, reg
from jax_ptx.types import f32


def accumulate(aliases) -> Kernel:
    @kernel(
        in_specs=(Tile(8, f32), Tile(8, f32)),
        out_specs=(Tile(8, f32),),
        block=8,
        input_output_aliases=aliases,
    )
    def accumulate(total, x, result):
        pt, px = ptx.global_ptrs(result, x)
        at = ptx.special.tid.x() * 4
        a, b = reg.array(f32, 2)
        ptx.inst.ld.global_.f32(a, ptx.addr(pt + at))
        ptx.inst.ld.global_.f32(b, ptx.addr(px + at))
        ptx.inst.st.global_.f32(ptx.addr(pt + at), a + b)

    return accumulate


def test_a_kernel_that_writes_in_place():
    k = accumulate({0: 0})
    x, ones = jnp.arange(8.0), jnp.ones(8)
    assert k(x, ones).tolist() == (x + ones).tolist()
    assert jax.vmap(k, (None, 0))(x, jnp.ones((3, 8))).tolist() == [(x + ones).tolist()] * 3
    assert x.tolist() == list(range(8)), "an input that was not donated stays as it is"
    donated = jax.jit(k, donate_argnums=0)(jnp.arange(8.0), ones)
    assert donated.tolist() == (x + ones).tolist()


@pytest.mark.parametrize(
    ("aliases", "message"),
    [
        ({2: 0}, "pairs input 2 with output 0; it takes each of 2 inputs and 1 outputs once"),
        ({0: 0, 1: 0}, "pairs input 0 with output 0"),
    ],
)
def test_aliases_that_are_refused(aliases, message):
    with pytest.raises(ValueError, match=message):
        accumulate(aliases)
