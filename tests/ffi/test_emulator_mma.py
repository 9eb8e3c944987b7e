"""mma of floats in the emulator against what an H200 gave: the bits of every element of a warp.

`python -m benchmarks.exactness.record` wrote the file.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.exactness import execute, texts
from benchmarks.exactness.forms import BLOCK, Form
from benchmarks.exactness.record import mma_forms

RECORDED = np.load(Path(__file__).parent / "h200_mma.npz")


@pytest.mark.parametrize("form", mma_forms(), ids=lambda form: form.sample.name)
def test_sums_are_added_as_on_the_gpu(form: Form) -> None:
    name = form.sample.name
    operands = [RECORDED[f"{name}/{index}"] for index in range(len(form.sources))]
    kernel = texts.kernel([form], BLOCK)
    # The recorded warp twice makes a CTA.
    (got,) = execute.emulate(kernel, [np.tile(x, 2) for x in operands])
    want = RECORDED[f"{name}/results"]
    np.testing.assert_array_equal(got.view(want.dtype).reshape(-1, BLOCK)[:, :32], want)
