"""Everything that rms_norm and the examples emit, through ptxas, for every target."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from jax_ptx import toolkit
from jax_ptx.ops.rms_norm.kernels import forward_launch
from jax_ptx.report import TARGETS

# One length for each shape of the code: rows that share a warp, that fill it, several warps, a loop;
# each with and without a remainder, with every width of access.
LENGTHS = (7, 24, 160, 1000, 4096, 65536, 65537, 100000)
DTYPES = ("float32", "bfloat16", "float64")  # float16 takes bfloat16's path

EXAMPLES = Path(__file__).parents[2] / "examples"


def check(text: str, entry: str, target: str) -> None:
    assembly = toolkit.assemble(text, target)[entry]
    assert assembly.spill_bytes == 0, f"{entry} spills on {target}"


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("n", LENGTHS)
def test_rms_norm(n: int, target: str) -> None:
    text, entries = "", []
    # The modules of all dtypes as one, so that ptxas starts once.
    for dtype in DTYPES:
        for weight_dtype, grouped in ((None, False), (dtype, False), ("float32", True)):
            launch = forward_launch(
                n=n,
                x_dtype=dtype,
                weight_dtype=weight_dtype,
                grouped=grouped,
                eps=1e-6,
                with_rstd=False,
            )
            entry = f"{dtype}_{len(entries)}"
            header, body = launch.ptx.split(".visible", 1)
            assert ".target sm_80" in header, "the kernels need no newer target"
            text = text or header
            text += ".visible" + body.replace(f" {launch.entry}(", f" {entry}(", 1)
            entries.append(entry)
    assemblies = toolkit.assemble(text, target)
    assert sorted(assemblies) == sorted(entries)
    for entry, assembly in assemblies.items():
        # ptxas calls routines of its own for a float64 reciprocal and a 64-bit division, and may save
        # a register or two around them.
        if not entry.startswith("float64"):
            assert assembly.spill_bytes == 0, f"{entry} spills on {target}"


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["rms_norm", "layer_norm", "softmax", "swiglu"])
def test_examples(name: str, target: str, monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    module = importlib.import_module(name)
    try:
        for sizes in (*module.CASES, (3, 1), (2, 33)):
            kernel = getattr(module, f"build_{name}")(*sizes)
            check(kernel.ptx(), name, target)
    finally:
        for loaded in (name, "row", "runner"):
            sys.modules.pop(loaded, None)
