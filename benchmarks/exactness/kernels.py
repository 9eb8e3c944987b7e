"""Whole kernels on the device and in the emulator: rms_norm, the examples, and what nvcc made.

Each runs as it is, and once more with every approximation replaced by an instruction that is exact: then
the bits must be the same.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

import jax_ptx
from benchmarks.exactness import execute
from jax_ptx import Launch, Tile, types

ROOT = Path(__file__).parents[2]
EXAMPLES = ("rms_norm", "layer_norm", "softmax", "swiglu")
MATRICES = {"f16": np.float16, "bf16": jnp.bfloat16, "tf32": np.float32, "mma": np.float16}
# An approximation, and exact code in its place: not always its value, but the same on every machine.
_EXACT = (
    (r"rsqrt\.approx(?:\.ftz)?\.f32\s+(\S+), (\S+);", r"sqrt.rn.f32 \1, \2; rcp.rn.f32 \1, \1;"),
    (r"rcp\.approx(?:\.ftz)?\.f(32|64)\b", r"rcp.rn.f\1"),
    # Without a rounding, a product and a sum may become one instruction.
    (r"\b(add|sub|mul)\.(ftz\.)?f(32|64)\b", r"\1.rn.\2f\3"),
    (r"ex2\.approx(?:\.ftz)?\.f32\s+(\S+), (\S+);", r"fma.rn.f32 \1, \2, 0f3E000000, 0f3F800000;"),
)


def exact_text(text: str) -> str:
    """The text without approximations."""
    for pattern, replacement in _EXACT:
        text = re.sub(pattern, replacement, text)
    if ".approx" in text:
        raise ValueError(f"no exact stand-in for {re.findall(r'.*approx.*', text)[0]}")
    return text


@contextlib.contextmanager
def without_approximations() -> Iterator[None]:
    """Within, every kernel is lowered from its exact text."""
    attributes = Launch.attributes

    def exact(self: Launch, *args: Any) -> dict[str, Any]:
        record = attributes(self, *args)
        text = exact_text(record["ptx"])
        return record | {"ptx": text, "key": hash(text) >> 2}

    jax.clear_caches()
    with mock.patch.object(Launch, "attributes", exact):
        yield
    jax.clear_caches()


def norms() -> Iterator[tuple[str, Callable, list[np.ndarray]]]:
    """rms_norm and its gradients, in several lengths and dtypes."""
    for rows, n in ((64, 128), (37, 1000), (16, 4096), (3, 16384), (2, 40000)):
        for dtype in ("float32", "bfloat16", "float16"):
            rng = np.random.default_rng(n)
            x, dy = (rng.standard_normal((rows, n)).astype(jnp.dtype(dtype)) for _ in range(2))
            w = (1 + 0.1 * rng.standard_normal(n)).astype(jnp.dtype(dtype))

            def norm(x: Any, w: Any) -> Any:
                return jax_ptx.rms_norm(x, w, implementation="ptx")

            def gradient(x: Any, w: Any, dy: Any, of: int = 0) -> Any:
                return jax.vjp(norm, x, w)[1](dy)[of]

            case = f"{rows} x {n} {dtype}"
            yield f"rms_norm {case}", norm, [x, w]
            if n <= (8192 if dtype == "float32" else 16384):
                yield f"rms_norm dx {case}", gradient, [x, w, dy]
                # Partial sums, which XLA adds up in an order of its own.
                yield f"rms_norm dw {case}", functools.partial(gradient, of=1), [x, w, dy]


def examples() -> Iterator[tuple[str, Callable, list[np.ndarray]]]:
    """The kernels of examples/."""
    sys.path.insert(0, str(ROOT / "examples"))
    for name in EXAMPLES:
        module = importlib.import_module(name)
        for case in ((5, 64), (7, 1001), (16, 4096)):
            kernel = getattr(module, f"build_{name}")(*case)
            yield f"examples/{name} {case[0]} x {case[1]}", kernel, list(module.inputs(*case))
    sys.path.pop(0)


def programs(change: Callable[[str], str]) -> Iterator[tuple[str, Callable, list[np.ndarray]]]:
    """The programs in CUDA C++ of tests/ffi/nvcc."""
    rng = np.random.default_rng(0)
    f32 = lambda *shape: rng.standard_normal(shape, dtype=np.float32)
    i32 = lambda low, high, n: rng.integers(low, high, n, np.int32)
    halves = [f32(128).astype(np.float16) for _ in range(2)]
    brains = [f32(64).astype(jnp.bfloat16) for _ in range(2)]
    wide = [rng.integers(-(2**62), 2**62, 64), rng.integers(1, 2**40, 64)]
    divided = [i32(-(10**9), 10**9, 64), i32(1, 1000, 64)]
    one_warp = (1, 1, 1), (32, 1, 1)
    pixels = rng.integers(0, 256, 5000, np.uint8)
    # Entry: its operands, the shapes of its results (as the last operand), grid, block.
    cases: dict[str, tuple[list[np.ndarray], list[np.ndarray], Sequence[int], Sequence[int]]] = {
        "block_reduce": ([f32(3, 1000)], [f32(3)], (3, 1, 1), (128, 1, 1)),
        "scan": ([i32(-9, 9, 256)], [i32(0, 1, 256)], (1, 1, 1), (256, 1, 1)),
        "transpose": ([f32(37, 50)], [f32(50, 37)], (4, 3, 1), (16, 16, 1)),
        "matmul": ([f32(48, 48), f32(48, 48)], [f32(48, 48)], (3, 3, 1), (16, 16, 1)),
        "histogram": ([pixels, i32(0, 1, 256)], [i32(0, 1, 256)], (3, 1, 1), (128, 1, 1)),
        "warp_sort": ([i32(-999, 999, 128)], [i32(0, 1, 128)], (1, 1, 1), (128, 1, 1)),
        "halves": (halves, halves, (1, 1, 1), (64, 1, 1)),
        "bfloats": (brains, brains[:1], (1, 1, 1), (64, 1, 1)),
        "divisions": (divided, divided, (1, 1, 1), (64, 1, 1)),
        "wide": (wide, wide[:1], (1, 1, 1), (64, 1, 1)),
        "functions": ([3 * f32(256)], [f32(8, 256)], (2, 1, 1), (128, 1, 1)),
        "doubles": ([5.0 * f32(64).astype(np.float64)], [np.zeros((4, 64))], (1, 1, 1), (64, 1, 1)),
        **{
            f"matmul_{name}": (
                [f32(32, 32).astype(dtype) for _ in range(2)],
                [f32(32, 32)],
                *one_warp,
            )
            for name, dtype in MATRICES.items()
        },
        "local_arrays": ([], [i32(0, 1, 64)], (1, 1, 1), (64, 1, 1)),
        "cluster_reduce": ([f32(8, 32)], [f32(8)], (8, 1, 1), (32, 1, 1)),
    }
    for path in sorted((ROOT / "tests/ffi/nvcc").glob("*.ptx")):
        text = change(path.read_text())
        # Its bins are counted up in place: an operand that they share their memory with.
        text = re.sub(r"(\.param \.u64 histogram_)(param_1)", r"\1unused, \1\2", text)
        for entry, (operands, results, grid, block) in cases.items():
            if f" {entry}(" not in text:
                continue
            tile = lambda x: Tile(*x.shape, types.by_numpy_name(x.dtype.name))
            kernel = jax_ptx.ptx_kernel(
                text,
                entry=entry,
                in_specs=[tile(x) for x in operands],
                out_specs=[tile(x) for x in results],
                grid=tuple(grid),
                block=tuple(block),
                cluster=(4, 1, 1) if entry == "cluster_reduce" else (1, 1, 1),
                input_output_aliases={1: 0} if entry == "histogram" else None,
            )
            yield f"{path.stem} {entry}", kernel, operands


def _ordered(bits: np.ndarray) -> np.ndarray:
    """Floats' bits as integers in the order of the values."""
    wide, top = bits.astype(np.int64), 1 << (8 * bits.itemsize - 1)
    return np.where(wide & top, top - wide, wide)


