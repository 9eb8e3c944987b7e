"""Writes docs/exactness.md from the results of `python -m benchmarks.exactness`.

    python -m benchmarks.exactness.document exactness.json [more.json ...]

Results of several runs are joined: of a form that ran twice the last run counts, and so it is with whole
kernels. What was not run is the first file's. A file may hold "notes", a list of what has changed since.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

TARGET = Path(__file__).parents[2] / "docs" / "exactness.md"

INTRODUCTION = """\
# Exactness: the emulator against a GPU

Every form of the instruction table that has a result in registers or memory ran on an {device} (driver
{driver}, jax {jax}) and in the emulator, on the same operands, and the bits were compared.
`python -m benchmarks.exactness` runs it on another GPU, and `python -m benchmarks.exactness.document`
writes this page from what it found.

Operands: one of 16 bits takes all 65,536 patterns. Otherwise special values (zeros, subnormals, limits,
infinities, NaNs, shift counts) are crossed; of the rest a third is random bits, a third values of a usual
size, and a third lies next to another operand or to what makes a product or a quotient the least normal
number.

Where the ISA leaves a result open, the emulator gives what this GPU gave: which NaN, how `mma` adds, and
what `.ftz` flushes at the edge of the normal numbers. The payload of a float64's NaN is the exception: it
is compared as a NaN.
"""

FINDINGS = """\
## What the GPU does that the ISA leaves open, or says otherwise

The emulator does the same, but for the last; `tests/ffi/test_emulator_hardware.py` and
`tests/ffi/test_emulator_mma.py` hold it to that.

- `mma` of float16, bfloat16 and tf32 cuts every product and the accumulator to 25 bits below the largest
  exponent among them, adds what is left exactly over all of k, and rounds once: towards zero to float32, but
  beyond it to infinity, and to nearest to float16. Of 8-bit floats it is two such passes over float16,
  which begin with zero (columns 0 and 1 of every four, then 2 and 3), and the accumulator is added last; of
  float64, one `fma` after the other; `m8n8k4` of float16, single additions in float32. A `wmma` of tf32 is
  two such passes, over four columns each.
- `.ftz` flushes a result that would be less than the least normal number when rounded as if exponents had
  no end: some results that round to the least normal number are flushed, and some are not.
- `cvt.ftz.f16.f32` does not flush its operand. `atom.add.f32` flushes in global memory and not in shared
  memory, through a generic address too.
- `.relu` turns -0 into +0.
- A NaN of float32 and of 16 bits is 0x7fffffff and 0x7fff after arithmetic, `abs` and `neg`; a float64's
  stays, quiet, and a conversion cuts it. `cvt.rna.tf32` only cuts a NaN.
- A NaN becomes an integer of 64 bits, or if it was a float64 any integer, with the highest bit alone; else 0.
- `testp.normal` is true of zero.
- A CTA that is launched without a cluster has one of its own: `barrier.cluster`, `mapa`, `shared::cluster`
  addresses, and bulk copies from global memory run. But `st.async`, `red.async` and bulk copies from shared
  memory to `shared::cluster` are illegal instructions there, which `.reqnctapercluster 1, 1, 1` makes legal.
- `cos.approx.f32` is off by 2^-20.43 at -4.9001112, a little more than the ISA's 2^-20.5.
- `div.approx.ftz` and `div.full.ftz` flush a quotient that lies above the least normal number by less than
  their error; the table leaves these out.
"""
RANGES = """\
Results are folded into a hash by each thread, and hashes compared. A run takes all 2^32 inputs of as many
forms as its time allows, those that read a float32 first, and a 16th of them of the others; the next one
leaves out what had all of them (`--done`).
"""
APPROXIMATIONS = """\
The error of the GPU's result, against float64, where operand and result are normal numbers. A division's
ulps count from the quotient rounded to nearest, and those of one operand from the exact value, up to half an
ulp more. The emulator rounds the exact value once. The ISA prints its bounds rounded.
"""
KERNELS = """\
`rms_norm` forward and backward, the examples, and the programs in CUDA C++ of `tests/ffi/nvcc`, as they
are and with every `.approx` replaced by an exact instruction. A `mul` and an `add` without a rounding may
become one `fma` on the GPU, as the ISA allows; the exact texts name it. dw of `rms_norm` is summed by XLA,
not by a kernel.
"""


def power(x: float) -> str:
    """A small number as a power of two."""
    return "0" if x == 0 else f"2^{math.log2(x):.2f}"


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """Lines of a Markdown table."""
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return [*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows), ""]


def is_approximate(record: dict[str, Any]) -> bool:
    """Whether the ISA bounds the form's error instead of giving its bits."""
    return (
        "errors" in record or ".approx" in record["name"] or record["name"].startswith("div.full")
    )


