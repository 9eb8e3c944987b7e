"""One-operand forms of 32 bits on all 2^32 inputs.

Exact forms are compared by a hash: each thread folds its results into a number, and where two numbers
differ its inputs are run again one by one. Approximations are compared on the device, where their error
is measured as well.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.exactness import errors, execute, texts
from benchmarks.exactness.forms import BLOCK, Form
from jax_ptx import Tile, ptx_kernel, types
from jax_ptx.text_kernel import TextKernel

THREADS = 256  # of a CTA
LENGTH = 4096  # inputs of a thread, at most
FORMS = 8  # in one text
SLICE = 2**26  # inputs of an approximation at a time


def candidates(forms: Sequence[Form]) -> list[Form]:
    """The forms with one operand of 32 bits; both operands of a packed conversion are the same one."""
    found: dict[str, Form] = {}
    for form in forms:
        name, sources = form.sample.name, dict(form.sources)
        if form.flavour != "registers" or len(form.results) != 1 or len(form.code) != 1:
            continue
        packed = re.match(r"cvt\..*x2\.f32$", name) and len(sources) == 2
        of_32 = name.startswith("cvt") is False or re.search(r"\.[fus]32$", name)
        if packed:
            first, second = sources
            code = (form.code[0].replace(second, first),)
            form = replace(form, sources=form.sources[:1], code=code)
        elif len(sources) != 1 or not of_32 or len(form.sample.texts) != 2:
            continue
        if form.sources[0][1] in ("f32", "i32") and not name.startswith(("mov", "shfl", "match")):
            found.setdefault(form.code[0], form)
    return list(found.values())


def steps(bits: int) -> tuple[int, int]:
    """How many inputs, and the distance between them."""
    return 2**bits, 1 if bits == 32 else 2 ** (32 - bits) + 1


# ---- exact forms ----


def _hash_kernel(forms: Sequence[Form], count: int, stride: int) -> TextKernel:
    threads = max(count // LENGTH, THREADS)
    source = forms[0].sources[0][0]
    body = [".reg .b32 %u, %h<8>; .reg .b64 %l<8>; .reg .pred %go;"]
    body += [f"mov.b32 %h{i}, 0; mov.b64 %l{i}, 0;" for i in range(len(forms))]
    body += ["mov.u32 %t, 0;", f"mul.lo.u32 %u, %i, {stride};", "again:", f"mov.b32 {source}, %u;"]
    results = []
    for index, form in enumerate(forms):
        body += form.code
        result, width = form.results[0], texts.width_of(form.results[0])
        if width == 1:
            body.append(f"selp.u32 %byte, 1, 0, {result};")
        elif width == 2:
            body.append(f"cvt.u32.u16 %byte, {result};")
        elif width == 4 and result.startswith("%f"):
            body.append(f"mov.b32 %byte, {result};")
        folded = result if width >= 4 and not result.startswith("%f") else "%byte"
        if width == 8:
            if result.startswith("%f"):
                body.append(f"mov.b64 %address, {result};")
                folded = "%address"
            body.append(f"mad.lo.u64 %l{index}, %l{index}, 0x9E3779B97F4A7C15, {folded};")
        else:
            body.append(f"mad.lo.u32 %h{index}, %h{index}, 0x9E3779B1, {folded};")
        results.append(f"%l{index}" if width == 8 else f"%h{index}")
    body += [f"add.u32 %u, %u, {threads * stride % 2**32};", "add.u32 %t, %t, 1;"]
    body += [f"setp.lt.u32 %go, %t, {count // threads};", "@%go bra again;"]
    body.append("mad.wide.u32 %y, %i, 8, %y;")
    for index, result in enumerate(results):
        if result.startswith("%h"):
            body.append(f"cvt.u64.u32 %l{index}, {result};")
        body.append(f"st.global.b64 [%y+{index * threads * 8}], %l{index};")
    return ptx_kernel(
        texts.module(["y"], body, THREADS),
        in_specs=[],
        out_specs=[Tile(len(forms), threads, types.u64)],
        grid=(threads // THREADS, 1, 1),
        block=(THREADS, 1, 1),
    )


@execute.wide
def exact(forms: list[Form], bits: int) -> list[dict[str, Any]]:
    """Compares forms that load the same register and take the same steps."""
    count, stride = steps(bits)
    kernel = _hash_kernel(forms, count, stride)
    on_device = kernel()
    (emulated,) = execute.emulate(kernel, [])
    got = np.asarray(on_device[0] if isinstance(on_device, tuple | list) else on_device)
    want = emulated.view(np.uint64).reshape(got.shape)
    records = []
    for index, form in enumerate(forms):
        record = {"name": form.sample.name, "line": form.code[0], "inputs": count}
        threads = np.flatnonzero(got[index] != want[index])
        record["differing_threads"] = int(threads.size)
        if threads.size:
            step = np.arange(count // got.shape[1], dtype=np.uint64) * got.shape[1]
            some = threads[:: max(1, threads.size // 16)][:16].astype(np.uint64)
            inputs = ((some[:, None] + step) * stride).astype(np.uint32).ravel()
            n = -(-inputs.size // BLOCK) * BLOCK
            record |= execute.run([form], [np.resize(inputs, n)], n)[0]
            record["inputs"] = count
        records.append(record)
    return records


# ---- approximations ----


def _slice_kernel(form: Form, n: int, stride: int) -> TextKernel:
    source, result = form.sources[0][0], form.results[0]
    body = [
        ".reg .b32 %u; ld.global.b32 %u, [%x];",
        f"mad.lo.u32 %u, %i, {stride}, %u; mov.b32 {source}, %u;",
        *form.code,
        f"mad.wide.u32 %y, %i, 4, %y; st.global.b32 [%y], {result};",
    ]
    return ptx_kernel(
        texts.module(["x", "y"], body, THREADS),
        in_specs=[Tile(1, types.u32)],
        out_specs=[Tile(n, types.u32)],
        grid=(n // THREADS, 1, 1),
        block=(THREADS, 1, 1),
    )


@functools.partial(jax.jit, static_argnums=(0, 1))
def _judge(name: str, stride: int, first: jax.Array, got: jax.Array, want: jax.Array) -> Any:
    """Counts, the largest distance in ulp from the emulator, and the largest errors with their inputs."""
    x = first + jnp.arange(got.size, dtype=jnp.uint32) * jnp.uint32(stride)
    a, b = (jax.lax.bitcast_convert_type(bits, jnp.float32) for bits in (got, want))
    differing = (got != want) & ~(jnp.isnan(a) & jnp.isnan(b))
    # Bits in the order of the values.
    order = lambda bits: jnp.where(bits >> 31 == 1, ~bits, bits | 2**31).astype(jnp.int64)
    distance = jnp.where(differing, abs(order(got) - order(want)), 0)
    special = jnp.isfinite(a) != jnp.isfinite(b)
    payloads = ((got != want) & jnp.isnan(a) & jnp.isnan(b)).sum()
    distance = jnp.where(special, 0, distance)
    operand = jax.lax.bitcast_convert_type(x, jnp.float32).astype(jnp.float64)
    found = [
        errors.worst(name, bound, a.astype(jnp.float64), operand, np_=jnp)
        for bound in errors.bounds(name)
    ]
    found = [(error, x[index]) for error, index in found]
    example = lambda mask: jnp.stack([v[jnp.argmax(mask)] for v in (x, got, want)])
    counts = jnp.stack([differing.sum(), special.sum(), payloads, distance.max()])
    return counts, example(special), example(distance == distance.max()), found


@execute.wide
def approximate(form: Form, bits: int) -> dict[str, Any]:
    """Compares an approximation slice by slice, and measures its error."""
    count, stride = steps(bits)
    n, name = min(SLICE, count), form.sample.name
    kernel = _slice_kernel(form, n, stride)
    totals, limits = np.zeros(4, np.int64), errors.bounds(name)
    worst: list[tuple[float, int]] = [(0.0, 0)] * len(limits)
    examples: dict[str, list[int]] = {}
    for start in range(0, count, n):
        first = np.array([start * stride % 2**32], np.uint32)
        (got,) = jax.tree.leaves(kernel(jnp.asarray(first)))
        (want,) = execute.emulate(kernel, [first])
        counts, special, far, found = jax.device_get(
            _judge(name, stride, first[0], got, jnp.asarray(want.view(np.uint32)))
        )
        if counts[1] and "special" not in examples:
            examples["special"] = special.tolist()
        if counts[3] > totals[3]:
            examples["far"] = far.tolist()
        totals = np.array([*(totals[:3] + counts[:3]), max(totals[3], counts[3])])
        worst = [max(w, (float(e), int(x))) for w, (e, x) in zip(worst, found, strict=True)]
    keys = ("differing", "special", "payloads", "ulp_from_emulator")
    record: dict[str, Any] = {"name": name, "line": form.code[0], "inputs": count}
    record |= dict(zip(keys, totals.tolist(), strict=True))
    record["examples"] = {k: [f"{v:#x}" for v in e] for k, e in examples.items()}
    record["errors"] = [
        execute.error_record(bound, error, [float(np.uint32(x).view(np.float32))])
        for bound, (error, x) in zip(limits, worst, strict=True)
    ]
    return record


def importance(form: Form) -> int:
    """Forms that read a float32 come first, then those that make one."""
    if form.sources[0][1] == "f32":
        return 0
    return 1 if re.match(r"cvt\..*\.f32\.[us]32$", form.sample.name) else 2


def run(
    forms: Sequence[Form], bits: int, seconds: float, done: Mapping[str, int]
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """What is found, as it is found: approximations first, then exact forms of one register in shared texts.

    Args:
        forms: the table's, of which this takes its candidates.
        bits: how many inputs a form is to get, as a power of two.
        seconds: after which what has not begun takes a 16th of these.
        done: how many inputs a form, by its line, had in an earlier run: it gets more or does not run.
    """
    groups: dict[Any, list[Form]] = {}
    approximations = []
    for form in sorted(candidates(forms), key=importance):
        if done.get(form.code[0], 0) >= 2**bits:
            continue
        if errors.is_approximate(form.sample.name):
            approximations.append(form)
        else:
            groups.setdefault((importance(form), form.sources), []).append(form)
    jobs = [group[i : i + FORMS] for group in groups.values() for i in range(0, len(group), FORMS)]
    deadline = time.monotonic() + seconds

    def now(job: list[Form]) -> tuple[list[Form], int]:
        """What there is to do of a job when its turn comes, and on how many inputs."""
        width = bits if time.monotonic() < deadline else min(bits, 28)
        return [form for form in job if done.get(form.code[0], 0) < 2**width], width

    def approximations_of(job: list[Form]) -> list[dict[str, Any]]:
        left, width = now(job)
        return [approximate(form, width) for form in left]

    def exact_of(job: list[Form]) -> list[dict[str, Any]]:
        left, width = now(job)
        return exact(left, width) if left else []

    with ThreadPoolExecutor(2) as pool:
        for records in pool.map(approximations_of, [[form] for form in approximations]):
            yield "approximate", records
        for records in pool.map(exact_of, jobs):
            yield "exact", records
