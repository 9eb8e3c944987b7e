"""What each operator of a register emits, line by line."""

from __future__ import annotations

import numpy as np
import pytest

from jax_ptx import ptx, reg
from jax_ptx.types import b32, b64, bf16, f16, f32, f64, pred, s32, s64, u8, u16, u32, u64
from tests.dsl.tracing import lines_of


def emitted(dtype, expression, other=None):
    """The lines of an expression of a register (and a second one, of type `other`)."""

    def body():
        r = reg.scalar(dtype)
        expression(r) if other is None else expression(r, reg.scalar(other))

    return lines_of(body)


@pytest.mark.parametrize(
    ("dtype", "expression", "lines"),
    [
        (u32, lambda r: r + 1, ["add.u32 %r1, %r0, 1;"]),
        (u32, lambda r: 1 + r, ["add.u32 %r1, %r0, 1;"]),
        (s32, lambda r: r + 1, ["add.s32 %r1, %r0, 1;"]),
        (b64, lambda r: r + 16, ["add.s64 %rd1, %rd0, 16;"]),
        (u32, lambda r: r - 1, ["sub.u32 %r1, %r0, 1;"]),
        (u32, lambda r: 1 - r, ["sub.u32 %r1, 1, %r0;"]),
        (u64, lambda r: r - 1, ["sub.s64 %rd1, %rd0, 1;"]),
        (u16, lambda r: r + 1, ["add.u16 %h1, %h0, 1;"]),
        (u32, lambda r: r << 3, ["shl.b32 %r1, %r0, 3;"]),
        (u64, lambda r: r << 3, ["shl.b64 %rd1, %rd0, 3;"]),
        (u32, lambda r: r >> 5, ["shr.u32 %r1, %r0, 5;"]),
        (b32, lambda r: r >> 5, ["shr.u32 %r1, %r0, 5;"]),
        (s32, lambda r: r >> 5, ["shr.s32 %r1, %r0, 5;"]),
        (s64, lambda r: r >> 5, ["shr.s64 %rd1, %rd0, 5;"]),
        (u32, lambda r: r & 31, ["and.b32 %r1, %r0, 31;"]),
        (u32, lambda r: 31 & r, ["and.b32 %r1, %r0, 31;"]),
        (u64, lambda r: r | 1, ["or.b64 %rd1, %rd0, 1;"]),
        (s32, lambda r: r ^ -1, ["xor.b32 %r1, %r0, -1;"]),
        (u32, lambda r: ~r, ["not.b32 %r1, %r0;"]),
        (s32, lambda r: -r, ["neg.s32 %r1, %r0;"]),
        (u32, lambda r: r.max(3), ["max.u32 %r1, %r0, 3;"]),
        (s64, lambda r: r.min(3), ["min.s64 %rd1, %rd0, 3;"]),
        (u32, lambda r: r // 3, ["div.u32 %r1, %r0, 3;"]),
        (u32, lambda r: r % 3, ["rem.u32 %r1, %r0, 3;"]),
    ],
)
def test_integers(dtype, expression, lines):
    assert emitted(dtype, expression) == lines


@pytest.mark.parametrize(
    ("dtype", "expression", "lines"),
    [
        (u32, lambda r: r * 4, ["mul.wide.u32 %rd0, %r0, 4;"]),
        (u32, lambda r: 4 * r, ["mul.wide.u32 %rd0, %r0, 4;"]),
        (s32, lambda r: r * -4, ["mul.wide.s32 %rd0, %r0, -4;"]),
        (u32, lambda r: r * (2**32 - 1), ["mul.wide.u32 %rd0, %r0, 4294967295;"]),
        (
            u32,
            lambda r: r * 2**33,
            ["cvt.u64.u32 %rd0, %r0;", "mul.lo.u64 %rd1, %rd0, 8589934592;"],
        ),
        (u32, lambda r: r * -4, ["cvt.u64.u32 %rd0, %r0;", "mul.lo.u64 %rd1, %rd0, -4;"]),
        (
            s32,
            lambda r: r * 2**31,
            ["cvt.s64.s32 %rd0, %r0;", "mul.lo.s64 %rd1, %rd0, 2147483648;"],
        ),
        (u64, lambda r: r * 4, ["mul.lo.u64 %rd1, %rd0, 4;"]),
        (b64, lambda r: r * 4, ["mul.lo.u64 %rd1, %rd0, 4;"]),
    ],
)
def test_products_never_wrap_at_four_gib(dtype, expression, lines):
    assert emitted(dtype, expression) == lines


def test_the_type_of_a_wide_product():
    def body():
        assert (reg.scalar(u32) * 4).dtype is u64
        assert (reg.scalar(s32) * 4).dtype is s64
        assert (reg.scalar(b64) + reg.scalar(u64)).dtype is b64

    lines_of(body)


def test_pointer_arithmetic_is_two_instructions():
    assert emitted(b64, lambda p, i: p + i * 4, u32) == [
        "mul.wide.u32 %rd1, %r0, 4;",
        "add.s64 %rd2, %rd0, %rd1;",
    ]


@pytest.mark.parametrize(
    ("dtype", "other", "expression", "lines"),
    [
        (b64, u32, lambda a, b: a + b, ["cvt.u64.u32 %rd1, %r0;", "add.s64 %rd2, %rd0, %rd1;"]),
        (b64, s32, lambda a, b: a + b, ["cvt.s64.s32 %rd1, %r0;", "add.s64 %rd2, %rd0, %rd1;"]),
        (u32, b64, lambda a, b: a + b, ["cvt.u64.u32 %rd1, %r0;", "add.s64 %rd2, %rd1, %rd0;"]),
        (u32, u64, lambda a, b: a < b, ["cvt.u64.u32 %rd1, %r0;", "setp.lt.u64 %p0, %rd1, %rd0;"]),
        (u32, u64, lambda a, b: a * b, ["cvt.u64.u32 %rd1, %r0;", "mul.lo.u64 %rd2, %rd1, %rd0;"]),
        (u32, u32, lambda a, b: a * b, ["mul.wide.u32 %rd0, %r0, %r1;"]),
        (u64, u32, lambda a, b: a << b, ["shl.b64 %rd1, %rd0, %r0;"]),
    ],
)
def test_widths_that_differ(dtype, other, expression, lines):
    assert emitted(dtype, expression, other) == lines


@pytest.mark.parametrize(
    ("dtype", "expression", "lines"),
    [
        (f32, lambda r: r + 1, ["add.rn.f32 %f1, %f0, 0f3F800000;"]),
        (f32, lambda r: 1.0 - r, ["sub.rn.f32 %f1, 0f3F800000, %f0;"]),
        (f32, lambda r: r * r, ["mul.rn.f32 %f1, %f0, %f0;"]),
        (f32, lambda r: 1 / r, ["div.rn.f32 %f1, 0f3F800000, %f0;"]),
        (f64, lambda r: r + 0.5, ["add.rn.f64 %fd1, %fd0, 0d3FE0000000000000;"]),
        (f16, lambda r: r + r, ["add.rn.f16 %h1, %h0, %h0;"]),
        (f16, lambda r: r * 2.0, ["mov.b16 %h1, 0x4000;", "mul.rn.f16 %h2, %h0, %h1;"]),
        (bf16, lambda r: r - r, ["sub.rn.bf16 %h1, %h0, %h0;"]),
        (f32, lambda r: r.max(0.0), ["max.f32 %f1, %f0, 0f00000000;"]),
        (f32, lambda r: -r, ["neg.f32 %f1, %f0;"]),
        (f32, lambda r: abs(r), ["abs.f32 %f1, %f0;"]),
    ],
)
def test_floats_round_to_nearest(dtype, expression, lines):
    assert emitted(dtype, expression) == lines


@pytest.mark.parametrize(
    ("dtype", "expression", "line"),
    [
        (u32, lambda r: r == 0, "setp.eq.u32 %p0, %r0, 0;"),
        (b32, lambda r: r < 5, "setp.lt.u32 %p0, %r0, 5;"),
        (b64, lambda r: r >= 5, "setp.ge.u64 %p0, %rd0, 5;"),
        (s32, lambda r: r > -5, "setp.gt.s32 %p0, %r0, -5;"),
        (f32, lambda r: r <= 1, "setp.le.f32 %p0, %f0, 0f3F800000;"),
        (f32, lambda r: r != r, "setp.neu.f32 %p0, %f0, %f0;"),  # true for NaN, as in Python
        (u32, lambda r: r < 5, "setp.lt.u32 %p0, %r0, 5;"),
    ],
)
def test_comparisons(dtype, expression, line):
    assert emitted(dtype, expression) == [line]


def test_in_place_forms_write_the_left_register():
    def body():
        i, f, p = reg.scalar(u32), reg.scalar(f32), reg.scalar(b64)
        same_i, same_f, same_p = i, f, p
        i += 1
        i *= 3
        i <<= 2
        i &= 7
        f *= 2.0
        f -= f
        p += i
        assert i is same_i
        assert f is same_f
        assert p is same_p

    assert lines_of(body) == [
        "add.u32 %r0, %r0, 1;",
        "mul.lo.u32 %r0, %r0, 3;",
        "shl.b32 %r0, %r0, 2;",
        "and.b32 %r0, %r0, 7;",
        "mul.rn.f32 %f0, %f0, 0f40000000;",
        "sub.rn.f32 %f0, %f0, %f0;",
        "cvt.u64.u32 %rd1, %r0;",
        "add.s64 %rd0, %rd0, %rd1;",
    ]


def test_predicates():
    def body():
        p, q = reg.scalar(pred), reg.scalar(pred)
        assert ~~p is p
        ptx.inst.mov.u32(reg.scalar(u32), 1, pred=~p)
        ptx.inst.mov.u32(reg.scalar(u32), 1, pred=p)
        _ = p & q, p | ~q, ~p & q

    assert lines_of(body) == [
        "@!%p0 mov.u32 %r0, 1;",
        "@%p0 mov.u32 %r1, 1;",
        "and.pred %p2, %p0, %p1;",
        "not.pred %p3, %p1;",
        "or.pred %p4, %p0, %p3;",
        "not.pred %p5, %p0;",
        "and.pred %p6, %p5, %p1;",
    ]


def test_a_special_register_is_copied_before_arithmetic():
    def body():
        lane = ptx.special.tid.x() & 31
        _ = ptx.special.tid.x() == 0
        assert lane.name == "%r1"

    assert lines_of(body) == [
        "mov.u32 %r0, %tid.x;",
        "and.b32 %r1, %r0, 31;",
        "mov.u32 %r2, %tid.x;",
        "setp.eq.u32 %p0, %r2, 0;",
    ]


def in_place(operator):
    namespace = {}
    exec(f"def f(r, o):\n    r {operator} o", namespace)
    return namespace["f"]


@pytest.mark.parametrize(
    ("dtype", "other", "expression", "message"),
    [
        (u32, f32, lambda a, b: a + b, r"`\+` of u32 and f32 registers; convert one"),
        (f32, f64, lambda a, b: a * b, r"`mul.rn` of f32 and f64|`\*` of f32 and f64 registers"),
        (u32, u64, in_place("+="), r"`\+=` of u32 and u64 registers"),
        (u16, u32, lambda a, b: a + b, r"`\+` of u16 and u32 registers"),
        (u32, u32, lambda a, b: a + 1.5, "a float goes with float registers"),
        (f32, f32, lambda a, b: a & b, "`&` of a f32 register"),
        (f32, f32, lambda a, b: a << 1, "`<<` of a f32 register"),
        (f32, f32, lambda a, b: a // b, "`/` is for floats"),
        (u32, u32, lambda a, b: a / b, "`/` is for floats"),
        (s32, s32, lambda a, b: a // b, "Python rounds down and PTX towards zero"),
        (u32, u64, lambda a, b: a << b, "takes an amount of 32 bits"),
        (u8, u8, lambda a, b: a + b, "which only loads, stores and cvt take"),
        (pred, pred, lambda a, b: a + b, r"`\+` of a predicate register"),
        (pred, u32, lambda a, b: a & b, "both must be predicates"),
        (u32, u32, lambda a, b: a + "x", "`\\+` of a u32 register and 'x'"),
        (u32, u32, lambda a, b: a == None, "`==` of a u32 register and None"),  # noqa: E711
        (
            u32,
            u32,
            lambda a, b: in_place("+=")(ptx.special.tid.x(), 1),
            "%tid.x is a special register",
        ),
    ],
)
def test_operands_that_are_refused(dtype, other, expression, message):
    with pytest.raises(TypeError, match=message):
        emitted(dtype, expression, other)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        (lambda r: r < -1, "comparison of an unsigned u32 register with -1"),
        (lambda r: r + 2**32, "4294967296 does not fit in 32 bits"),
        (lambda r: r << -1, "the amount is 0 or more"),
    ],
)
def test_numbers_that_are_refused(expression, message):
    with pytest.raises(ValueError, match=message):
        emitted(u32, expression)


def test_numbers_of_numpy_are_numbers():
    def body():
        i, f = reg.scalar(u32, np.int64(3)), reg.scalar(f32, np.float32(0.5))
        _ = np.int64(4) * i, i + np.int32(1), f * np.float32(2), np.float64(1) - f
        ptx.inst.mov.u32(i, np.uint8(7))

    assert lines_of(body) == [
        "mov.u32 %r0, 3;",
        "mov.f32 %f0, 0f3F000000;",
        "mul.wide.u32 %rd0, %r0, 4;",
        "add.u32 %r1, %r0, 1;",
        "mul.rn.f32 %f1, %f0, 0f40000000;",
        "sub.rn.f32 %f2, 0f3F800000, %f0;",
        "mov.u32 %r0, 7;",
    ]
