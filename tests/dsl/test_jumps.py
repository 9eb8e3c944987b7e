"""Python's own jumps out of the language's blocks, which would drop code in silence."""

from __future__ import annotations

import pytest

from jax_ptx import ptx, reg
from jax_ptx.dsl import jumps
from jax_ptx.types import pred, u32
from tests.dsl.tracing import lines_of, refused


def continue_in_if():
    total = reg.scalar(u32, 0)
    for i in ptx.range_(10):
        with ptx.if_(i == 2):
            continue  # here
        total += i


def return_in_if():
    t = reg.scalar(u32)
    with ptx.if_(t >= 4):
        return  # here
    t += 1


def break_in_else():
    p = reg.scalar(pred)
    for _ in range(3):
        with ptx.if_(p):
            ptx.ret()
        with ptx.else_():
            try:
                reg.scalar(u32, 1)
            finally:
                break  # here # noqa: B012


def return_in_range():
    for i in ptx.range_(reg.scalar(u32)):
        return i  # here
    return None


def break_in_a_loop_of_the_language():
    for _ in range(3):
        with ptx.loop(4):
            reg.scalar(u32, 1)
            break  # here


def several_items():
    p = reg.scalar(pred)
    while True:
        with (
            ptx.if_(p),
            ptx.if_(~p),
        ):
            if p is None:
                break  # here


@pytest.mark.parametrize(
    ("body", "word", "instead"),
    [
        (continue_in_if, "continue", "ptx.continue_(p)"),
        (return_in_if, "return", "ptx.ret(p)"),
        (break_in_else, "break", "ptx.break_(p)"),
        (return_in_range, "return", "ptx.ret(p)"),
        (break_in_a_loop_of_the_language, "break", "ptx.break_(p)"),
        (several_items, "break", "ptx.break_(p)"),
    ],
)
def test_a_jump_of_python_out_of_a_block(body, word, instead):
    message = refused(body, line="# here")
    assert f"`{word}` inside `" in message
    assert instead in message


def test_jumps_of_python_that_stay_inside():
    def body():
        r = reg.scalar(u32, 0)
        for i in ptx.range_(10):
            with ptx.if_(i < 3):
                for j in range(4):
                    if j == 1:
                        continue
                    if j == 3:
                        break
                    r += j

                def square(value):
                    return value * value

                (lambda: square(r))()
            with ptx.if_(i < 3):
                i + 1
            break
        for j in range(3):
            if j == 1:
                continue
            with ptx.if_(r == 0):
                r += 1

    assert "add.u32 %r0, %r0, 2;" in lines_of(body)


def test_a_body_without_a_source_is_traced():
    scope: dict = {"ptx": ptx, "reg": reg, "pred": pred}
    exec("def body():\n with ptx.if_(reg.scalar(pred)):\n  return", scope)
    assert lines_of(scope["body"]) == ["@!%p0 bra $else_0;", "$else_0:"]


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (lambda: ptx.if_(reg.scalar(pred)), "ptx.if_ alone does nothing: write `with ptx.if_"),
        (lambda: ptx.loop(3), "ptx.loop alone does nothing: write `with ptx.loop"),
        (lambda: ptx.range_(3), "ptx.range_ alone does nothing: write `for … in ptx.range_"),
    ],
)
def test_a_block_that_no_statement_enters(body, what):
    assert what in refused(body)


def test_one_thread_at_a_time_reads_syntax(monkeypatch):
    # CPython 3.11 raises a SystemError where the collector's callbacks let another in.
    held, parse = [], jumps.ast.parse

    def watched(text):
        held.append(jumps._PARSING.locked())
        return parse(text)

    monkeypatch.setattr(jumps.ast, "parse", watched)

    def function(p):
        with ptx.if_(p):
            pass
        return None

    jumps._syntax(function.__code__)
    assert held == [True]
    assert not jumps._PARSING.locked()
