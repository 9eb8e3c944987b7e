"""Reductions over the lanes of a warp."""

from __future__ import annotations

from jax_ptx.dsl.operators import binary
from jax_ptx.dsl.reg import Reg
from jax_ptx.dsl.trace import current
from jax_ptx.types import b32

_WARP = 32


class Warp:
    """The namespace `ptx.warp`: butterfly reductions, in place, over groups of `width` lanes.

    Every lane of the warp must get there, and every lane ends with its group's result: the same
    bits in all of them, since each step combines the same two values.
    """

    def reduce_sum(self, value: Reg, *, width: int = _WARP) -> None:
        """Sums `value` over each group of `width` neighbouring lanes."""
        _reduce("add", value, width)

    def reduce_max(self, value: Reg, *, width: int = _WARP) -> None:
        """The largest `value` of each group of `width` neighbouring lanes."""
        _reduce("max", value, width)

    def reduce_min(self, value: Reg, *, width: int = _WARP) -> None:
        """The smallest `value` of each group of `width` neighbouring lanes."""
        _reduce("min", value, width)


def _reduce(op: str, value: Reg, width: int) -> None:
    what = {"add": "sum"}.get(op, op)
    if not isinstance(value, Reg):
        raise current().error(TypeError, f"ptx.warp.reduce_{what} takes a register, got {value!r}")
    trace, dtype = value.trace, value.dtype
    if width not in (2, 4, 8, 16, 32):
        raise trace.error(
            ValueError,
            f"ptx.warp.reduce_{what}: width must be a power of two from 2 to 32, got {width}",
        )
    if dtype.bits not in (32, 64) or dtype.name.endswith("x2"):
        raise trace.error(
            TypeError,
            f"ptx.warp.reduce_{what} takes a register of 32 or 64 bits, got {dtype}; "
            "convert it with ptx.inst.cvt first",
        )
    distance = width // 2
    while distance:
        other = value.fresh(dtype)
        if dtype.bits == 32:
            trace.emit("shfl.sync.bfly.b32", (other, value, distance, 31, -1))
        else:  # shfl moves 32 bits at a time
            halves = [value.fresh(b32), value.fresh(b32)]
            trace.emit("mov.b64", (halves, value))
            for half in halves:
                trace.emit("shfl.sync.bfly.b32", (half, half, distance, 31, -1))
            trace.emit("mov.b64", (other, halves))
        binary(op, value, other, out=value)
        distance //= 2