def by_opcode(forms: list[dict[str, Any]]) -> list[str]:
    """One line for each opcode."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for record in forms:
        if not is_approximate(record):
            groups.setdefault(record["name"].split(".")[0], []).append(record)
    rows = []
    for opcode, records in sorted(groups.items()):
        differing = [r for r in records if r.get("differing") or r.get("failed")]
        payloads = [r for r in records if r.get("payloads") and r not in differing]
        rows.append(
            (
                opcode,
                len(records),
                f"{sum(r.get('tuples', 0) for r in records):,}",
                len(records) - len(differing) - len(payloads),
                len(payloads) or "",
                len(differing) or "",
            )
        )
    total = [sum(int(row[i] or 0) for row in rows) for i in (1, 3, 4, 5)]
    tuples = sum(int(row[2].replace(",", "")) for row in rows)
    rows.append(("**all**", total[0], f"{tuples:,}", total[1], total[2], total[3]))
    return table(
        ("opcode", "forms", "tuples", "bit-equal", "equal but for a NaN's payload", "differing"),
        rows,
    )


def differing(forms: list[dict[str, Any]]) -> list[str]:
    """The forms that differ, each with an example."""
    rows = []
    for record in forms:
        if record.get("differing") and not is_approximate(record) and record.get("examples"):
            operands, device, emulator = record["examples"][0]
            share = f"{record['differing']:,} of {record['tuples']:,}"
            cells = [f"`{' '.join(x)}`" for x in (operands, device, emulator)]
            rows.append((f"`{record['name']}`", share, *cells))
    if not rows:
        return ["None differs.", ""]
    return table(("form", "tuples", "operands", "GPU", "emulator"), rows)


def approximations(records: list[dict[str, Any]]) -> list[str]:
    """Observed errors beside the ISA's bounds."""
    rows = []
    for record in records:
        inputs = record.get("inputs") or record.get("tuples", 0)
        unequal = 100 * record["differing"] / max(inputs, 1)
        for number, error in enumerate(record["errors"]):
            ulp = error["measure"] == "ulp"
            show = (lambda x: f"{x:g} ulp") if ulp else power
            limit = "none given" if error["limit"] is None else show(error["limit"])
            observed = show(error["error"]) + ("" if ulp else f" {error['measure']}")
            first = (f"`{record['name']}`", f"{inputs:,}") if number == 0 else ("", "")
            at = ", ".join(f"{x:.9g}" for x in error["at"])
            equal = f"{100 - unequal:.2f} %" if number == 0 else ""
            rows.append((*first, error["domain"], limit, observed, at, equal))
    head = (
        "form",
        "inputs",
        "magnitude of x",
        "ISA's bound",
        "observed on the GPU",
        "at",
        "equal to the emulator",
    )
    return table(head, rows)


def ranges(exact: list[dict[str, Any]]) -> list[str]:
    """How many one-operand forms took how many inputs, and which differ."""
    counts: dict[int, list[str]] = {}
    for record in exact:
        counts.setdefault(record["inputs"], []).append(record["name"])
    lines = [
        f"- {len(names)} forms on {inputs:,} inputs"
        + (" (all)" if inputs == 2**32 else ", evenly spread")
        for inputs, names in sorted(counts.items(), reverse=True)
    ]

    def names_of(records: list[dict[str, Any]]) -> str:
        names = [f"`{record['name']}`" for record in records]
        more = [f"and {len(names) - 8} more"] if len(names) > 8 else []
        return ", ".join([*names[:8], *more]) or "none"

    bad = [r for r in exact if r.get("differing")]
    only_nan = [r for r in exact if r["differing_threads"] and not r.get("differing")]
    lines.append(f"- differing: {names_of(bad)}")
    lines.append(f"- in a NaN's payload alone: {names_of(only_nan)}")
    return [*lines, ""]


def kernels(results: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Whole kernels."""
    lines = []
    for way, records in results.items():
        same = sum(not r["differing"] for r in records)
        lines.append(f"- {way}: {same} of {len(records)} give the same bits")
    lines.append("")
    rows = [
        (r["name"], f"{r['differing']:,} of {r['elements']:,}", r["ulp"])
        for r in results["exact"]
        if r["differing"]
    ]
    if rows:
        lines += ["Those that differ even when exact:", ""]
        lines += table(("kernel", "elements", "largest distance in ulp"), rows)
    return lines


def page(results: dict[str, Any]) -> str:
    """The whole page."""
    forms = results["forms"]
    rough = results["ranges"]["approximate"]
    named = {r["name"] for r in rough}
    rest: dict[str, dict[str, Any]] = {}
    for record in forms:
        if record.get("errors") and record["name"] not in named:
            rest.setdefault(record["name"], record)
    lines = [INTRODUCTION.format(**results)]
    if results.get("notes"):
        lines += ["## Since these runs", "", *(f"- {note}" for note in results["notes"]), ""]
    lines += ["## Forms", ""]
    lines += by_opcode(forms)
    lines += ["## Forms that differ", "", *differing(forms)]
    lines += ["## One operand of 32 bits", "", RANGES, *ranges(results["ranges"]["exact"])]
    lines += ["## Approximations", "", APPROXIMATIONS, *approximations([*rough, *rest.values()])]
    lines += [FINDINGS, "## Whole kernels", "", KERNELS]
    lines += kernels(results["kernels"])
    lines += ["## Not run", ""]
    reasons = [(count, reason) for reason, count in results["excluded"].items()]
    reasons += [(count, f"needs {what}") for what, count in results["newer"].items()]
    refused = len(results["refused"])
    if refused:
        opcodes = sorted({line.split(".")[0] for line in results["refused"]})
        reasons.append((refused, f"the emulator refuses them: of {', '.join(opcodes)}"))
    lines += table(("forms", "reason"), sorted(reasons, reverse=True))
    return "\n".join(lines).rstrip() + "\n"


def join(results: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """The results of two runs, of which the second may be of fewer forms."""

    def by_line(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
        lines = {record["line"] for record in new}
        return [*(record for record in old if record["line"] not in lines), *new]

    joined = results | more
    for what in ("excluded", "newer", "refused"):
        if what in results:
            joined[what] = results[what]
    if "forms" in results and "forms" in more:
        joined["forms"] = by_line(results["forms"], more["forms"])
    if "ranges" in results and "ranges" in more:
        parts = results["ranges"]
        joined["ranges"] = {k: by_line(parts[k], more["ranges"][k]) for k in parts}
    return joined


def main(paths: Sequence[str]) -> None:
    """Joins the files and writes the page."""
    results: dict[str, Any] = {}
    for path in paths:
        results = join(results, json.loads(Path(path).read_text()))
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(page(results))


if __name__ == "__main__":
    main(sys.argv[1:])
