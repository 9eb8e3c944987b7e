"""Records a warp's operands and results of every mma of floats on a GPU, for tests/ffi/test_emulator_mma.py.

python -m benchmarks.exactness.record
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.exactness import execute, forms, texts
from benchmarks.exactness.values import FLOATS, unsigned

TARGET = Path(__file__).parents[2] / "tests" / "ffi" / "h200_mma.npz"


def mma_forms() -> list[forms.Form]:
    """The forms that multiply floats."""
    found, _, _ = forms.table_forms("mma")
    return [f for f in found if not re.search(r"\.([su][48]|b1)\.", f.sample.name)]


def draw(kind: str, name: str, rng: np.random.Generator) -> np.ndarray:
    """A warp's operands, of very different sizes: then sums depend on how they are added."""
    n = forms.BLOCK
    if kind == "i32":  # four 8-bit floats, none infinite or NaN
        bits = rng.integers(0, 256, (n, 4)).astype(np.uint8)
        return (
            np.where(bits & 0x7C == 0x7C, bits & 0x83 | 0x30, bits).astype(np.uint8).view(np.uint32)
        )
    scalar, count = (kind[:-2], 2) if kind.endswith("x2") else (kind, 1)
    spread = 3 if ".f16." in name else 8
    values = rng.standard_normal(count * n) * 2.0 ** rng.integers(-spread, spread + 1, count * n)
    return values.astype(FLOATS[scalar]).view(unsigned(kind))


@execute.wide
def record(path: Path) -> None:
    """Runs every form on JAX's default device; the file keeps the first warp of a CTA."""
    rng, arrays = np.random.default_rng(0), {}
    for form in mma_forms():
        name = form.sample.name
        operands = [draw(kind, name, rng).ravel() for _, kind in form.sources]
        results: Any = texts.kernel([form], forms.BLOCK)(*map(jnp.asarray, operands))
        (result,) = jax.tree.leaves(results)
        for index, operand in enumerate(operands):
            arrays[f"{name}/{index}"] = operand[:32]
        arrays[f"{name}/results"] = np.asarray(result)[:, :32]
    np.savez_compressed(path, **arrays)


if __name__ == "__main__":
    record(Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET)
