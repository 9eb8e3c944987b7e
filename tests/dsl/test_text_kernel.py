"""A kernel from a PTX text: reading its entries, checking its parameters, calling it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from jax_ptx import RunTime, Tile, ptx_kernel
from jax_ptx.text_kernel import read_entries
from jax_ptx.types import f32

TEXT = """
// .entry commented(.param .u64 a)
.version 7.0
.target sm_80
.address_size 64
/* .entry commented_too() */
.extern .func (.param .b32 r) f (.param .b64 a);
.visible .entry scale(
    .param .u64 x,  // the input
    .param .u64 .ptr .global .align 16 y
)
.maxntid 128, 1, 1
{
    ret;
}
.entry nothing { ret; }
.visible .entry mixed(.param .align 8 .b8 blob[16], .param .f32 s, .param .b64 y) { ret; }
"""


def options(**changed):
    tile = Tile("n", f32)
    return {"in_specs": (tile,), "out_specs": (tile,), "grid": lambda n: n, **changed}


def test_entries_are_read():
    assert read_entries(TEXT) == {
        "scale": [("x", "u64"), ("y", "u64")],
        "nothing": [],
        "mixed": [("blob", "b8[]"), ("s", "f32"), ("y", "b64")],
    }


def test_a_launch_record():
    k = ptx_kernel(TEXT, entry="scale", block=128, smem=16, **options())
    launch = k.launch(n=5)
    assert launch is k.launch(n=5)
    assert k.ptx() == launch.ptx == TEXT
    assert (launch.entry, launch.grid, launch.block) == ("scale", (5, 1, 1), (128, 1, 1))
    assert (launch.unit_bytes, launch.dims, launch.smem_bytes) == ((20, 20), (0, 0), 16)
    assert launch.retrace is None
    assert (k.in_specs, k.block, k.smem) == ((Tile("n", f32),), (128, 1, 1), 16)


def test_a_call_is_checked_and_bound():
    k = ptx_kernel(TEXT, entry="scale", **options())
    result = jax.eval_shape(k, jnp.ones(4))
    assert (result.shape, result.dtype) == ((4,), jnp.float32)
    with pytest.raises(TypeError, match="scale: argument x must have dtype float32"):
        k(jnp.ones(4, int))


def test_run_time_dimensions_follow_the_tensors():
    rows = Tile(RunTime("rows"), f32)
    text = ".entry k(.param .u64 x, .param .u64 y, .param .u64 rows) { ret; }"
    launch = ptx_kernel(text, in_specs=(rows,), out_specs=(rows,)).launch()
    assert (launch.unit_bytes, launch.dims) == ((4, 4), (1, 1))
    with pytest.raises(
        ValueError, match="2 tensors and 0 run-time dimensions, and the entry has 3"
    ):
        ptx_kernel(text, **options())


@pytest.mark.parametrize(
    ("text", "changed", "message"),
    [
        (TEXT, {}, "several entries, choose one by entry=: scale, nothing, mixed"),
        (TEXT, {"entry": "scal"}, "no entry 'scal'; it has scale, nothing, mixed"),
        (".version 7.0", {}, "the PTX text has no .entry"),
        (
            TEXT,
            {"entry": "nothing"},
            "nothing: .* the entry has 0 parameters: none; each takes one .u64",
        ),
        (
            TEXT,
            {"entry": "scale", "out_specs": ()},
            r"has 2 parameters: .u64 x, .u64 y; each takes one",
        ),
        (
            TEXT,
            {"entry": "mixed", "in_specs": (Tile(1, f32),) * 2},
            r"the parameter blob is .b8\[\], and a tensor's is .u64; found: .b8\[\] blob, .f32 s, .b64 y",
        ),
    ],
)
def test_what_is_refused(text, changed, message):
    with pytest.raises(ValueError, match=message):
        ptx_kernel(text, **options(**changed))


def test_what_is_no_text():
    with pytest.raises(TypeError, match="ptx_kernel takes the PTX as a str, got bytes"):
        ptx_kernel(b"", **options())  # type: ignore[arg-type]
