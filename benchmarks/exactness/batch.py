"""Forms in batches: those of one signature share texts, and a few batches run at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from absl import logging

from benchmarks.exactness import execute, forms, texts, values

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


def attempt(run: Callable, found: list[forms.Form], *arguments: Any) -> list[dict[str, Any]]:
    """Runs forms; a launch that fails is a result, too."""
    try:
        return run(found, *arguments)
    except (RuntimeError, ValueError, ArithmeticError) as error:
        logging.error("%s and %d more: %s", found[0].sample.line, len(found) - 1, error)
        return [
            {"name": form.sample.name, "line": form.sample.line, "failed": str(error)}
            for form in found
        ]


def run(found: Sequence[forms.Form], tuples: int) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """A record for each form that the emulator runs, and what it says of the others.

    Args:
        found: the forms.
        tuples: how many tuples of operands each is to get, at most.
    """
    refused: dict[str, str] = {}
    jobs = []
    for number, group in enumerate(forms.by_signature(found)):
        group = execute.split_by_support(group, refused)
        if not group:
            continue
        kinds = tuple(kind for _, kind in group[0].sources)
        n = max(tuples // SHARE.get(group[0].flavour, 1), forms.BLOCK)
        if len(kinds) == 1 and kinds[0] in ("f16", "bf16", "i16", "f16x2", "bf16x2"):
            n = 2**16
        n = n if kinds else forms.BLOCK
        draw = values.gentle if group[0].flavour == "mma" else values.tuples
        inputs = draw(kinds, n, number)
        jobs += [(part, inputs, n) for part in batches(group, n)]
    logging.info("%d forms in %d launches", len(found), len(jobs))
    with ThreadPoolExecutor(4) as pool:
        records = list(pool.map(lambda job: attempt(execute.run, *job), jobs))
    return [record for part in records for record in part], refused
