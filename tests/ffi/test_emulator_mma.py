"""mma of floats in the emulator against what an H200 gave: the bits of every element of a warp.

`python -m benchmarks.exactness.record` wrote the first file. The second holds what
`python -m benchmarks.exactness` found: sums beyond float32, of which it keeps a lane's results.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.exactness import execute, texts
from benchmarks.exactness.forms import BLOCK, Form
from benchmarks.exactness.record import mma_forms

RECORDED = np.load(Path(__file__).parent / "h200_mma.npz")
OVERFLOWS = np.load(Path(__file__).parent / "h200_mma_overflow.npz")
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
