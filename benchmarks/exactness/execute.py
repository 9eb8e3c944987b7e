"""Runs kernels on the device and in the emulator, and compares what they give, bit by bit."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from benchmarks.exactness import errors, texts
from benchmarks.exactness.forms import BLOCK, Form
from benchmarks.exactness.values import FLOATS, unsigned
from jax_ptx import _ext
from jax_ptx.text_kernel import TextKernel

EXAMPLES = 3


def wide(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with 64-bit types enabled, which JAX remembers for each thread."""

    @functools.wraps(function)
    def wrapped(*arguments: Any) -> Any:
        with jax.enable_x64(True):
            return function(*arguments)

    return wrapped


def emulate(kernel: TextKernel, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The results in the emulator, on as many threads as there are cores."""
    launch = kernel.launch()
    results = [np.empty(size, np.uint8) for size in launch.unit_bytes[len(inputs) :]]
    _ext.emulate(launch.attributes(), [*inputs, *results], len(results))
    return results


def split_by_support(forms: list[Form], refused: dict[str, str]) -> list[Form]:
    """The forms that the emulator runs; what it says of the others goes into `refused`."""
    kernel = texts.kernel(forms, BLOCK)
    inputs: list[np.ndarray] = [np.zeros(BLOCK, unsigned(k)) for _, k in forms[0].sources]
    if forms[0].flavour == "ld":
        inputs.append(np.zeros((BLOCK, 4), np.uint64))
    try:
        emulate(kernel, inputs)
    except (ValueError, NotImplementedError, RuntimeError) as error:
        if len(forms) == 1:
            refused[forms[0].sample.line] = str(error).splitlines()[0]
            return []
        middle = len(forms) // 2
        parts = (forms[:middle], forms[middle:])
        return [form for part in parts for form in split_by_support(part, refused)]
    return forms


def compare(
    form: Form, inputs: Sequence[np.ndarray], got: Sequence[np.ndarray], want: Sequence[np.ndarray]
) -> dict[str, Any]:
    """How many tuples differ, how many of these in a NaN's payload alone, and the first few."""
    n = inputs[0].size if inputs else got[0].size
    differs, payloads = np.zeros(n, bool), np.zeros(n, bool)
    for kind, mine, theirs in zip(form.kinds, got, want, strict=True):
        if np.array_equal(mine, theirs):
            continue
        unequal = (mine != theirs).reshape(n, -1).any(1)
        scalar = kind.removesuffix("x2")
        if scalar in FLOATS:
            a, b = mine.view(FLOATS[scalar]), theirs.view(FLOATS[scalar])
            a, b = a.reshape(n, -1), b.reshape(n, -1)
            one = (mine.view(unsigned(scalar)) == theirs.view(unsigned(scalar))).reshape(n, -1)
            payloads |= unequal & (one | (np.isnan(a) & np.isnan(b))).all(1)
            unequal &= ~(one | (np.isnan(a) & np.isnan(b))).all(1)
        differs |= unequal
    differs &= defined(form, inputs)
    record: dict[str, Any] = {
        "name": form.sample.name,
        "line": form.sample.line,
        "flavour": form.flavour,
    }
    record |= {"tuples": n, "differing": int(differs.sum()), "payloads": int(payloads.sum())}
    for label, mask in (("examples", differs), ("payload_examples", payloads)):
        if mask.any():
            record[label] = _examples(mask, inputs, got, want)
    if inputs and errors.is_approximate(form.sample.name):
        record["errors"] = measure(form, inputs, got[0])
        scalar = form.kinds[0].removesuffix("x2")
        a, b = (x.view(FLOATS[scalar]).reshape(n, -1) for x in (got[0], want[0]))
        special = (_class(a) != _class(b)).any(1)
        record["special"] = int(special.sum())
        if special.any():
            record["examples"] = _examples(special, inputs, got, want)
    return record


def _class(x: np.ndarray) -> np.ndarray:
    """NaN, either infinity, or a number."""
    return np.where(np.isnan(x), 2, np.where(np.isinf(x), np.sign(x), 0))


def _examples(mask: np.ndarray, *of: Sequence[np.ndarray]) -> list[list[list[str]]]:
    """Operands, the device's results and the emulator's, of a few tuples."""
    found = np.flatnonzero(mask)
    return [
        [[f"{int(x[i]):#x}" for x in arrays] for arrays in of]
        for i in found[:: max(1, found.size // EXAMPLES)][:EXAMPLES]
    ]


def defined(form: Form, inputs: Sequence[np.ndarray]) -> np.ndarray | bool:
    """The tuples of which the ISA says what comes: not an integer divided by zero, nor |offset| of fns."""
    name, texts_ = form.sample.name, form.sample.texts
    loaded = {r: x for (r, _), x in zip(form.sources, inputs, strict=True)}
    if re.match(r"(div|rem)\.[us]\d\d$", name) and texts_[2] in loaded:
        return loaded[texts_[2]] != 0
    if name == "fns.b32" and texts_[3] in loaded:
        return loaded[texts_[3]] != 2**31
    return True


def as_float64(bits: np.ndarray, kind: str) -> np.ndarray:
    """The values of floats' bits."""
    with np.errstate(invalid="ignore"):  # a signalling NaN
        return bits.view(FLOATS[kind]).astype(np.float64)


def measure(form: Form, inputs: Sequence[np.ndarray], got: np.ndarray) -> list[dict[str, Any]]:
    """The largest errors of an approximation, for each of the ISA's bounds."""
    kind = form.sources[0][1].removesuffix("x2")
    loaded = {r: as_float64(x, kind) for (r, _), x in zip(form.sources, inputs, strict=True)}
    one = np.ones_like(next(iter(loaded.values())))
    operands = [loaded.get(text, one) for text in form.sample.texts[1:]]
    results = as_float64(got, kind)
    found = []
    with np.errstate(all="ignore"):
        for bound in errors.bounds(form.sample.name):
            error, at = errors.worst(form.sample.name, bound, results, *operands)
            found.append(error_record(bound, float(error), [float(x[at]) for x in operands]))
    return found


def error_record(bound: errors.Bound, error: float, at: list[float]) -> dict[str, Any]:
    """An observed error beside what bounds it."""
    return {
        "measure": bound.measure,
        "domain": bound.domain,
        "limit": bound.limit,
        "error": error,
        "at": at,
    }


@wide
def run(forms: list[Form], inputs: list[np.ndarray], n: int) -> list[dict[str, Any]]:
    """Runs forms of one signature in both, and compares them."""
    kernel = texts.kernel(forms, n)
    arguments = list(inputs)
    if forms[0].flavour == "ld":
        arguments.append(np.stack(inputs, 1))
    on_gpu = kernel(*map(jax.numpy.asarray, arguments))
    want = emulate(kernel, arguments)
    on_gpu = on_gpu if isinstance(on_gpu, tuple | list) else (on_gpu,)
    got = [np.asarray(r) for r in on_gpu]
    widths = sorted({w for row in texts.places(forms) for w, _ in row})
    of_width = {
        w: (g, e.view(g.dtype).reshape(g.shape)) for w, g, e in zip(widths, got, want, strict=False)
    }
    records = []
    for form, rows in zip(forms, texts.places(forms), strict=True):
        pairs = [(of_width[w][0][row], of_width[w][1][row]) for w, row in rows]
        records.append(compare(form, inputs, [g for g, _ in pairs], [e for _, e in pairs]))
    return records
