"""Everything that rms_norm and the examples emit, through ptxas, for every target."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from jax_ptx import Launch, toolkit
from jax_ptx.ops.rms_norm.kernels import forward_launch
from jax_ptx.ops.rms_norm.kernels_backward import backward_launch
from jax_ptx.report import TARGETS

# One length for each shape of the code: rows that share a warp, that fill it, several warps, a loop;
# each with and without a remainder, with every width of access.
FORWARD = (7, 24, 1000, 4096, 32768, 65536, 100000)
BACKWARD = (7, 128, 1000, 1001, 4096, 8192, 16384)
DTYPES = ("float32", "bfloat16", "float64")  # float16 takes bfloat16's path

EXAMPLES = Path(__file__).parents[2] / "examples"

# Bytes that are spilled: where that was measured to be faster than what spills nothing (config.py), and
# for a float32 weight of the longest bfloat16 rows, whose 32 registers are too many.
# float64 has no limit: ptxas calls routines of its own for a reciprocal, and saves registers around them.
SPILLS = {
    ("forward", "bfloat16", 65536): 136,
    ("forward", "float32", 100000): 48,
    ("backward", "bfloat16", 16384): 168,
}


def launches(kernel: str, n: int, dtype: str) -> list[Launch]:
    """The launches of one dtype: without a weight, with one, with several of another dtype."""
    found = []
    for weight_dtype, grouped in ((None, False), (dtype, False), ("float32", True)):
        facts = {"n": n, "x_dtype": dtype, "weight_dtype": weight_dtype, "grouped": grouped}
        if kernel == "forward":
            found.append(forward_launch(**facts, eps=1e-6, with_rstd=weight_dtype is None))
        else:
            need_dw = weight_dtype is not None
            found.append(backward_launch(**facts, need_dx=True, need_dw=need_dw))
    return [launch for launch in found if launch]


def as_one_module(named: dict[str, Launch]) -> str:
    """All the entries as one text under new names, so that ptxas starts once."""
    heads, bodies = {}, []
    for name, launch in named.items():
        head, body = launch.ptx.split(".visible", 1)
        assert ".target sm_80" in head, "the kernels need no newer target"
        heads |= dict.fromkeys(line for line in head.splitlines() if line)
        bodies.append(".visible" + body.replace(f" {launch.entry}(", f" {name}(", 1))
    return "\n".join([*heads, *bodies])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("kernel", "n"), [*(("forward", n) for n in FORWARD), *(("backward", n) for n in BACKWARD)]
)
def test_rms_norm(kernel: str, n: int, target: str) -> None:
    named = {
        f"{dtype}_{index}": launch
        for dtype in DTYPES
        for index, launch in enumerate(launches(kernel, n, dtype))
    }
    assemblies = toolkit.assemble(as_one_module(named), target)
    assert sorted(assemblies) == sorted(named)
    for name, assembly in assemblies.items():
        dtype = name.split("_")[0]
        if dtype != "float64":
            assert assembly.spill_bytes <= SPILLS.get((kernel, dtype, n), 0), f"{name} on {target}"
        smem_bytes = assembly.smem_bytes + named[name].smem_bytes
        assert smem_bytes <= 99 * 1024, f"{name} takes more shared memory than sm_89 has"


def check(text: str, entry: str, target: str) -> None:
    assembly = toolkit.assemble(text, target)[entry]
    assert assembly.spill_bytes == 0, f"{entry} spills on {target}"


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["rms_norm", "layer_norm", "softmax", "swiglu"])
def test_examples(name: str, target: str, monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    module = importlib.import_module(name)
    try:
        for sizes in (module.CASES[-1], (2, 33)):
            kernel = getattr(module, f"build_{name}")(*sizes)
            check(kernel.ptx(), name, target)
    finally:
        for loaded in (name, "row", "runner"):
            sys.modules.pop(loaded, None)
