"""mma of floats in the emulator against what an H200 gave: the bits of every element of a warp.

`python -m benchmarks.exactness.record` wrote the first file. The second holds what
`python -m benchmarks.exactness` found: sums beyond float32, of which it keeps a lane's results. The third is
matmul_tf32 of the programs in CUDA C++, whose wmma is made of mma.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.exactness import execute, texts
from benchmarks.exactness.forms import BLOCK, Form
from benchmarks.exactness.record import mma_forms
from tests.ffi.emulation import emulate

RECORDED = np.load(Path(__file__).parent / "h200_mma.npz")
OVERFLOWS = np.load(Path(__file__).parent / "h200_mma_overflow.npz")
WMMA = np.load(Path(__file__).parent / "h200_wmma_tf32.npz")
FORMS = {form.sample.name: form for form in mma_forms()}


@pytest.mark.parametrize("form", mma_forms(), ids=lambda form: form.sample.name)
def test_sums_are_added_as_on_the_gpu(form: Form) -> None:
    name = form.sample.name
    operands = [RECORDED[f"{name}/{index}"] for index in range(len(form.sources))]
    kernel = texts.kernel([form], BLOCK)
    # The recorded warp twice makes a CTA.
    (got,) = execute.emulate(kernel, [np.tile(x, 2) for x in operands])
    want = RECORDED[f"{name}/results"]
    np.testing.assert_array_equal(got.view(want.dtype).reshape(-1, BLOCK)[:, :32], want)


@pytest.mark.parametrize("key", [key for key in OVERFLOWS.files if not key.endswith("lane")])
def test_sums_beyond_float32_are_infinite_though_others_are_cut(key: str) -> None:
    form = FORMS[key.split("/")[0]]
    (got,) = execute.emulate(texts.kernel([form], BLOCK), [np.tile(x, 2) for x in OVERFLOWS[key]])
    lane, *want = OVERFLOWS[f"{key}/lane"]
    assert any(bits & 0x7FFFFFFF == 0x7F800000 for bits in want)
    np.testing.assert_array_equal(got.view(np.uint32).reshape(-1, BLOCK)[:, lane], want)


@pytest.mark.parametrize("compiled", ["sm_80_O0", "sm_90_O3"])
def test_a_wmma_of_tf32_is_two_mma_of_four_columns(compiled: str) -> None:
    text = (Path(__file__).parent / "nvcc" / f"{compiled}.ptx").read_text()
    c = np.zeros_like(WMMA["c"])
    emulate(text, [WMMA["a"], WMMA["b"], c], entry="matmul_tf32")
    np.testing.assert_array_equal(c.view(np.uint32), WMMA["c"].view(np.uint32))
