"""Tracing a body, and reading what it emitted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
