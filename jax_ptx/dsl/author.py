"""The author of a kernel: where in their source they are, and operands as they would know them."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType

from jax_ptx.dsl.operands import Value

# Frames of these files are the language, not its author.
_LANGUAGE = (str(Path(__file__).parent) + "/", str(Path(__file__).parent.parent / "kernel.py"))


def author_frame() -> FrameType:
    """The innermost caller outside the language."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_LANGUAGE):
        frame = frame.f_back
    return frame


def author_line() -> str:
    """File and line of the innermost caller outside the language."""
    frame = author_frame()
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def shown(operand: object) -> str:
    """An operand in a message."""
    if isinstance(operand, Value):
        return re.sub("\0(\\d+)\\+(\\d+)\0", _shown_shared, operand.text)
    if isinstance(operand, list | tuple):
        return f"[{', '.join(map(shown, operand))}]"
    return repr(operand)


def _shown_shared(match: re.Match[str]) -> str:
    return f"smem_{match[1]}" if match[2] == "0" else f"smem_{match[1]}+{match[2]}"
