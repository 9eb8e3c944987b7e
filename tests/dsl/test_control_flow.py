"""Branches and loops at run time."""

from __future__ import annotations

import pytest

from jax_ptx import ptx, reg
from jax_ptx.types import f32, pred, s32, s64, u32, u64
from tests.dsl.tracing import lines_of, text_of
from tests.ptxas import assemble


def test_if():
    def body():
        with ptx.if_(reg.scalar(pred)):
            reg.scalar(u32, 1)

    assert lines_of(body) == ["@!%p0 bra $else_0;", "mov.u32 %r0, 1;", "$else_0:"]


def test_if_not_and_else():
    def body():
        with ptx.if_(~reg.scalar(pred)):
            reg.scalar(u32, 1)
        with ptx.else_():
            reg.scalar(u32, 2)

    assert lines_of(body) == [
        "@%p0 bra $else_0;",
        "mov.u32 %r0, 1;",
        "bra $endif_0;",
        "$else_0:",
        "mov.u32 %r1, 2;",
        "$endif_0:",
    ]


def test_branches_nest_to_any_depth():
    depth = 40

    def body():
        r = reg.scalar(u32, 0)

        def nest(level):
            if level == depth:
                return
            with ptx.if_(r == level):
                nest(level + 1)
            with ptx.else_():
                r.__iadd__(level)
                with ptx.if_(r > level):
                    ptx.ret()

        nest(0)

    lines = lines_of(body)
    targets = {line.split("bra ")[1].rstrip(";") for line in lines if "bra " in line}
    labels = [line.rstrip(":") for line in lines if line.endswith(":")]
    assert len(labels) == len(set(labels)) == 3 * depth
    assert targets == set(labels)
    assemble(text_of(body), "sm_80")


def test_else_belongs_straight_after_if():
    def body():
        with ptx.if_(reg.scalar(pred)):
            pass
        reg.scalar(u32, 1)
        with ptx.else_():
            pass

    with pytest.raises(
        ValueError, match=r"ptx.else_\(\) belongs straight after the end of a `with ptx"
    ):
        lines_of(body)


def test_a_branch_takes_a_predicate():
    def branch(condition):
        with ptx.if_(condition):
            pass

    with pytest.raises(
        TypeError, match=r"ptx.if_ takes a predicate register, such as `i < n`, got True"
    ):
        lines_of(lambda: branch(True))
    with pytest.raises(TypeError, match=r"got Reg\(%r0, u32\)"):
        lines_of(lambda: branch(reg.scalar(u32)))


def test_range():
    def body():
        total = reg.scalar(u32, 0)
        for i in ptx.range_(2, 10, 3):
            total += i

    assert lines_of(body) == [
        "mov.u32 %r0, 0;",
        "mov.u32 %r1, 2;",
        "$loop_0:",
        "setp.ge.u32 %p0, %r1, 10;",
        "@%p0 bra $endloop_0;",
        "add.u32 %r0, %r0, %r1;",
        "add.u32 %r1, %r1, 3;",
        "bra $loop_0;",
        "$endloop_0:",
    ]


@pytest.mark.parametrize(
    ("arguments", "dtype"),
    [
        (lambda: (5,), u32),
        (lambda: (-3, 5), s32),
        (lambda: (5, -1, -1), s32),
        (lambda: (2**40,), u64),
        (lambda: (0, 2**32 - 2, 1), u32),
        (lambda: (0, 2**32 - 1, 2), u64),  # a step past the stop would wrap in 32 bits
        (lambda: (-1, 2**31 - 1, 1), s64),
        (lambda: (reg.scalar(u32), reg.scalar(u64)), u64),
        (lambda: (reg.scalar(s32),), s32),
    ],
)
def test_the_type_of_an_index(arguments, dtype):
    seen = []

    def body():
        for i in ptx.range_(*arguments()):
            seen.append(i.dtype)

    lines_of(body)
    assert seen == [dtype]


