"""What a text costs: registers that are never in use together share their place; it is compiled once."""

from __future__ import annotations

import time

import numpy as np
import pytest

from jax_ptx import _ext
from jax_ptx.ops.rms_norm.kernels import forward_launch
from jax_ptx.ops.rms_norm.options import Options
from tests.ffi.emulation import HEADER, emulate, kernel

MOST_BYTES = 64 * 1024


def warp_bytes(text: str, n_tensors: int = 1) -> int:
    attributes = {
        "ptx": text,
        "entry": "k",
        "key": 0,
        "grid": (1, 1, 1),
        "block": (32, 1, 1),
        "cluster": (1, 1, 1),
        "smem_bytes": 0,
        "rows_per_cta": 0,
        "batch": [],
        "batch_mask": [],
        "unit_bytes": [4] * n_tensors,
        "dims": [0] * n_tensors,
        "global_dims": [],
    }
    return _ext.warp_bytes(attributes)


def test_a_long_chain_of_registers_takes_little() -> None:
    n = 3000
    chain = "".join(f"add.u32 %c{i + 1}, %c{i}, {i};\n" for i in range(n))
    body = (
        f".reg .b32 %c<{n + 1}>; add.u32 %c0, %t, 5;\n{chain}"
        f"mad.wide.u32 %rd1, %t, 4, %y; st.global.u32 [%rd1], %c{n};"
    )
    text = kernel(body, ["y"])
    y = np.zeros(32, np.uint32)
    emulate(text, [y])
    np.testing.assert_array_equal(y, np.arange(32) + 5 + n * (n - 1) // 2)
    assert warp_bytes(text) < MOST_BYTES // 2


@pytest.mark.parametrize("n", [128, 4096, 16384, 65536])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_rms_norm_takes_at_most_64_kilobytes_a_warp(n: int, dtype: str) -> None:
    launch = forward_launch(
        n=n,
        x_dtype=dtype,
        weight_dtype=dtype,
        grouped=False,
        with_rstd=True,
        options=Options(1e-6),
        residual=True,
        out_dtype=None,
    )
    assert _ext.warp_bytes(launch.attributes()) <= MOST_BYTES


# What a register holds at the places where its life is not a straight line.
LIVES = {
    "over a loop": """
        mov.u32 %a, 7; mov.u32 %s, 0; mov.u32 %k, 0;
        L: mov.u32 %b, %k; add.u32 %s, %s, %b; add.u32 %k, %k, 1; setp.lt.u32 %p0, %k, 5; @%p0 bra L;
        add.u32 %d, %a, %s;""",
    "round a loop, read before it is written": """
        mov.u32 %a, 1; mov.u32 %k, 0; bra M;
        L: mov.u32 %b, 100; add.u32 %b, %b, %k; mul.lo.u32 %a, %a, 2;
        M: add.u32 %a, %a, 1; add.u32 %k, %k, 1; setp.lt.u32 %p0, %k, 4; @%p0 bra L;
        mov.u32 %d, %a; mov.u32 %b, 0; add.u32 %d, %d, 2;""",
    "on one side of a branch": """
        setp.lt.u32 %p0, %t, 16; @%p0 bra A; mov.u32 %a, 3; mov.u32 %d, 14; bra E;
        A: mov.u32 %b, 9; mov.u32 %s, 4; mov.u32 %k, 4; add.u32 %d, %b, %s; add.u32 %d, %d, %k;
        sub.u32 %d, %d, 0; E: selp.u32 %a, 3, 0, %p0; add.u32 %d, %d, %a; sub.u32 %d, %d, %a;
        selp.u32 %s, 0, 3, %p0; add.u32 %d, %d, %s;""",
    "under a guard": """
        mov.u32 %a, 10; mov.u32 %b, 7; setp.lt.u32 %p0, %t, 16; @%p0 mov.u32 %a, 20;
        mov.u32 %k, 1; mov.u32 %s, 2; @%p0 sub.u32 %a, %a, 10; add.u32 %d, %a, %b;""",
    "through a call": """
        mov.u32 %a, 16; { .param .b32 in; .param .b32 out; st.param.b32 [in], %a;
        call (out), half, (in); ld.param.b32 %b, [out]; } add.u32 %s, %a, 1; sub.u32 %s, %s, 8;
        add.u32 %d, %b, %s;""",
}
HALF = """.func (.param .b32 q) half(.param .b32 p)
{ .reg .b32 %x, %y, %z; ld.param.u32 %x, [p]; shr.u32 %y, %x, 1; mov.u32 %z, %y;
st.param.b32 [q], %z; ret; }
"""


@pytest.mark.parametrize(
    ("name", "expected"), [*zip(LIVES, [17, 25, 17, 17, 17], strict=True)], ids=list(LIVES)
)
def test_a_value_stays_as_long_as_it_is_read(name: str, expected: int) -> None:
    body = LIVES[name]
    text = kernel(
        f".reg .b32 %a, %b, %s, %k, %d;\n{body}\n"
        "mad.wide.u32 %rd1, %t, 4, %y; st.global.u32 [%rd1], %d;",
        ["y"],
        before=f"\n{HALF}",
    )
    assert text.startswith(HEADER)
    y = np.zeros(32, np.uint32)
    emulate(text, [y])
    np.testing.assert_array_equal(y, expected)


def test_a_text_is_parsed_and_compiled_once() -> None:
    lines = "add.u32 %r1, %r1, 1;\n" * 30_000
    text = kernel(f"mov.u32 %r1, 1; setp.ge.u32 %p1, %r1, 0; @%p1 bra END;\n{lines}END:", ["y"])
    y = np.zeros(32, np.uint32)
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        emulate(text, [y])
        seconds.append(time.perf_counter() - start)
    assert min(seconds[1:]) < seconds[0] / 4
