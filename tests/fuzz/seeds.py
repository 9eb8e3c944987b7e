"""Seeds of the fuzzer: every program that nvcc compiled, a small kernel around a form of every row of the
instruction table, and a few texts of rarer syntax.

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


SYNTAX = (
    # Constant expressions, in every place that takes one.
    """.const .align 8 .b8 in_const[40] = {1 + 2, -(3), ~4 & 255, 7 / 2, 9 % 4, 1 << 3, 6 >> 1};
.global .u64 here[2] = {generic(in_const) + 8 * 2, in_const + (4 + 4)};
.global .u32 lanes = WARP_SZ;
.visible .entry k(.param .u64 p) {
.reg .b32 %r<3>; .reg .pred %q;
.shared .align 4 .b8 in_shared[80];
mov.u32 %r1, (5 > 3) && !(2 == 1) || 0;
mov.u32 %r2, ((0b101 | 010) ^ 6U) - (-1 < 0 ? 2 : 3);
st.shared.u32 [in_shared + 4 * 2], %r1;
ld.shared.u32 %r2, [in_shared + (16 - 8)];
setp.ge.s32 %q, %r2, -2 + 1 <= 7 != 0;
ret;
}
""",
    # Modifiers in nvcc's order and in others.
    """.visible .entry k(.param .u64 p) {
.reg .b32 %r<4>; .reg .b64 %l;
ld.param.u64 %l, [p];
mov.u32 %r1, 1;
atom.add.relaxed.gpu.global.u32 %r2, [%l], %r1;
atom.global.cas.acq_rel.sys.b32 %r2, [%l], %r1, %r2;
ld.acquire.gpu.global.u32 %r3, [%l];
st.global.release.gpu.u32 [%l+4], %r3;
fence.sc.gpu;
ret;
}
""",
    # The parameter space by its address.
    """.visible .entry k(.param .u64 p) {
.reg .b64 %l<5>; .reg .b32 %r<2>;
mov.b64 %l1, p; cvta.param.u64 %l2, %l1; cvta.param.u64 %l3, p;
ld.u64 %l4, [%l2]; ld.u32 %r1, [%l3+4]; ld.param.u32 %r1, [p+(8-4)];
ret;
}
""",
    # printf, and a function that the library does not decode beside a kernel that it runs.
    """.extern .func (.param .b32 result) vprintf (.param .b64 format, .param .b64 values);
.global .align 1 .b8 text[8] = {37, 100, 10, 0};
.func (.param .b32 r) bad (.param .b32 x) {
unknown.instruction.u32 %r1;
}
.visible .entry k(.param .u64 p) .maxntid 64, 1, 1 .minnctapersm 1 .reqnctapercluster 1, 1, 1 {
.local .align 8 .b8 depot[8]; .reg .b64 %l<3>; .reg .b32 %r<2>;
mov.u64 %l1, depot; cvta.local.u64 %l1, %l1; st.u32 [%l1], 7; mov.u64 %l2, text; cvta.global.u64 %l2, %l2;
{ .param .b64 a; .param .b64 b; .param .b32 result; st.param.b64 [a], %l2; st.param.b64 [b], %l1;
call.uni (result), vprintf, (a, b); ld.param.b32 %r1, [result]; }
ret;
}
.visible .entry other(.param .u64 p) {
another.unknown;
}
""",
)


def syntax() -> Iterator[str]:
    """What neither of these has."""
    return (HEAD + text for text in SYNTAX)


def main(folder: str) -> None:
    for number, text in enumerate([*syntax(), *programs(), *table()]):
        (pathlib.Path(folder) / f"seed-{number:04}.ptx").write_text(text)


if __name__ == "__main__":
    main(sys.argv[1])
