"""The parser on text that is not right, or hostile: an error with line and column, and never a crash."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ffi.emulation import HEADER, emulate, kernel


def refusal(text: str, error: type[Exception] = ValueError, n: int = 1) -> str:
    with pytest.raises(error) as caught:
        emulate(text, [np.zeros(64, np.float32) for _ in range(n)], step_limit=1_000_000)
    return str(caught.value)


def body(line: str, error: type[Exception] = ValueError) -> str:
    """The message for one wrong line, whose place in the text is (5, 1)."""
    registers = ".reg .b32 %r<4>; .reg .pred %p<4>; .reg .b64 %rd<4>; .reg .f32 %f<4>;"
    text = f"{HEADER}.visible .entry k(.param .u64 y) {{ {registers}\n{line}\nret; }}"
    message = refusal(text, error)
    assert "PTX line 5, column" in message or "PTX line 6, column 1" in message, message
    return message


UNKNOWN = {
    "frobnicate.u32 %r1, %r2;": "unknown instruction `frobnicate.u32`",
    "add.foo.u32 %r1, %r2, %r3;": "`add.foo.u32` is not among the known forms: add ",
    "mul.u32 %r1, %r2, %r3;": "`mul.u32` is not among the known forms",
    "wgmma.fence.sync.aligned;": "unknown instruction `wgmma.fence.sync.aligned`",
    "tex.2d.v4.f32.f32 %r1, %r2;": "`tex.2d.v4.f32.f32` is not supported",
}


@pytest.mark.parametrize("line", UNKNOWN)
def test_unknown_forms(line: str):
    assert UNKNOWN[line] in body(line, NotImplementedError)


WRONG = {
    "add.u32 %r1, %r2;": "too few operands",
    "add.u32 %r1, %r2, %r3, %r3;": "too many operands",
    "add.u32 %r1, %r2, %q3;": "`%q3` is not declared",
    "add.u32 %r1, %r2, %r4;": "`%r4` is not declared",
    "add.u32 %r1, %r2, %rd1;": "`%rd1` has 64 bits; 32 are expected",
    "add.u64 %rd1, %rd2, %r1;": "`%r1` has 32 bits; 64 are expected",
    "add.u32 %r1, %r2, %p1;": "`%p1` is a predicate",
    "add.u32 3, %r2, %r1;": "a destination must be a register",
    "add.f32 %f1, %f2, 1;": "a float constant is expected, such as 0f3F800000",
    "add.u32 %r1, %r2, 0f3F800000, ;": "expected an operand",
    "mov.u32 %tid.x, %r1;": "a special register is read-only",
    "setp.eq.u32 %r1, %r2, %r3;": "not a declared predicate register",
    "ld.global.u32 %r1, %rd1;": "an address [ ] is expected",
    "ld.global.v2.u32 %r1, [%rd1];": "a vector of 2 elements is expected",
    "ld.global.v4.u32 {%r1, %r2}, [%rd1];": "a vector of 4 elements is expected",
    "ld.global.u32 {%r1, %r2}, [%rd1];": "a single register is expected",
    "ld.param.u64 %rd1, [y+4];": "reads past the 8 bytes of parameter y",
    "ld.param.u64 %rd1, [z];": "`z` is not declared",
    "mov.b64 %rd1, {%r1, %r2, %r3};": "do not add up",
    "@%r1 add.u32 %r1, %r2, %r3;": "not a declared predicate register",
    "add.u32 %r1, %r2, %r3": "expected `;`",
    "L: L: ret;": "label L is defined twice",
    ".reg .b32 %r<4>;": "declared twice",
    ".reg .b31 a;": "expected a type",
    "ld.shared.u32 %r1, [%f1];": "cannot hold an address",
    "mov.u32 %r1, 99999999999999999999999;": "expected an integer",
    "mov.b32 %r1, 0f3F80;": "expected a float",
    "/* never closed": "a comment that does not end",
    '.pragma "open': "a string that does not end on its line",
    "add.u32 %r1, %r2, `;": "a character that PTX does not know",
}


@pytest.mark.parametrize("line", WRONG)
def test_wrong_lines(line: str):
    assert WRONG[line] in body(line)


def test_missing_labels_and_ends():
    assert "PTX line 5: label `NOWHERE` is not defined" in refusal(
        f"{HEADER}.entry k(.param .u64 y) {{\nbra NOWHERE; }}"
    )
    assert "expected `}`, found the end of the text" in refusal(
        f"{HEADER}.entry k(.param .u64 y) {{ ret;"
    )
    assert "no .version" in refusal(".entry k(.param .u64 y) { ret; }")
    assert "expected a directive" in refusal("this is not PTX")
    assert "defined twice" in refusal(
        f"{HEADER}.entry k(.param .u64 y) {{ ret; }} .entry k(.param .u64 y) {{ ret; }}"
    )


def test_what_is_refused_by_name():
    assert "indirect calls are not supported" in refusal(
        kernel("call %rd1, ();"), NotImplementedError, 2
    )
    recursion = f"{HEADER}.func f() {{ call f; ret; }} .entry k(.param .u64 y) {{ call f; ret; }}"
    message = refusal(recursion, NotImplementedError)
    assert "kernel `k`: PTX line 4: the call of `f`: recursive or very deep calls" in message
    for special in ("%reserved_smem_offset_7", "%envreg3", "%pm0"):
        message = refusal(kernel(f"mov.u32 %r1, {special};"), NotImplementedError, 2)
        assert f"the special register {special} is not supported" in message
    for line in (
        "tex.1d.v4.f32.s32 {%f1, %f2, %f3, %f4}, [%rd1, {%r1}]",
        "suld.b.1d.b32.trap %r1, [%rd1, {%r2}]",
        "alloca.u64 %rd1, 16",
    ):
        message = refusal(kernel(f"{line};"), NotImplementedError, 2)
        assert f"`{line.split()[0]}` is not supported" in message
    assert "only .address_size 64" in refusal(
        ".version 8.0 .target sm_80 .address_size 32", NotImplementedError
    )


@pytest.mark.parametrize("align", [0, 3, 2048])
def test_alignments_are_powers_of_two(align: int):
    for text in (
        f".shared .align {align} .b32 a;",
        f".entry other(.param .u64 .ptr .align {align} y) {{ ret; }}",
        f".func other(.param .align {align} .b8 y[8]) {{ ret; }}",
    ):
        message = refusal(f"{HEADER}{text} .entry k(.param .u64 y) {{ ret; }}")
        assert "PTX line 4, column" in message
        assert "a power of two" in message or "at most 1024" in message


def test_limits():
    many = f"{HEADER}.entry k(.param .u64 y) {{ .reg .b32 %r<1000000000>; ret; }}"
    assert "at most 16777216" in refusal(many)
    huge = f"{HEADER}.global .b8 a[99999999999]; .entry k(.param .u64 y) {{ ret; }}"
    assert "expected an integer of at most" in refusal(huge)
    huge = f"{HEADER}.global .b8 a[1000000][1000000]; .entry k(.param .u64 y) {{ ret; }}"
    assert "a variable of more than" in refusal(huge, RuntimeError)
    names = ("a", "b", "c", "d", "e")
    much = "".join(f".global .b8 {name}[1000000000]; " for name in names)
    much = kernel("".join(f"mov.u64 %rd1, {name}; " for name in names), before=much)
    assert "variables that it uses exceed the limit of 4294967296 bytes" in refusal(
        much, RuntimeError, 2
    )
    local = f"{HEADER}.entry k(.param .u64 y) {{ .local .b8 a[1000000]; .reg .b64 %r; mov.u64 %r, a; ret; }}"
    assert "local memory exceeds the limit" in refusal(local, RuntimeError)
    deep = f"{HEADER}.entry k(.param .u64 y) {{ " + "{" * 100_000
    assert "blocks nest too deeply" in refusal(deep)
    calls = (
        HEADER
        + "".join(
            f".func f{i}() {{ {f'call f{i - 1};' if i else ''} ret; }}\n" for i in range(2000)
        )
        + ".entry k(.param .u64 y) { call f1999; ret; }"
    )
    assert "very deep calls" in refusal(calls, NotImplementedError)


def test_unused_registers_cost_nothing():
    text = f"{HEADER}.entry k(.param .u64 y) {{ .reg .b64 %rd<16000000>; mov.u64 %rd15999999, 0; ret; }}"
    emulate(text, [np.zeros(1, np.float32)])


def test_a_wrong_character_on_a_line_that_is_skipped():
    assert "a character that PTX does not know" in body(".loc 1 2 \x07 3")


def test_a_destination_is_not_negated():
    assert "a destination cannot be negated" in body("setp.eq.u32 !%p1, 1, 2;")


def test_what_is_refused_in_another_function_blocks_nobody():
    """nvcc puts all kernels of a file into one text."""
    text = f"""{HEADER}.func ok() {{ ret; }}
    .func worse() {{ {{ tcgen05.wait::ld.sync.aligned; }} ret; }}
    .global .align 8 .u64 table[2] = {{ok, worse}};
    .entry bad() {{ bra NOWHERE; }}
    .entry calls(.param .u64 y) {{ call worse; ret; }}
    .entry jumps(.param .u64 y) {{ .reg .b64 %rd; ld.global.u64 %rd, [table+8]; ret; }}
    .entry takes(.param .u64 y) {{ .reg .b64 %rd; mov.u64 %rd, ok; ret; }}
    .entry good(.param .u64 y)
    {{ .reg .b64 %rd; ld.param.u64 %rd, [y]; call ok; st.global.u32 [%rd], 7; ret; }}
    """
    y = np.zeros(1, np.uint32)
    emulate(text, [y], entry="good", block=(1, 1, 1))
    assert y.tolist() == [7]
    line = HEADER.count("\n") + 1
    refused = {
        "bad": f"kernel `bad`: PTX line {line + 3}: label `NOWHERE` is not defined",
        "calls": f"kernel `calls`: PTX line {line + 1}, column 23: unknown instruction "
        "`tcgen05.wait::ld.sync.aligned` (in `worse`, which the kernel uses)",
        "jumps": "`worse` is a function; addresses of functions, virtual ones too, are not supported "
        "(in `table`, which the kernel uses)",
        "takes": "`ok` is a function; addresses of functions are not supported",
    }
    for entry, message in refused.items():
        with pytest.raises((ValueError, NotImplementedError)) as caught:
            emulate(text, [y] if entry != "bad" else [], n_results=0, entry=entry)
        assert message in str(caught.value)
