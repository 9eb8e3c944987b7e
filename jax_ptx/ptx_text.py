"""Reads a PTX text into statements: what stands in it, and which memory its accesses move.

It takes any text, also one that nobody has parsed yet: several statements a line, nested scopes,
labels, comments, debug lines. The emulator and ptxas are the ones to refuse what is wrong.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import NamedTuple

# A comment or a list without an end goes on to the text's: to look for the end again from each start would
# take the square of the text's length.
_COMMENT_OR_STRING = re.compile(r'/\*.*?(?:\*/|\Z)|//[^\n]*|"(?:\\.|[^"\\\n])*"', re.DOTALL)
# The directives that no semicolon ends.
_DEBUG = re.compile(r"\.loc\s+\d+\s+\d+\s+\d+(?:\s*,[^\n]*)?|(?:\.file\b|@@)[^\n]*")
_MARK = re.compile(r"[;{}]")
_HEAD = re.compile(r"\.(?:entry|func|section)\b")
_ENTRY = re.compile(r"\.entry\s+([\w$%]+)")
_LABELS = re.compile(r"\s*(?:[A-Za-z_$%][\w$]*\s*:(?!:)\s*)*")
_INSTRUCTION = re.compile(
    r"(?:@!?\s*[\w$%]+\s+)?(?P<opcode>[a-z]\w*)(?P<modifiers>(?:\s*\.[\w:]+)*)(?P<operands>.*)",
    re.DOTALL,
)
_TYPE = re.compile(r"(?:b|u|s|f|bf)(\d+)(?:x(\d+))?")
_VECTOR = re.compile(r"v(\d)")
_SPACES = ("global", "shared", "shared::cta", "shared::cluster", "local", "const", "param")
_MOVES = ("ld", "ldu", "st", "atom", "red", "multimem")
_BULK_BYTES = 16  # a bulk copy's addresses are multiples of this, whatever its size
_MATRIX_BYTES = 32  # and those of a `wmma` fragment in memory of this
_LINES = ("discard", "applypriority")  # their operand after the address is also its alignment


class Statement(NamedTuple):
    """One instruction.

    Attributes:
        entry: the entry that it stands in; None: a function.
        opcode: such as "ld".
        modifiers: such as ("global", "v4", "f32").
        operands: what follows, as it is written.
    """

    entry: str | None
    opcode: str
    modifiers: tuple[str, ...]
    operands: str


class Access(NamedTuple):
    """The memory that one instruction moves for one thread.

    Attributes:
        what: such as "ld.global.v4", "atom.shared", "cp.async".
        n_bytes: how many bytes; 0 where a register says so.
        alignment: what its address in global memory is a multiple of; 1: it has none there.
    """

    what: str
    n_bytes: int
    alignment: int


def strip_comments(text: str) -> str:
    """The text without comments, and with empty strings."""
    return _COMMENT_OR_STRING.sub(lambda found: '""' if found[0][0] == '"' else " ", text)


def statements(text: str) -> Iterator[Statement]:
    """The instructions of a module, in the order of the text; directives are left out."""
    text = _DEBUG.sub("", strip_comments(text))
    entry, depth, start, inside_vector = None, 0, 0, False
    for mark in _MARK.finditer(text):
        before = text[start : mark.start()]
        if inside_vector:
            inside_vector = mark[0] != "}"
            continue
        if mark[0] == "{":
            opens = _HEAD.search(before) if depth == 0 else _LABELS.fullmatch(before)
            if not opens:  # a vector of registers, or what an array begins with
                inside_vector = True
                continue
            if depth == 0:
                name = _ENTRY.search(before)
                entry = name[1] if name else None
            depth += 1
        elif mark[0] == "}":
            depth -= 1
        elif depth > 0 and (statement := _read(entry, before)):
            yield statement
        start = mark.end()


def access(statement: Statement) -> Access | None:
    """What an instruction moves to or from memory; None: nothing, or only parameters."""
    _, opcode, modifiers, operands = statement
    if opcode in _MOVES:
        return _move(opcode, modifiers)
    if opcode == "cp" and modifiers[:1] in (("async",), ("reduce",)):
        return _copy(opcode, modifiers, operands)
    if opcode in _LINES:
        return Access(opcode, 0, _integer(operands, 1) or 1)
    if opcode == "wmma" and modifiers[:1] in (("load",), ("store",)):
        return Access("wmma", 0, _MATRIX_BYTES)
    return None


@functools.lru_cache(maxsize=256)
def access_alignment(text: str) -> int:
    """What the addresses of every access to global memory in a text are multiples of, in bytes."""
    found = (access(statement) for statement in statements(text))
    return max((a.alignment for a in found if a), default=1)


def _read(entry: str | None, text: str) -> Statement | None:
    labels = _LABELS.match(text)
    found = _INSTRUCTION.fullmatch(text, labels.end() if labels else 0)
    if found is None:  # a directive
        return None
    modifiers = tuple(word.strip() for word in found["modifiers"].split(".")[1:])
    return Statement(entry, found["opcode"], modifiers, found["operands"].strip())


def _move(opcode: str, modifiers: tuple[str, ...]) -> Access | None:
    types = [found for word in modifiers if (found := _TYPE.fullmatch(word))]
    # Without a state space the address is generic, and may be a global one.
    space = next((word for word in modifiers if word in _SPACES), "generic")
    if not types or space == "param":
        return None
    vector = next((found for word in modifiers if (found := _VECTOR.fullmatch(word))), None)
    n_bytes = int(types[-1][1]) * int(types[-1][2] or 1) * int(vector[1] if vector else 1) // 8
    what = f"{opcode}.{space.partition(':')[0]}" + (f".{vector[0]}" if vector else "")
    return Access(what, n_bytes, n_bytes if space in ("global", "generic") else 1)


def _copy(opcode: str, modifiers: tuple[str, ...], operands: str) -> Access | None:
    words = (opcode, *modifiers)
    if "bulk" not in modifiers:  # cp.async.ca.shared.global [to], [from], size; and its groups
        size = _integer(operands, 2)
        return Access("cp.async", size, size) if size else None
    if "tensor" in modifiers or not any(word.startswith("shared") for word in modifiers):
        return None  # a tensor map holds the address; groups and prefetches move nothing
    return Access(".".join(words[: words.index("bulk") + 1]), _integer(operands, 2), _BULK_BYTES)


def _integer(operands: str, index: int) -> int:
    """The operand at a place, if it is an integer; 0 if not."""
    values = operands.split(",")
    try:
        return int(values[index].strip().rstrip("U"), 0)
    except (IndexError, ValueError):
        return 0