def test_a_python_break_closes_the_loop():
    def body():
        r = reg.scalar(u32, 0)
        for _ in ptx.range_(10):
            r += 1
            break
        r += 2

    assert lines_of(body)[2:] == [
        "$loop_0:",
        "setp.ge.u32 %p0, %r1, 10;",
        "@%p0 bra $endloop_0;",
        "add.u32 %r0, %r0, 1;",
        "bra $endloop_0;",
        "$endloop_0:",
        "add.u32 %r0, %r0, 2;",
    ]
    assemble(text_of(body), "sm_80")


def test_a_python_break_out_of_a_branch_is_refused():
    def body():
        r = reg.scalar(u32, 0)
        for _ in ptx.range_(10):
            with ptx.if_(r == 3):
                break
            r += 1

    with pytest.raises(
        ValueError, match=r"`break` inside `with ptx.if_.*ptx.break_\(p\) does it when"
    ):
        lines_of(body)


def test_break_and_continue_at_run_time():
    def body():
        r = reg.scalar(u32, 0)
        for i in ptx.range_(10):
            ptx.continue_(i == 1)
            with ptx.if_(i == 2):
                ptx.break_()
            r += i

    lines = lines_of(body)
    assert "@%p1 bra $next_0;" in lines
    assert lines[lines.index("@!%p2 bra $else_1;") + 1] == "bra $endloop_0;"
    assert lines[lines.index("$next_0:") + 1] == "add.u32 %r1, %r1, 1;"
    assemble(text_of(body), "sm_80")


def test_while_reads_its_condition_before_each_pass():
    def body():
        f = reg.scalar(f32, 1.0)
        with ptx.while_(lambda: f < 100.0):
            f *= 2.0
            ptx.continue_(f > 50.0)

    assert lines_of(body) == [
        "mov.f32 %f0, 0f3F800000;",
        "$loop_0:",
        "setp.lt.f32 %p0, %f0, 0f42C80000;",
        "@!%p0 bra $endloop_0;",
        "mul.rn.f32 %f0, %f0, 0f40000000;",
        "setp.gt.f32 %p1, %f0, 0f42480000;",
        "@%p1 bra $loop_0;",
        "bra $loop_0;",
        "$endloop_0:",
    ]


def test_a_counted_loop():
    def body():
        r = reg.scalar(u32, 0)
        with ptx.loop(5):
            r += 1

    assert lines_of(body) == [
        "mov.u32 %r0, 0;",
        "mov.u32 %r1, 5;",
        "$loop_0:",
        "add.u32 %r0, %r0, 1;",
        "sub.u32 %r1, %r1, 1;",
        "setp.ne.u32 %p0, %r1, 0;",
        "@%p0 bra $loop_0;",
    ]


def test_a_count_in_a_register_may_be_zero():
    def body():
        n = reg.scalar(u32)
        with ptx.loop(n):
            pass

    lines = lines_of(body)
    assert lines[:3] == ["mov.u32 %r1, %r0;", "setp.eq.u32 %p0, %r1, 0;", "@%p0 bra $endloop_0;"]
    assert lines[-1] == "$endloop_0:"


def test_a_loop_with_a_label_of_the_author():
    def body():
        p = reg.scalar(pred)
        with ptx.loop("again", pred=p):
            reg.scalar(u32, 1)
        ptx.bra("again", pred=~p)

    assert lines_of(body) == [
        "again:",
        "mov.u32 %r0, 1;",
        "@%p0 bra again;",
        "@!%p0 bra again;",
    ]


def test_an_error_in_a_body_is_the_one_that_is_seen():
    def body():
        for _ in ptx.range_(3):
            with ptx.if_(reg.scalar(pred)):
                raise KeyError("of the author")

    with pytest.raises(KeyError, match="of the author") as raised:
        lines_of(body)
    assert raised.value.__notes__ == ["while tracing the kernel traced"]


def test_an_iterator_that_is_never_closed():
    kept = []

    def body():
        iterator = ptx.range_(3)
        next(iterator)
        kept.append(iterator)

    with pytest.raises(ValueError, match=r"ptx.range_ is still open at the end of the kernel"):
        lines_of(body)


@pytest.mark.parametrize("statement", [lambda: ptx.break_(), lambda: ptx.continue_()])
def test_break_outside_a_loop(statement):
    with pytest.raises(ValueError, match="is not inside a loop at run time"):
        lines_of(statement)
