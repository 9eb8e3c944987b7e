"""The page that the site's build makes of the instruction table (mkdocs.yml names this file)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mkdocs.structure.files import File

from jax_ptx.dsl.isa import OUTSIDE, Row, tables

HEAD = """# Instructions

Every form that `ptx.inst` takes, made from the table that checks it while a kernel is traced. `{…}` may be
left out, and `|` separates what may stand at one place. In Python it is spelled
`ptx.inst.ld.global_.v4.f32(values, ptx.addr(p))`: a trailing underscore is dropped, and so is a leading one
before a digit; two of them are `::`. Each takes `pred=` too.
"""
KINDS = {"address": "address", "immediate": "constant", "pair": "`d|p`", "sink": "`_`"}


def on_files(files: Any, *, config: Any) -> Any:
    """Adds the page."""
    page = File.generated(config, "reference/instructions.md", content="\n".join(instructions()))
    files.append(page)
    return files


def instructions() -> Iterator[str]:
    """The lines of the page."""
    yield HEAD
    for family in tables.FAMILIES:
        title = (family.__doc__ or "").splitlines()[0].rstrip(".")
        yield f"## {title}\n"
        yield "| instruction | operands | PTX | target |\n|---|---|---|---|"
        for row in family.ROWS:
            yield _line(row)
        yield ""
    yield "## Not in the table\n"
    yield "Lines of `ptx.raw` and texts given to `ptx_kernel` may have them all the same.\n"
    for name, why in OUTSIDE.items():
        yield f"- `{name}`: {why}"


def _line(row: Row) -> str:
    name, _, operands = str(row).partition("  ")
    since = row.since
    targets = [f"sm_{since.target}{since.suffix}", *(f"sm_{n}{s}" for n, s in row.also)]
    cells = (
        f"`{name}`",
        ", ".join(_operand(spec) for spec in row.operands) if operands else "none",
        f"{since.version[0]}.{since.version[1]}",
        ", ".join(targets),
    )
    return "| " + " | ".join(cells) + " |"  # a | within backticks does not end a cell


def _operand(spec: Any) -> str:
    kinds = dict.fromkeys(KINDS.get(allowed.kind, allowed.kind) for allowed in spec.allowed)
    optional = "?" if spec.optional or spec.only_with else ""
    return f"`{spec.name}`{optional} {' or '.join(kinds)}"
