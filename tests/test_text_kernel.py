"""What `ptx_kernel` refuses at once: arguments of the wrong type, sizes past a limit."""

from __future__ import annotations

import time

import jax.numpy as jnp
import numpy as np
import pytest

from jax_ptx import Tile, ptx_kernel
from jax_ptx.types import f32

TEXT = ".version 7.0\n.target sm_80\n.entry k(.param .u64 x, .param .u64 y) { ret; }"
TILE = Tile(4, f32)


@pytest.mark.parametrize(
    ("changed", "kind", "message"),
    [
        ({"in_specs": None}, TypeError, "k: in_specs must be a tuple of Tile, got None"),
        ({"in_specs": TILE}, TypeError, "k: in_specs must be a tuple .* alone; write .*,\\)"),
        ({"out_specs": "Tile"}, TypeError, "k: out_specs must be a tuple of Tile, got 'Tile'"),
        ({"out_specs": ("x",)}, TypeError, "k: out_specs must .* got 'x' at position 0"),
        (
            {"smem": "x"},
            TypeError,
            "k: smem must be a number of bytes, an int, got 'x' of type str",
        ),
        ({"smem": True}, TypeError, "k: smem must be a number of bytes"),
        ({"smem": -5}, ValueError, "k: smem must be a number of bytes, 0 or more, got -5"),
        ({"grid": "x"}, TypeError, "k: grid must be an int or a tuple .* got 'x'"),
        ({"grid": None}, TypeError, "k: grid must be an int or a tuple .* got None"),
        ({"grid": (1, 65536)}, ValueError, "k: grid must lie between"),
        ({"block": 1.5}, TypeError, "k: block must be an int or a tuple .* got 1.5"),
        ({"block": 2048}, ValueError, "k: block must lie between"),
        ({"cluster": "2"}, TypeError, "k: cluster must be an int or a tuple .* got '2'"),
        ({"entry": 3}, ValueError, "has no entry 3; it has k"),
        ({"input_output_aliases": [(0, 0)]}, TypeError, "input_output_aliases must be a dict"),
        ({"input_output_aliases": {0: "y"}}, TypeError, "input_output_aliases must be a dict"),
    ],
)
def test_arguments_that_are_refused(changed, kind, message) -> None:
    options = {"in_specs": (TILE,), "out_specs": (TILE,), **changed}
    with pytest.raises(kind, match=message):
        ptx_kernel(TEXT, **options)


def test_lists_do_where_tuples_do() -> None:
    k = ptx_kernel(TEXT, in_specs=[TILE], out_specs=[TILE], grid=[2, 3], block=[64])
    assert (k.in_specs, k.block, k.launch().grid) == ((TILE,), (64, 1, 1), (2, 3, 1))


# ---- texts and values from anyone ----


@pytest.mark.parametrize("text", ["/* " * 100_000, ".entry k(" * 20_000, '"' * 100_000])
def test_a_text_without_an_end_is_read_in_linear_time(text: str) -> None:
    start = time.monotonic()
    with pytest.raises(ValueError, match=r"\.entry|parameters"):
        ptx_kernel(text, in_specs=(Tile(4, f32),), out_specs=(Tile(4, f32),), grid=1)
    assert time.monotonic() - start < 5


def test_a_text_with_half_a_character() -> None:
    with pytest.raises(ValueError, match=r"ptx_kernel: the text is not Unicode: .*surrogates") as e:
        ptx_kernel(TEXT + " // \ud800", in_specs=(TILE,), out_specs=(TILE,))
    assert type(e.value) is ValueError


def test_variables_by_name() -> None:
    text = (
        ".version 7.0\n.target sm_80\n.address_size 64\n"
        ".visible .entry f(.param .u64 x, .param .u64 y)\n{\n  ret;\n}\n"
    )
    k = ptx_kernel(text, in_specs=(Tile(4, f32),), out_specs=(Tile("m", f32),), grid=1)
    assert k(jnp.ones(4), m=np.int64(3)).shape == (3,)
    for value in (-4, 4.5, "a", True):
        with pytest.raises(ValueError, match=r"f: m must be an int of 0 or more, got"):
            k(jnp.ones(4), m=value)
