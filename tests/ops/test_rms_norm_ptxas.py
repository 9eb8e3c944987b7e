"""Everything that rms_norm and the examples emit, through ptxas, for every target."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from pathlib import Path

import pytest

from jax_ptx import Launch, toolkit
from jax_ptx.ops.layout import PORTABLE
from jax_ptx.ops.rms_norm.config import forward_config, row_shares
from jax_ptx.ops.rms_norm.config_few import few_config
from jax_ptx.ops.rms_norm.kernels import forward_launch
from jax_ptx.ops.rms_norm.kernels_backward import backward_launch
from jax_ptx.ops.rms_norm.options import Options
from jax_ptx.report import TARGETS
from jax_ptx.toolkit import Assembly
from jax_ptx.types import by_numpy_name

# One length for each shape of the code: rows that share a warp, that fill it, several warps, a loop;
# each with and without a remainder, with every width of access.
FORWARD = (7, 24, 1000, 4096, 32768, 65536, 100000)
BACKWARD = (7, 128, 1000, 1001, 4096, 8192, 12288, 16384)
SHARES = (4096, 7168, 32768, 61440)  # forward of few rows
FEW = (512, 1024, 4096, 7168, 12288)  # backward of few rows
# What a target with large clusters has besides: larger rings, and rows that CTAs share.
LARGE_FORWARD = (4097, 10007, 24574, 61440, 65536, 131072, 262144)
LARGE_BACKWARD = (1536, 4097, 8192, 10007, 12288, 16384, 18432, 65536, 131072, 262144)
DTYPES = ("float32", "bfloat16", "float64")
# float16 takes bfloat16's path, but conversions where that has shifts: of rows of 1,024 threads.
FLOAT16 = (61440, 65536)

EXAMPLES = Path(__file__).parents[2] / "examples"

# Bytes that are spilled: where that was measured to be faster than what spills nothing (config.py).
# float64 has no limit: ptxas calls routines of its own for a reciprocal, and saves registers around them.
SPILLS = {
    ("forward", "float32", 100000): 48,
    ("backward", "bfloat16", 16384): 168,
    ("few", "float32", 512): 24,
}
# The same with a residual, or an addend of dx: in registers of its own, of which those kernels had none left.
SPILLS_ADDED = SPILLS | {
    ("forward", "float16", 65536): 48,  # on sm_120
    ("backward", "float32", 128): 16,
    ("backward", "bfloat16", 128): 16,
    ("backward", "bfloat16", 1000): 24,
    ("backward", "bfloat16", 4096): 16,
    ("backward", "bfloat16", 12288): 56,
    ("backward", "bfloat16", 16384): 256,
    ("backward", "bfloat16", 10007): 140,
    ("backward", "bfloat16", 18432): 40,
    ("backward", "bfloat16", 131072): 84,
    ("backward", "bfloat16", 262144): 84,
    ("backward", "float32", 262144): 52,
    ("few", "float32", 512): 36,
    ("few", "float32", 7168): 52,
}


def launches(
    kernel: str, n: int, dtype: str, *, added: bool, target: int = PORTABLE
) -> list[Launch]:
    """The launches of one dtype: without a weight, with one, with several of another dtype."""
    found = []
    for weight_dtype, grouped in ((None, False), (dtype, False), ("float32", True)):
        facts = {"n": n, "x_dtype": dtype, "weight_dtype": weight_dtype, "grouped": grouped}
        facts |= {"target": target}
        weighted = weight_dtype is not None
        few = few_config(n, by_numpy_name(dtype), target) if kernel == "few" else None
        if kernel == "few" and not (few and weighted):
            continue
        offset = float(weighted and added)
        if kernel == "shares":
            facts |= {"shares": row_shares(1, n, by_numpy_name(dtype), target)}
        if kernel in ("forward", "shares"):
            facts |= {"options": Options(1e-6, offset, added), "residual": added}
            found.append(forward_launch(**facts, out_dtype=None, with_rstd=not weighted))
        else:
            facts |= {"weight_offset": offset, "addend": added, "need_dx": True}
            facts |= {
                "runs": 1 if few else 132 * weighted,
                "final": added and weight_dtype == dtype,
                "one_block": not grouped,
                "few": few,
                "wide_clusters": True,
            }
            found.append(backward_launch(**facts))
    return [launch for launch in found if launch]


def as_one_module(named: dict[str, Launch], target: str = "sm_80") -> str:
    """All the entries as one text under new names, so that ptxas starts once."""
    heads, bodies, versions = {}, [], set()
    for name, launch in named.items():
        head, body = launch.ptx.split(".visible", 1)
        assert f".target {target}\n" in head, "the kernels need no newer target"
        lines = [line for line in head.splitlines() if line]
        versions |= {line for line in lines if line.startswith(".version")}
        heads |= dict.fromkeys(line for line in lines if not line.startswith(".version"))
        bodies.append(".visible" + body.replace(f" {launch.entry}(", f" {name}(", 1))
    return "\n".join([max(versions), *heads, *bodies])


def is_new(launch: Launch) -> bool:
    """Whether it takes what came with sm_90."""
    return launch.cluster[0] > 1 or ".bulk." in launch.ptx


def assemblies_of(kernel: str, n: int, text_target: int, target: str) -> dict[str, Assembly]:
    """What ptxas makes of every launch, each checked for spills; with its dynamic shared memory."""
    named = {
        f"{dtype}_{'added' if added else 'plain'}_{index}": launch
        for dtype in (*DTYPES, *["float16"] * (kernel == "forward" and n in FLOAT16))
        for added in (False, True)
        for index, launch in enumerate(launches(kernel, n, dtype, added=added, target=text_target))
    }
    assemblies = {}
    # What has no clusters and no bulk copies needs no more than the oldest target.
    for new, needs in ((False, "sm_80"), (True, "sm_90")):
        these = {name: each for name, each in named.items() if is_new(each) == new}
        if these:
            assemblies |= toolkit.assemble(as_one_module(these, needs), target)
    assert sorted(assemblies) == sorted(named)
    for name, assembly in assemblies.items():
        dtype, which, _ = name.split("_")
        spills = SPILLS if which == "plain" else SPILLS_ADDED
        if dtype != "float64":
            assert assembly.spill_bytes <= spills.get((kernel, dtype, n), 0), f"{name} on {target}"
    return {
        name: dataclasses.replace(a, smem_bytes=a.smem_bytes + named[name].smem_bytes)
        for name, a in assemblies.items()
    }


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_120"])  # as different as they get
@pytest.mark.parametrize(
    ("kernel", "n"),
    [
        *(("forward", n) for n in FORWARD),
        *(("backward", n) for n in BACKWARD),
        *(("shares", n) for n in SHARES),
        *(("few", n) for n in FEW),
    ],
)
def test_rms_norm(kernel: str, n: int, target: str) -> None:
    for name, assembly in assemblies_of(kernel, n, PORTABLE, target).items():
        assert assembly.smem_bytes <= 99 * 1024, f"{name} takes more shared memory than sm_89 has"


@pytest.mark.parametrize(
    ("kernel", "n"),
    [*(("forward", n) for n in LARGE_FORWARD), *(("backward", n) for n in LARGE_BACKWARD)],
)
def test_rms_norm_with_large_clusters(kernel: str, n: int) -> None:
    for name, assembly in assemblies_of(kernel, n, 90, "sm_90").items():
        config = forward_config(n, by_numpy_name(name.split("_")[0]), 90)
        ctas = config.ctas if kernel == "forward" else 1
        threads = ctas * config.layout.cta_threads if kernel == "forward" else 0
        assert ctas * assembly.smem_bytes <= 227 * 1024, f"{name}: more shared memory than there is"
        assert threads * assembly.registers <= 65536, f"{name}: more registers than there are"


@pytest.mark.parametrize(
    ("n", "dtype"),
    [*((n, "bfloat16") for n in (512, 1024, 2048, 8192)), (4096, "float32"), (8192, "float32")],
)
def test_the_weight_is_loaded_with_x(n: int, dtype: str) -> None:
    # ptxas would move its loads behind what waits for x, for the sake of registers.
    assert forward_config(n, by_numpy_name(dtype), 90).weight_first
    facts = {"x_dtype": dtype, "weight_dtype": dtype, "grouped": False, "target": 90}
    facts |= {"options": Options(1e-6), "residual": False, "out_dtype": None, "with_rstd": False}
    (assembly,) = toolkit.assemble(forward_launch(n=n, **facts).ptx, "sm_90").values()
    before_the_sum = toolkit.disassemble(assembly.cubin).split("SHFL")[0]
    assert before_the_sum.count("LDG.E.128") == 8


def test_8_bit_results_need_sm_89_and_no_more() -> None:
    facts = {"weight_dtype": "float32", "grouped": False, "residual": False, "with_rstd": False}
    named = {
        f"{dtype}_{out_dtype}_{n}": forward_launch(
            n=n, x_dtype=dtype, options=Options(1e-6), out_dtype=out_dtype, **facts
        )
        for dtype in DTYPES
        for out_dtype in ("float8_e4m3fn", "float8_e5m2")
        for n in (7, 1000, 4096, 100000)
    }
    for name, assembly in toolkit.assemble(as_one_module(named, "sm_89"), "sm_89").items():
        assert name.startswith("float64") or assembly.spill_bytes == 0, name


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
