"""Small PTX kernels around a few instructions, run in the emulator on numpy arrays."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from jax_ptx import _ext

HEADER = ".version 9.2\n.target sm_100a\n.address_size 64\n"
BLOCK = 128

# dtype: register type, and the type of its load and store.
SPELLING = {
    np.dtype(np.uint8): ("b16", "u8"),
    np.dtype(np.int8): ("b16", "s8"),
    np.dtype(np.uint16): ("b16", "b16"),
    np.dtype(np.int16): ("b16", "b16"),
    np.dtype(np.float16): ("b16", "b16"),
    np.dtype(ml_dtypes.bfloat16): ("b16", "b16"),
    np.dtype(np.uint32): ("b32", "b32"),
    np.dtype(np.int32): ("b32", "b32"),
    np.dtype(np.float32): ("f32", "f32"),
    np.dtype(np.uint64): ("b64", "b64"),
    np.dtype(np.int64): ("b64", "b64"),
    np.dtype(np.float64): ("f64", "f64"),
}


def emulate(
    text: str,
    buffers: Sequence[np.ndarray],
    n_results: int = 1,
    *,
    entry: str = "k",
    grid: tuple[int, int, int] = (1, 1, 1),
    block: tuple[int, int, int] = (32, 1, 1),
    cluster: tuple[int, int, int] = (1, 1, 1),
    smem_bytes: int = 0,
    **options: Any,
) -> None:
    """Runs a whole PTX module; the last `n_results` buffers are written."""
    attributes = {
        "ptx": text,
        "entry": entry,
        "key": 0,
        "grid": grid,
        "block": block,
        "cluster": cluster,
        "smem_bytes": smem_bytes,
        "rows_per_cta": 0,
        "unit_bytes": [buffer.nbytes for buffer in buffers],
        "dims": [0] * len(buffers),
        "global_dims": [],
        "batch": [],
        "batch_mask": [],
    }
    _ext.emulate(attributes, buffers, n_results, **options)


def kernel(body: str, parameters: Sequence[str] = ("x", "y"), *, before: str = "") -> str:
    """An entry `k` whose pointers are in %x, %y, …, the thread's number in %tid and its warp's in %wid."""
    declared = ", ".join(f".param .u64 p_{name}" for name in parameters)
    loads = "\n".join(
        f".reg .b64 %{name}; ld.param.u64 %{name}, [p_{name}];" for name in parameters
    )
    return f"""{HEADER}{before}
.visible .entry k({declared})
{{
.reg .pred %p<16>;
.reg .b16 %h<32>;
.reg .b32 %r<64>;
.reg .f32 %f<32>;
.reg .b64 %rd<32>;
.reg .f64 %fd<32>;
.reg .b32 %t, %n, %i;
{loads}
mov.u32 %t, %tid.x;
mov.u32 %n, %ntid.x;
mov.u32 %i, %ctaid.x;
mad.lo.u32 %i, %i, %n, %t;
{body}
ret;
}}
"""


def map_lanes(body: str, inputs: Sequence[np.ndarray], out: Any, *, before: str = "") -> np.ndarray:
    """Runs `body` for each element: inputs are in %a0, %a1, …, and the result is left in %d."""
    n = inputs[0].size
    result = np.zeros(n, out)
    loads = []
    for index, array in enumerate(inputs):
        register, access = SPELLING[array.dtype]
        loads.append(
            f".reg .{register} %a{index}; mad.wide.u32 %rd0, %i, {array.itemsize}, %x{index};\n"
            f"ld.global.{access} %a{index}, [%rd0];"
        )
    register, access = SPELLING[result.dtype]
    text = kernel(
        f"setp.ge.u32 %p0, %i, {n}; @%p0 ret;\n"
        + "\n".join(loads)
        + f"\n.reg .{register} %d;\n{body}\n"
        f"mad.wide.u32 %rd0, %i, {result.itemsize}, %y; st.global.{access} [%rd0], %d;",
        [*(f"x{i}" for i in range(len(inputs))), "y"],
        before=before,
    )
    buffers = [*(np.ascontiguousarray(array) for array in inputs), result]
    emulate(text, buffers, grid=(-(-n // BLOCK), 1, 1), block=(BLOCK, 1, 1))
    return result


def line_of(text: str, fragment: str) -> int:
    """The number of the one line that holds `fragment`."""
    found = [i for i, line in enumerate(text.splitlines(), 1) if fragment in line]
    assert len(found) == 1, found
    return found[0]


def with_lines(expected: str, text: str) -> str:
    """`expected` with the number of the line of `text` that holds it in place of each <fragment>."""
    return re.sub(r"<(.+?)>", lambda match: str(line_of(text, match[1])), expected)
