"""Seeds of the fuzzer: every program that nvcc compiled, and a small kernel around a form of every row of the
instruction table.

    python -m tests.fuzz.seeds FOLDER
"""

from __future__ import annotations

import itertools
import pathlib
import re
import sys
from collections.abc import Iterator

from jax_ptx.dsl import isa
from tests.dsl.isa_samples import Sample, samples

NVCC = pathlib.Path(__file__).parents[1] / "ffi" / "nvcc"
LONGEST = 8000
HEAD = ".version 9.2\n.target sm_100a\n.address_size 64\n"


def programs() -> Iterator[str]:
    """One kernel each, with everything that stands outside of kernels in front of it."""
    for file in sorted(NVCC.glob("*.ptx")):
        head, *entries = re.split(r"(?=^\.visible \.entry)", file.read_text(), flags=re.MULTILINE)
        for entry in entries:
            # A function that is called is in the head; most kernels need none.
            header = head if "call" in entry else HEAD
            if len(header) + len(entry) < LONGEST:
                yield header + entry


def around(sample: Sample) -> str:
    """A kernel that gives every register of the sample a value, and runs it."""
    lines = []
    for kind, number in sorted(set(re.findall(r"%([a-z]+\d*)_(\d+)", sample.line))):
        register = f"%{kind}_{number}"
        lines.append(f".reg .{kind} {register};")
        space = "shared" if "shared" in sample.name or "mbarrier" in sample.name else "global"
        if kind == "pred":
            lines.append(f"setp.eq.u32 {register}, 0, 0;")
        elif kind == "b64" and int(number) >= 60:
            lines.append(f"mov.u64 {register}, in_{space};")
        elif kind[0] == "f":
            one = "0f3F800000" if kind == "f32" else "0d3FF0000000000000"
            lines.append(f"mov.{kind} {register}, {one};")
        else:
            lines.append(f"mov.b{kind[1:]} {register}, 16;")
    spaces = "".join(f".{s} .align 16 .b8 in_{s}[256];\n" for s in ("const", "global", "shared"))
    body = "\n".join([*lines, sample.line])
    return f"{HEAD}{spaces}.visible .entry k(.param .u64 p) {{\n{body}\ndone: ret;\n}}\n"


def table(*, forms: int | None = None) -> Iterator[str]:
    """The first of every row's forms (up to `forms` of them) and the last of these."""
    for row in isa.rows():
        of = [s for s in itertools.islice(samples(row), forms) if "b128" not in s.line]
        if of:
            yield from (around(form) for form in {id(f): f for f in (of[0], of[-1])}.values())


def main(folder: str) -> None:
    for number, text in enumerate([*programs(), *table()]):
        (pathlib.Path(folder) / f"seed-{number:04}.ptx").write_text(text)


if __name__ == "__main__":
    main(sys.argv[1])
