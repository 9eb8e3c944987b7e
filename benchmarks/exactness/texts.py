"""The PTX text that runs many forms: each thread loads a tuple, runs each form on it, stores the results."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from benchmarks.exactness import memory
from benchmarks.exactness.forms import BLOCK, VERSION, Form
from benchmarks.exactness.values import BITS
from jax_ptx import Tile, ptx_kernel, types
from jax_ptx.text_kernel import TextKernel

_TYPES = ("b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64", "f32", "f64")
_TILES = {1: types.u8, 2: types.u16, 4: types.u32, 8: types.u64}
_SLOTS = BLOCK * memory.SLOT_BYTES


def width_of(register: str) -> int:
    """The bytes in which a register is stored; a predicate takes one."""
    declared = register[1:].split("_")[0]
    if declared == "pred":
        return 1
    if declared == "word":
        return 8
    return int(declared[1:]) // 8


def places(forms: Sequence[Form]) -> list[list[tuple[int, int]]]:
    """Where each result of each form is stored: the bytes of an element, and the row in that output."""
    used: dict[int, int] = {}
    found = []
    for form in forms:
        rows = []
        for register in form.results:
            width = width_of(register)
            rows.append((width, used.setdefault(width, 0)))
            used[width] += 1
        found.append(rows)
    return found


@functools.cache
def _constants() -> str:
    words = np.random.default_rng(7).integers(0, 2**32, 32, np.uint32)
    return ", ".join(map(str, words.tolist()))


def kernel(forms: Sequence[Form], n: int) -> TextKernel:
    """Runs forms of one signature on `n` tuples; the outputs have a row for each result."""
    sources, flavour = forms[0].sources, forms[0].flavour
    at = places(forms)
    rows = {
        w: 1 + max(r for row in at for v, r in row if v == w)
        for w in (1, 2, 4, 8)
        if any(v == w for row in at for v, _ in row)
    }
    in_specs = [Tile(n, _TILES[BITS[kind] // 8]) for _, kind in sources]
    out_specs = [Tile(count, n, _TILES[w]) for w, count in rows.items()]
    names = [f"x{i}" for i in range(len(sources))] + [f"y{w}" for w in rows]
    body: list[str] = []
    if flavour == "ld":  # the same words in one place, for loads from global memory
        in_specs.append(Tile(n, 4, types.u64))
        names.insert(len(sources), "rows")
    if flavour in ("st", "atom"):
        out_specs.append(Tile(n, 4, types.u64))
        names.append("rows")
    for index, (register, kind) in enumerate(sources):
        body += _load(index, register, kind)
    if flavour in ("ld", "st", "atom"):
        body += _slots(flavour)
    for w in rows:
        body.append(f"mad.wide.u32 %y{w}, %i, {w}, %y{w};")
    for form, stored in zip(forms, at, strict=True):
        body += form.code
        for register, (width, row) in zip(form.results, stored, strict=True):
            body += _store(register, width, row * n * width)
    return ptx_kernel(
        module(names, body),
        in_specs=in_specs,
        out_specs=out_specs,
        grid=(n // BLOCK, 1, 1),
        block=(BLOCK, 1, 1),
    )


def module(names: Sequence[str], body: Sequence[str], block: int = BLOCK) -> str:
    """A text whose entry `k` takes these tensors and has the thread's number in %i."""
    parameters = ", ".join(f".param .u64 p_{name}" for name in names)
    return "\n".join(
        [
            f".version {VERSION[0]}.{VERSION[1]}",
            ".target sm_90",
            ".address_size 64",
            f".const .align 16 .b32 in_const[32] = {{{_constants()}}};",
            f".visible .entry k({parameters})",
            "{",
            f".shared .align 16 .b8 in_shared[{_SLOTS}];",
            f".local .align 16 .b8 in_local[{memory.SLOT_BYTES}];",
            ".reg .pred %pred_<80>;",
            *(f".reg .{t} %{t}_<80>;" for t in _TYPES),
            ".reg .b64 %word_<4>, %address, %policy;",
            ".reg .b32 %i, %t, %byte;",
            "mov.u32 %i, %ctaid.x; mov.u32 %t, %tid.x;",
            f"mad.lo.u32 %i, %i, {block}, %t;",
            *(f".reg .b64 %{name}; ld.param.u64 %{name}, [p_{name}];" for name in names),
            *body,
            "ret;",
            "}",
            "",
        ]
    )


def _load(index: int, register: str, kind: str) -> list[str]:
    declared = register[1:].split("_")[0]
    size = BITS[kind] // 8
    lines = [f"mad.wide.u32 %address, %i, {size}, %x{index};"]
    if kind == "pred":
        lines += ["ld.global.u8 %byte, [%address];", f"setp.ne.u32 {register}, %byte, 0;"]
        return lines
    if declared == "memory":
        lines.append(f".reg .b{BITS[kind]} {register};")
    lines.append(f"ld.global.b{BITS[kind]} {register}, [%address];")
    return lines


def _store(register: str, width: int, offset: int) -> list[str]:
    if width == 1:
        return [f"selp.u32 %byte, 1, 0, {register};", f"st.global.u8 [%y1+{offset}], %byte;"]
    return [f"st.global.b{8 * width} [%y{width}+{offset}], {register};"]


def _slots(flavour: str) -> list[str]:
    """The addresses of the thread's slots; for loads, what is in them."""
    size = memory.SLOT_BYTES
    lines = [
        *(f".reg .b64 %slot_{s}, %generic_{s};" for s in ("global", "shared", "local", "const")),
        f"mad.wide.u32 %slot_global, %i, {size}, %rows;",
        "mov.b64 %generic_global, %slot_global;",
        f"mov.u64 %slot_shared, in_shared; mad.wide.u32 %slot_shared, %t, {size}, %slot_shared;",
        "cvta.shared.u64 %generic_shared, %slot_shared;",
        "mov.u64 %slot_local, in_local; cvta.local.u64 %generic_local, %slot_local;",
        "and.b32 %byte, %t, 3;",
        f"mov.u64 %slot_const, in_const; mad.wide.u32 %slot_const, %byte, {size}, %slot_const;",
        "createpolicy.fractional.L2::evict_last.b64 %policy, 0f3F000000;",
        ".reg .pred %even; and.b32 %byte, %i, 1; setp.eq.u32 %even, %byte, 0;",
    ]
    if flavour == "ld":
        first, second = ", ".join(memory.WORDS[:2]), ", ".join(memory.WORDS[2:])
        for space in ("shared", "local"):
            lines.append(f"st.{space}.v2.b64 [%slot_{space}], {{{first}}};")
            lines.append(f"st.{space}.v2.b64 [%slot_{space}+16], {{{second}}};")
        lines.append("bar.sync 0;")  # ldmatrix reads the slots of other threads
    return lines
