"""Every form of the instruction table on a GPU against the emulator.

    python -m benchmarks.exactness --out exactness.json [--stages forms,kernels,ranges]

Without a GPU the emulator stands in for it, which tests this program and nothing else.
"""

from __future__ import annotations

import functools
import json
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
from absl import app, flags, logging

from benchmarks.exactness import execute, forms, kernels, ranges, texts, values

OUT = flags.DEFINE_string("out", "exactness.json", "where the results go")
STAGES = flags.DEFINE_list("stages", ["forms"], "which parts to run")
TUPLES = flags.DEFINE_integer("tuples", 2**20, "tuples of operands for a form")
ONLY = flags.DEFINE_string("only", "", "run only forms whose name begins with this")
BITS = flags.DEFINE_integer("bits", 32, "inputs of one-operand forms, as a power of two")
SECONDS = flags.DEFINE_float("seconds", 180.0, "after which one-operand forms take a 16th of these")
STRIDE = flags.DEFINE_integer("stride", 1, "run every so many forms")

BYTES = 2**29  # of results in one launch
FORMS = 64  # in one launch
# Loads and stores compute nothing, and matrices have many operands to a result.
SHARE = {"ld": 64, "st": 64, "atom": 16, "mma": 8}


def batches(group: list[forms.Form], n: int) -> list[list[forms.Form]]:
    """The group in parts that fit one launch."""
    parts, used = [[]], 0
    for form in group:
        size = n * sum(texts.width_of(r) for r in form.results)
        if parts[-1] and (used + size > BYTES or len(parts[-1]) == FORMS):
            parts.append([])
            used = 0
        parts[-1].append(form)
        used += size
    return parts


def attempt(run: Callable, found: list[forms.Form], *arguments: Any) -> list[dict]:
    """Runs forms; a launch that fails is a result, too."""
    try:
        return run(found, *arguments)
    except (RuntimeError, ValueError, ArithmeticError) as error:
        logging.error("%s and %d more: %s", found[0].sample.line, len(found) - 1, error)
        return [
            {"name": form.sample.name, "line": form.sample.line, "failed": str(error)}
            for form in found
        ]


@functools.cache
def table() -> tuple[list[forms.Form], dict[str, int], dict[str, int]]:
    """The forms that the flags choose, and how many are not run, by reason and by what they need."""
    found, excluded, newer = forms.table_forms()
    found = [f for f in found if f.sample.name.startswith(ONLY.value)][:: STRIDE.value]
    return found, excluded, newer


def run_ranges() -> dict:
    """One-operand forms on all inputs."""
    return {"ranges": ranges.run(table()[0], BITS.value, SECONDS.value)}


def run_forms() -> dict:
    """The table's forms; see the package's other modules for what is run and on what."""
    found, excluded, newer = table()
    refused: dict[str, str] = {}
    jobs = []
    for number, group in enumerate(forms.by_signature(found)):
        group = execute.split_by_support(group, refused)
        if not group:
            continue
        kinds = tuple(kind for _, kind in group[0].sources)
        n = max(TUPLES.value // SHARE.get(group[0].flavour, 1), forms.BLOCK)
        if len(kinds) == 1 and kinds[0] in ("f16", "bf16", "i16", "f16x2", "bf16x2"):
            n = 2**16
        n = n if kinds else forms.BLOCK
        draw = values.gentle if group[0].flavour == "mma" else values.tuples
        inputs = draw(kinds, n, number)
        jobs += [(part, inputs, n) for part in batches(group, n)]
    logging.info("%d forms in %d launches", len(found), len(jobs))
    with ThreadPoolExecutor(4) as pool:
        records = list(pool.map(lambda job: attempt(execute.run, *job), jobs))
    return {
        "forms": [record for part in records for record in part],
        "excluded": excluded,
        "newer": newer,
        "refused": refused,
    }


def driver() -> str:
    """The version of NVIDIA's driver, or that there is none."""
    try:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError):
        return "none"


def main(_: list[str]) -> None:
    jax.config.update("jax_enable_x64", True)
    device = jax.devices()[0]
    results: dict = {"device": device.device_kind, "driver": driver(), "jax": jax.__version__}
    stages = {
        "forms": run_forms,
        "kernels": lambda: {"kernels": kernels.run()},
        "ranges": run_ranges,
    }
    for stage in STAGES.value:
        start = time.perf_counter()
        results |= stages[stage]()
        results[f"{stage}_seconds"] = round(time.perf_counter() - start, 1)
        Path(OUT.value).write_text(json.dumps(results, indent=0))
    Path(OUT.value).write_text(json.dumps(results, indent=0))
    for record in results.get("forms", []):
        if record.get("differing"):
            logging.info("%s: %d of %d", record["line"], record["differing"], record["tuples"])
    for record in results.get("ranges", {}).get("exact", []):
        if record["differing_threads"]:
            logging.info("%s: %d threads", record["line"], record["differing_threads"])


if __name__ == "__main__":
    app.run(main)