@execute.wide
def compare(name: str, function: Callable, arrays: list[np.ndarray]) -> dict[str, Any]:
    """The results on JAX's default device against those on the CPU, which are the emulator's."""
    cpu = jax.devices("cpu")[0]
    here, there = jax.devices()[0], cpu
    results = []
    for device in (here, there):
        with jax.default_device(device):
            placed = [jax.device_put(x, device) for x in arrays]
            results.append([np.asarray(r) for r in jax.tree.leaves(jax.jit(function)(*placed))])
    record = {"name": name, "elements": 0, "differing": 0, "ulp": 0}
    for got, want in zip(*results, strict=True):
        bits = np.dtype(f"uint{8 * got.itemsize}")
        unequal = got.view(bits) != want.view(bits)
        record["elements"] += got.size
        record["differing"] += int(unequal.sum())
        if unequal.any() and got.itemsize < 8:
            distance = np.abs(_ordered(got.view(bits)) - _ordered(want.view(bits))).max()
            record["ulp"] = max(record["ulp"], int(distance))
    return record


def run() -> dict[str, Any]:
    """Every kernel, as it is and exact."""
    as_is = [compare(*case) for case in (*norms(), *examples(), *programs(str))]
    with without_approximations():
        exact = [compare(*case) for case in (*norms(), *examples(), *programs(exact_text))]
    return {"as it is": as_is, "exact": exact}
