"""Operands that do not fit their instruction: the emulator refuses what the assembler refuses, and takes
what it takes. Every line here is also put to ptxas, where there is one."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable

import numpy as np
import pytest

from jax_ptx import toolkit
from tests.ffi.emulation import emulate

DECLARATIONS = """.version 8.8
.target sm_90
.address_size 64
.global .align 16 .b8 in_global[64];
.shared .align 16 .b8 in_shared[64];
.visible .entry k(.param .u64 y)
{
.reg .pred %p<4>;
.reg .b16 %h<4>; .reg .u16 %uh<4>; .reg .f16 %fh<4>;
.reg .b32 %r<8>; .reg .u32 %u<4>; .reg .s32 %s<4>; .reg .f32 %f<8>; .reg .f16x2 %g<4>;
.reg .b64 %rd<4>; .reg .u64 %ud<4>; .reg .f64 %fd<4>;
bra END;"""
FIRST = DECLARATIONS.count("\n") + 2


def module(lines: Iterable[str]) -> str:
    return "\n".join([DECLARATIONS, *lines, "END: ret;", "}", ""])


# A register's type against the instruction's: bits go with all of their size, integers with integers.
REGISTERS = {
    "add.u32 %f1, %r2, %r3;": "`%f1` is a register of .f32; .u32 or .b32 is expected",
    "add.u32 %r1, %f2, %r3;": "`%f2` is a register of .f32; .u32 or .b32 is expected",
    "add.f32 %f1, %u2, %f3;": "`%u2` is a register of .u32; .f32 or .b32 is expected",
    "add.f64 %ud1, %fd2, %fd3;": "`%ud1` is a register of .u64; .f64 or .b64 is expected",
    "add.f16 %uh1, %h2, %h3;": "`%uh1` is a register of .u16; .f16 or .b16 is expected",
    "add.bf16 %fh1, %h2, %h3;": "`%fh1` is a register of .f16; .bf16 or .b16 is expected",
    "add.f16x2 %u1, %r2, %r3;": "`%u1` is a register of .u32; .f16x2 or .b32 is expected",
    "mov.u32 %f1, %r2;": "`%f1` is a register of .f32",
    "ld.global.u32 %f1, [%rd1];": "`%f1` is a register of .f32",
    "ld.global.f32 %u1, [%rd1];": "`%u1` is a register of .u32",
    "st.global.u8 [%rd1], %f1;": "`%f1` is a register of .f32",
    "cvt.u32.u32 %f1, %r2;": "`%f1` is a register of .f32",
    "cvt.rn.bf16.f32 %r1, %f2;": "`%r1` has 32 bits; 16 are expected",
    "cvt.f32.bf16 %f1, %r2;": "`%r2` has 32 bits; 16 are expected",
    "cvt.rn.f16.f32 %u1, %f2;": "`%u1` is a register of .u32",
    "shl.b32 %r1, %r2, %f3;": "`%f3` is a register of .f32",
    "popc.b32 %f1, %r2;": "`%f1` is a register of .f32",
    "selp.u32 %f1, %r2, %r3, %p1;": "`%f1` is a register of .f32",
    "setp.eq.f32 %p1, %u2, %f3;": "`%u2` is a register of .u32",
    "bar.sync %f1;": "`%f1` is a register of .f32",
    "mbarrier.init.shared.b64 [%r1], %f1;": "`%f1` is a register of .f32",
    "atom.global.add.f32 %u1, [%rd1], %f2;": "`%u1` is a register of .u32",
    "mov.f64 %fd1, y;": "`y` is a parameter; its address comes into a register by mov.u64",
    "cvta.global.u64 %rd1, y;": "`y` is a parameter; its address comes into a register by mov.u64",
    "cvt.u64.u64 %rd1, y;": "`y` is a parameter; its address comes into a register by mov.u64",
    "ld.global.f16 %h1, [%rd1];": "`ld.global.f16` is not among the known forms",
    "mov.f16 %fh1, %fh2;": "`mov.f16` is not among the known forms",
    "add.u8 %h1, %h2, %h3;": "`add.u8` is not among the known forms",
}
KINDS = {
    "add.u32 %r1, %tid.x, 1;": "`%tid.x` is a special register of 32 bits: only mov and cvt",
    "mad.lo.u32 %r1, %ctaid.x, %r2, %r3;": "`%ctaid.x` is a special register",
    "mov.f32 %f1, %tid.x;": "`%tid.x` is a special register",
    "mov.u64 %rd1, %tid.x;": "`%tid.x` is a special register",
    "cvt.rn.f32.u32 %f1, %tid.x;": "`%tid.x` is a special register",
    "st.global.u32 [%rd1], %tid.x;": "`%tid.x` is a special register",
    "add.u32 %r1, in_shared, 1;": "`in_shared` is a variable; its address comes into a register by",
    "mov.f64 %fd1, in_global;": "`in_global` is a variable",
    "mov.u32 %r1, %is_explicit_cluster;": "`%is_explicit_cluster` is a predicate: mov.pred reads it",
    "not.pred %p1, %is_explicit_cluster;": "is not a declared predicate register",
    "add.u32 %r1, %r2, 0f3F800000;": "a float constant does not fit .u32",
    "mov.b64 %rd1, 0f3F800000;": "a float constant does not fit .b64",
    "mov.b32 %r1, 1.5;": "a float constant does not fit .b32",
    "mov.f32 %f1, 1;": "a float constant is expected, such as 0f3F800000",
    "add.f16 %h1, %h2, 1;": "there are no constants of .f16: a register is expected",
    "add.f16x2 %r1, %r2, 1;": "there are no constants of .f16x2",
    "movmatrix.sync.aligned.m8n8.trans.b16 %r1, 1;": "a register is expected here, not a constant",
    "add.u32 _, %r2, %r3;": "this result cannot be left out: `_` is not allowed",
    "shfl.sync.bfly.b32 _|%p1, %r1, 1, 31, -1;": "this result cannot be left out",
    "vote.sync.any.pred _, %p1, -1;": "this result cannot be left out",
    "ld.global.u32 _, [%rd1];": "this result cannot be left out",
    "elect.sync %r1, -1;": "two results are expected here, such as %r1|%p1",
    "mbarrier.arrive.shared::cluster.b64 %rd1, [%rd2];": "`_` is expected here: there is no result",
    "mbarrier.arrive.expect_tx.shared.b64 %rd1, [%r1];": "too few operands",
    "st.global.u32 [%rd1], [%rd2];": "an address is not expected here",
    "ld.global.u32 %r1, [16];": "an address that is a number is for .local only",
    "ld.global.u32 %r1, [in_shared];": "`in_shared` is not in the space of the instruction",
    "mov.b64 {%r1, %r2}, {%r3, %r4};": "mov packs a vector or unpacks one, not both",
    "ldmatrix.sync.aligned.m8n8.x1.shared.b16 %r1, [%r2];": "a vector of 1 registers is expected",
    ".reg .bf16 q;": "expected a type of registers",
    ".reg .u16x2 q;": "expected a type of registers",
    ".shared .bf16 q[4];": "expected a type",
}
WRONG = REGISTERS | KINDS
RIGHT = [
    "add.u32 %s1, %u2, %r3;",
    "add.f32 %r1, %f2, %r3;",
    "add.f16 %fh1, %h2, %fh3;",
    "add.f16x2 %g1, %r2, %g3;",
    "and.b32 %f1, %f2, %s3;",
    "and.b32 %f1, %f2, 0f3F800000;",
    "selp.b32 %f1, %r1, %u2, %p1;",
    "mov.b32 %f1, %tid.x;",
    "mov.u16 %h1, %tid.x;",
    "mov.b32 %f1, 0f3F800000;",
    "mov.f64 %fd1, 0f3F800000;",
    "mov.f32 %f1, 0d3FF0000000000000;",
    "mov.u32 %r1, 0x1ffffffff;",
    "cvt.u64.u32 %rd1, %tid.x;",
    "mov.u64 %rd1, in_shared+4;",
    "ld.global.b32 %f1, [%rd1];",
    "ld.global.f32 %r1, [%rd1];",
    "ld.global.b8 %f1, [%rd1];",
    "ld.global.v2.u32 {%r1, _}, [%rd1];",
    "st.global.f32 [%rd1], %rd2;",
    "cvt.rn.f16.f32 %r1, %f2;",
    "mov.u64 %rd1, y+4;",
    "cvta.param.u64 %rd1, y;",
    "cvta.param.u64 %rd1, %rd2;",
    "ld.param.u64 %rd1, [%rd2+8];",
    "cvt.f64.f32 %fd1, %rd2;",
    "setp.eq.u32 %p1|_, %r1, %r2;",
    "elect.sync _|%p1, -1;",
    "atom.global.add.u32 _, [%rd1], 1;",
    "popc.b32 %s1, %f2;",
    "shfl.sync.bfly.b32 %f1, %f2, 1, 31, -1;",
]


def refusal(line: str) -> str | None:
    """What the emulator says of the line, which never runs."""
    try:
        emulate(module([line]), [np.zeros(1, np.uint64)])
    except (ValueError, NotImplementedError) as error:
        return str(error)
    return None


@pytest.mark.parametrize("line", WRONG)
def test_operands_that_do_not_fit(line: str):
    said = refusal(line)
    assert said is not None
    assert f"PTX line {FIRST}, column" in said
    assert WRONG[line] in said


@pytest.mark.parametrize("line", RIGHT)
def test_operands_that_fit(line: str):
    assert refusal(line) is None


def refused_by_ptxas(lines: list[str], folder) -> set[str]:
    """It stops at the first syntax error: what it has refused is left out until it finds no more."""
    try:
        ptxas = str(toolkit.find("ptxas"))
    except toolkit.ToolkitError as error:
        pytest.skip(str(error))
    refused: set[str] = set()
    file = folder / "module.ptx"
    while True:
        file.write_text(module("" if line in refused else line for line in lines))
        run = subprocess.run(
            [ptxas, "-arch=compute_90", "-O0", str(file), "-o", str(folder / "module.out")],
            capture_output=True,
            text=True,
            check=False,
        )
        found = re.findall(r"line (\d+); (?:error|fatal) *:", run.stdout + run.stderr)
        if not found:
            assert run.returncode == 0, run.stderr
            return refused
        refused |= {lines[int(number) - FIRST] for number in found}


def test_ptxas_agrees(tmp_path):
    assert refused_by_ptxas([*WRONG, *RIGHT], tmp_path) == set(WRONG)


HEADERS = {
    ".version 99.0\n.target sm_90": "column 10: this is newer than PTX 9.5",
    ".version 7.9\n.target sm_80": "column 10: there is no such version of PTX, found `7.9`",
    ".version 8.0\n.version 8.0\n.target sm_90": "line 2, column 10: the text has a second .version",
    ".version 8.0\n.target sm_91": "line 2, column 9: expected a target such as sm_90",
    ".version 8.0\n.target sm_90, foo": "column 16: expected an option of .target",
}


@pytest.mark.parametrize("header", HEADERS)
def test_headers(header: str):
    with pytest.raises(ValueError, match=re.escape(HEADERS[header])):
        emulate(f"{header}\n.address_size 64\n.entry k() {{ ret; }}", [], 0)


def test_declared_shared_memory_has_a_limit():
    text = module(["st.shared.u8 [in_shared], 1;"])
    emulate(text.replace("in_shared[64]", "in_shared[49152]"), [np.zeros(1, np.uint64)])
    with pytest.raises(RuntimeError, match=r"declares 49168 bytes of shared memory; at most 49152"):
        emulate(text.replace("in_shared[64]", "in_shared[49168]"), [np.zeros(1, np.uint64)])


# C's precedence and the ISA's types ("Constant Expressions").
CONSTANTS = {
    "(3)": 3,
    "1+2": 3,
    "(1+2)*4": 12,
    "1+2*4-6/3": 7,
    "1<<4|1": 17,
    "0x10|1": 17,
    "~0": 2**32 - 1,
    "-(3)": 2**32 - 3,
    "- -3": 3,
    "!1": 0,
    "!0+!!7": 2,
    "1?2:3": 2,
    "0?2:1>2?4:5": 5,
    "3-2-1": 0,
    "-1<0": 1,
    "-1<0U": 0,
    "(.s64)0xFFFFFFFFFFFFFFFF<0": 1,
    "-8>>1": 2**32 - 4,
    "7&3^1": 2,
    "2&&0||1": 1,
    "1==1!=0": 1,
    "17 % 5": 2,
    "(1 % 5)-2<0": 0,
    "(1?-1:1U)<0": 1,
    "-1/2U>1": 1,
    "WARP_SZ*2": 64,
    "(-9223372036854775807-1)/-1": 0,
}


def test_constant_expressions():
    stores = "".join(
        f"mov.u32 %r1, {expression}; st.global.u32 [%rd1+{4 * i}], %r1;\n"
        for i, expression in enumerate(CONSTANTS)
    )
    text = DECLARATIONS.replace("bra END;", "ld.param.u64 %rd1, [y];\n") + stores + "ret; }\n"
    y = np.zeros(len(CONSTANTS), np.uint32)
    emulate(text, [y])
    assert dict(zip(CONSTANTS, y.tolist(), strict=True)) == CONSTANTS


@pytest.mark.parametrize("offset", ["+(16-8)", "+4*2", "+-(-8)", "+-4+12", "+1?8:0"])
def test_offsets_are_constant_expressions(offset: str):
    body = f"""ld.param.u64 %rd1, [y+(8-8)]; mov.u32 %r3, in_shared; st.shared.u32 [in_shared+8], 5;
    mov.u32 %r1, in_shared{offset}; sub.u32 %r1, %r1, %r3; ld.shared.u32 %r2, [%r3{offset}];
    st.global.v2.u32 [%rd1], {{%r1, %r2}}; ret; }}"""
    y = np.zeros(2, np.uint32)
    emulate(DECLARATIONS.replace("bra END;", body), [y])
    assert y.tolist() == [8, 5]


def test_initialisers_are_constant_expressions():
    body = """ld.param.u64 %rd1, [y];
    ld.global.u64 %rd2, [places]; ld.u32 %r1, [%rd2];
    ld.global.u64 %rd2, [places+8]; ld.global.u32 %r2, [%rd2];
    ld.global.u32 %r3, [lanes]; st.global.v2.u32 [%rd1], {%r1, %r2}; st.global.u32 [%rd1+8], %r3; ret; }"""
    variables = """.global .u32 numbers[3] = {1+2, -(3) & 255, 7/2*10};
    .global .u64 places[2] = {generic(numbers)+4*2, numbers+(8-4)};
    .global .u32 lanes = WARP_SZ;
    """
    text = DECLARATIONS.replace("bra END;", body).replace(".visible", variables + ".visible")
    y = np.zeros(3, np.uint32)
    emulate(text, [y])
    assert y.tolist() == [30, 253, 32]


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("1/0", "a constant expression divides by zero"),
        ("1 % (2-2)", "a constant expression divides by zero"),
        ("1<<64", "a constant expression shifts by more than 63"),
        ("(" * 100_000, "a constant expression nests too deeply"),
        ("-" * 100_000 + "1", "a constant expression nests too deeply"),
        ("1?" * 100_000, "a constant expression nests too deeply"),
        ("(1", "expected `)`"),
        ("1+", "expected an operand"),
        ("1+%r2", "expected an operand, found `%r2`"),
        ("-%r2", "expected an operand, found `%r2`"),
        ("in_shared-8", "an offset is added: write +-8, found `-`"),
        ("in_shared+(1<<41)", "an offset is at most 2^40"),
    ],
)
def test_constant_expressions_that_are_refused(expression: str, message: str):
    with pytest.raises(ValueError, match=re.escape(message)):
        emulate(module([f"mov.u32 %r1, {expression};"]), [np.zeros(1, np.uint32)])
