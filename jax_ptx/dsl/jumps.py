"""Python's `return`, `break` and `continue` out of a block that runs when the kernel does.

The body of `with ptx.if_(p):` is traced whatever p is, so a `return` in it ends the trace: what
comes after is never emitted, and no thread runs it. Nothing of this is seen in what was emitted. It
is seen in the author's source, once for each statement; where there is no source, nothing is said.
"""

from __future__ import annotations

import ast
import linecache
import re
import threading
from collections.abc import Iterable, Iterator
from itertools import islice
from types import CodeType
from typing import NamedTuple, TypeAlias

from jax_ptx.dsl.author import author_frame
from jax_ptx.dsl.trace import Trace

Position: TypeAlias = tuple[int | None, int | None, int | None, int | None]
_INSTEAD = {"return": "ptx.ret(p)", "break": "ptx.break_(p)", "continue": "ptx.continue_(p)"}
_WORD = re.compile(rf"\b({'|'.join(_INSTEAD)})\b")
_ANY, _RETURN = frozenset(_INSTEAD), frozenset({"return"})

_MOST_READ = 1024
# CPython counts how deep the tree is that it builds for all threads together: where another is let in
# meanwhile, by the garbage collector's callbacks, of which JAX has one, `ast.parse` raises a SystemError.
_PARSING = threading.Lock()


class _Jump(NamedTuple):
    word: str
    line: int


# What was found, by the identity of the code, whose hash would take long.
_read: dict[int, tuple[CodeType, dict[Position, _Jump]]] = {}


def check_jumps(trace: Trace, block: str) -> None:
    """Refuses a statement of Python that leaves the block which the author enters now.

    Raises:
        ValueError: there is one in the body of the block; the error is at its line.
    """
    frame = author_frame()
    jump = _jump(frame.f_code, frame.f_lasti)
    if jump is not None:
        raise trace.error(
            ValueError,
            f"`{jump.word}` inside `{block}` leaves it while the kernel is traced, in every thread, "
            f"and what follows is not emitted; {_INSTEAD[jump.word]} does it when the kernel runs, "
            "in the threads where p holds",
            f"{frame.f_code.co_filename}:{jump.line}",
        )


def _jump(code: CodeType, instruction: int) -> _Jump | None:
    """The first jump out of the block that is entered at this instruction."""
    known = _read.get(id(code))
    if known is None or known[0] is not code:
        if len(_read) >= _MOST_READ:
            _read.clear()
        known = _read[id(code)] = (code, _jumps(code))
    if not known[1]:  # nearly always
        return None
    position = next(islice(code.co_positions(), instruction // 2, None), None)
    return None if position is None else known[1].get(position)


def _jumps(code: CodeType) -> dict[Position, _Jump]:
    """The jumps out of the blocks of a function, by where it enters them."""
    found: dict[Position, _Jump] = {}
    for node in _statements(_syntax(code)):
        if isinstance(node, ast.With):
            jump = next(_leaving(node.body, _ANY), None)
            if jump is not None:
                found.update((_position(item.context_expr), jump) for item in node.items)
                found[_position(node)] = jump  # before Python 3.13 a statement is entered as one
        elif isinstance(node, ast.For):
            jump = next(_leaving(node.body, _RETURN), None)
            if jump is not None:
                found[_position(node.iter)] = found[_position(node)] = jump
    return found


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """The statements in one, at any depth. Expressions have none, and are most of a tree."""
    for field in ("body", "orelse", "handlers", "finalbody", "cases"):
        for child in getattr(node, field, ()):
            yield child
            yield from _statements(child)


def _leaving(body: Iterable[ast.AST], words: frozenset[str]) -> Iterator[_Jump]:
    """The statements among `words` that leave the body, in order."""
    for node in body:
        match node:
            case ast.Return() | ast.Break() | ast.Continue():
                word = type(node).__name__.lower()
                if word in words:
                    yield _Jump(word, node.lineno)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                pass
            case ast.For() | ast.While():
                yield from _leaving(node.body, words & _RETURN)
                yield from _leaving(node.orelse, words)
            case ast.stmt() | ast.ExceptHandler() | ast.match_case():
                yield from _leaving(ast.iter_child_nodes(node), words)


def _position(node: ast.expr | ast.stmt) -> Position:
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset


def _syntax(code: CodeType) -> ast.AST:
    """The source of a function, read; an empty module where it is not to be had."""
    linecache.checkcache(code.co_filename)
    last = _last_line(code)
    lines = linecache.getlines(code.co_filename)[code.co_firstlineno - 1 : last]
    if not any(map(_WORD.search, lines)):  # nearly always, and reading the syntax takes long
        return ast.Module([], [])
    indented = bool(lines) and lines[0][:1].isspace()
    try:
        # Not dedented: the columns tell which block is meant.
        with _PARSING:
            tree = ast.parse("if True:\n" * indented + "".join(lines))
    except SyntaxError:
        return ast.Module([], [])
    return ast.increment_lineno(tree, code.co_firstlineno - 1 - indented)


def _last_line(code: CodeType) -> int:
    inside = [_last_line(c) for c in code.co_consts if isinstance(c, CodeType)]
    return max([end or 0 for _, end, _, _ in code.co_positions()] + inside, default=0)
