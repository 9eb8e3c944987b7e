"""Tracing a body, and reading what it emitted."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

from jax_ptx import kernel


def text_of(body: Callable[[], Any], **options: Any) -> str:
    """The PTX of a kernel without tensors."""

    def traced():
        body()

    return kernel(**options)(traced).ptx()


def lines_of(body: Callable[[], Any], **options: Any) -> list[str]:
    """The lines of the body, without the `ret` at the end."""
    inside = text_of(body, **options).split("{\n", 1)[1]
    lines = [line.strip() for line in inside.split("\n\n", 1)[1].splitlines()]
    assert lines[-2:] == ["ret;", "}"]
    return lines[:-2]


def refused(
    body: Callable[[], Any],
    kind: type[Exception] = ValueError,
    line: str | None = None,
    **options: Any,
) -> str:
    """What is said of a body, which is said at the line of it that holds `line`."""
    with pytest.raises(kind) as raised:
        text_of(body, **options)
    message = str(raised.value)
    lines, first = inspect.getsourcelines(body)
    file = inspect.getsourcefile(body)
    if line is None:
        assert re.match(rf"kernel traced, {re.escape(file)}:\d+: ", message)
    else:
        at = next(number for number, text in enumerate(lines, first) if line in text)
        assert message.startswith(f"kernel traced, {file}:{at}: ")
    return message
