"""Every form of the instruction table on a GPU against the emulator.

    python -m benchmarks.exactness --out exactness.json [--stages forms,kernels,ranges]

Without a GPU the emulator stands in for it, which tests this program and nothing else.
"""

from __future__ import annotations

import functools
import json
import subprocess
import time
from pathlib import Path

import jax
from absl import app, flags, logging

from benchmarks.exactness import batch, forms, kernels, ranges

OUT = flags.DEFINE_string("out", "exactness.json", "where the results go")
STAGES = flags.DEFINE_list("stages", ["forms"], "which parts to run")
TUPLES = flags.DEFINE_integer("tuples", 2**20, "tuples of operands for a form")
ONLY = flags.DEFINE_list("only", [""], "run only forms whose name begins with one of these")
BITS = flags.DEFINE_integer("bits", 32, "inputs of one-operand forms, as a power of two")
SECONDS = flags.DEFINE_float("seconds", 180.0, "after which one-operand forms take a 16th of these")
DONE = flags.DEFINE_string(
    "done", None, "an earlier run's results: what had all inputs is left out"
)
STRIDE = flags.DEFINE_integer("stride", 1, "run every so many forms")


@functools.cache
def table() -> tuple[list[forms.Form], dict[str, int], dict[str, int]]:
    """The forms that the flags choose, and how many are not run, by reason and by what they need."""
    found, excluded, newer = forms.table_forms(*ONLY.value)
    return found[:: STRIDE.value], excluded, newer


def save(results: dict) -> None:
    """Writes what there is by now."""
    Path(OUT.value).write_text(json.dumps(results, indent=0))


def run_forms(results: dict) -> None:
    """The table's forms, and what is not run."""
    found, excluded, newer = table()
    records, refused = batch.run(found, TUPLES.value)
    results |= {"forms": records, "excluded": excluded, "newer": newer, "refused": refused}


def run_kernels(results: dict) -> None:
    """Whole kernels."""
    results["kernels"] = kernels.run()


def run_ranges(results: dict) -> None:
    """One-operand forms on all inputs, written as they come."""
    done = json.loads(Path(DONE.value).read_text())["ranges"] if DONE.value else {}
    inputs = {r["line"]: r["inputs"] for part in done.values() for r in part}
    found = results["ranges"] = {"exact": [], "approximate": []}
    for part, records in ranges.run(table()[0], BITS.value, SECONDS.value, inputs):
        found[part] += records
        save(results)


def driver() -> str:
    """The version of NVIDIA's driver, or that there is none."""
    try:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError):
        return "none"


def main(_: list[str]) -> None:
    device = jax.devices()[0]
    results: dict = {"device": device.device_kind, "driver": driver(), "jax": jax.__version__}
    stages = {"forms": run_forms, "kernels": run_kernels, "ranges": run_ranges}
    for stage in STAGES.value:
        start = time.perf_counter()
        stages[stage](results)
        results[f"{stage}_seconds"] = round(time.perf_counter() - start, 1)
        save(results)
    for record in results.get("forms", []):
        if record.get("differing"):
            logging.info("%s: %d of %d", record["line"], record["differing"], record["tuples"])
    for record in results.get("ranges", {}).get("exact", []):
        if record["differing_threads"]:
            logging.info("%s: %d threads", record["line"], record["differing_threads"])


if __name__ == "__main__":
    app.run(main)
