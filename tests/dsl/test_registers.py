"""Registers: declarations, first values, arrays, names."""

from __future__ import annotations

import math

import pytest

from jax_ptx import ptx, reg
from jax_ptx.types import b32, bf16, f16, f32, f64, pred, s32, u8, u32, u64
from tests.dsl.tracing import lines_of, text_of


@pytest.mark.parametrize(
    ("dtype", "init", "line"),
    [
        (f32, 0.0, "mov.f32 %f0, 0f00000000;"),
        (f32, -0.0, "mov.f32 %f0, 0f80000000;"),
        (f32, 1, "mov.f32 %f0, 0f3F800000;"),
        (f32, math.inf, "mov.f32 %f0, 0f7F800000;"),
        (f32, -math.inf, "mov.f32 %f0, 0fFF800000;"),
        (f32, math.nan, "mov.f32 %f0, 0f7FC00000;"),
        (f64, 0.5, "mov.f64 %fd0, 0d3FE0000000000000;"),
        (f64, 3, "mov.f64 %fd0, 0d4008000000000000;"),
        (f16, 1.0, "mov.b16 %h0, 0x3C00;"),
        (bf16, 1, "mov.b16 %h0, 0x3F80;"),
        (u32, 7, "mov.u32 %r0, 7;"),
        (u32, 2**32 - 1, "mov.u32 %r0, 4294967295;"),
        (s32, -7, "mov.s32 %r0, -7;"),
        (u64, 2**63, "mov.u64 %rd0, 9223372036854775808;"),
        (u8, 255, "mov.b16 %h0, 255;"),
    ],
)
def test_init_is_one_mov(dtype, init, line):
    assert lines_of(lambda: reg.scalar(dtype, init)) == [line]


def test_no_init_emits_nothing():
    text = text_of(lambda: [reg.scalar(f32), reg.scalar(pred), reg.scalar(bf16)])
    assert ".reg .f32 %f<1>;" in text
    assert ".reg .pred %p<1>;" in text
    assert ".reg .b16 %h<1>;" in text


def test_a_predicate_takes_a_first_value():
    lines = lines_of(lambda: reg.scalar(pred, init=True))
    assert lines == ["mov.u32 %r0, 1;", "setp.ne.u32 %p0, %r0, 0;"]


def test_registers_are_numbered_by_kind():
    def body():
        names = [reg.scalar(t).name for t in (u32, f32, u64, s32, f64, bf16, pred, b32)]
        assert names == ["%r0", "%f0", "%rd0", "%r1", "%fd0", "%h0", "%p0", "%r2"]

    lines_of(body)


def test_from_is_a_register_and_one_mov():
    def body():
        tid = reg.from_(ptx.special.tid.x(), u32)
        assert (tid.name, tid.dtype) == ("%r0", u32)
        reg.from_(tid, b32)
        reg.from_(2.0, f32)

    assert lines_of(body) == [
        "mov.u32 %r0, %tid.x;",
        "mov.b32 %r1, %r0;",
        "mov.f32 %f0, 0f40000000;",
    ]


def test_an_array_is_indexable_iterable_and_has_a_length():
    def body():
        a = reg.array(f32, 4)
        assert len(a) == 4
        assert [r.name for r in a] == ["%f0", "%f1", "%f2", "%f3"]
        assert a[-1] is a[3]
        assert [r.name for r in a[1:3]] == ["%f1", "%f2"]
        with pytest.raises(IndexError, match="element 4 of a register array of 4"):
            a[4]

    lines_of(body)


def test_assigning_to_an_element_copies_and_rewrites_nothing():
    def body():
        a = reg.array(u32, 2)
        shifted = a[0] << 7
        a[1] = shifted
        a[1] = 3
        a[1] += 1

    assert lines_of(body) == [
        "shl.b32 %r2, %r0, 7;",
        "mov.u32 %r1, %r2;",
        "mov.u32 %r1, 3;",
        "add.u32 %r1, %r1, 1;",
    ]


def test_names_of_the_author():
    def body():
        reg.scalar(f32, init=0.0, name="total")
        reg.array(b32, 3, name="acc")[2] = 5

    text = text_of(body)
    assert ".reg .f32 total;" in text
    assert ".reg .b32 acc<3>;" in text
    assert "mov.b32 acc2, 5;" in text


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("1x", "the name '1x' is not a PTX identifier"),
        ("%r5", "the name '%r5' is given out by the language"),
        ("traced", "the name 'traced' is already taken in this kernel"),
    ],
)
def test_names_that_are_refused(name, message):
    with pytest.raises(ValueError, match=message):
        lines_of(lambda: reg.scalar(u32, name=name))


@pytest.mark.parametrize(
    ("dtype", "init", "kind", "message"),
    [
        (u32, 2**32, ValueError, "4294967296 does not fit in a register of type u32"),
        (s32, 2**31, ValueError, "2147483648 does not fit in a register of type s32"),
        (u32, 1.5, TypeError, "the float 1.5 does not go into a register of type u32"),
        (
            "f32",
            None,
            TypeError,
            "a register takes a type of jax_ptx.types, such as f32; got 'f32'",
        ),
    ],
)
def test_first_values_that_are_refused(dtype, init, kind, message):
    with pytest.raises(kind, match=message):
        lines_of(lambda: reg.scalar(dtype, init))


def test_a_register_has_no_value_while_tracing():
    def use(f):
        return lines_of(lambda: f(reg.scalar(u32)))

    with pytest.raises(TypeError, match=r"%r0 has no truth value.*`with ptx.if_\(p\):`"):
        use(bool)
    with pytest.raises(TypeError, match="no truth value"):
        use(lambda r: 0 < r < 5)
    with pytest.raises(TypeError, match="no int value"):
        use(int)
    with pytest.raises(TypeError, match="no int value"):
        use(lambda r: [0, 1][r])
    with pytest.raises(TypeError, match="no float value"):
        use(float)


def test_outside_a_kernel():
    with pytest.raises(RuntimeError, match="no kernel is being traced"):
        reg.scalar(f32)


def test_a_register_of_another_trace_is_refused():
    kept = []
    lines_of(lambda: kept.append(reg.scalar(u32)))
    with pytest.raises(TypeError, match="%r0 belongs to another run of a kernel"):
        lines_of(lambda: ptx.inst.mov.u32(reg.scalar(u32), kept[0]))
