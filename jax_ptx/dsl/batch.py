"""One launch for a whole batch: the batch is folded into the grid's x, outside the kernel's own x.

CTA `b * gx + x` does what CTA x of the kernel does for element b of the batch. The kernel is traced
again: its pointers advance by the element, and `%ctaid.x`, `%nctaid.x` (and the clusters') are
replaced, so that the body sees the grid it was written for. It is x because the grid goes to
2**31 - 1 there, and only to 65,535 in y and z.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from jax_ptx.dsl.operands import REGISTER, Address
from jax_ptx.dsl.reg import Reg, Special
from jax_ptx.dsl.tile import Tensor
from jax_ptx.dsl.trace import Trace
from jax_ptx.types import u32


class Axis(NamedTuple):
    """Neighbouring axes of a batch that the same tensors have: tensor i does if `mask[i]`."""

    size: int
    mask: tuple[bool, ...]


def merge_axes(sizes: Sequence[int], mask: Sequence[Sequence[bool]]) -> tuple[Axis, ...]:
    """The axes of a batch, outermost first, those of size 1 dropped and like neighbours merged."""
    axes: list[Axis] = []
    for position, size in enumerate(sizes):
        has = tuple(bool(tensor[position]) for tensor in mask)
        if axes and axes[-1].mask == has:
            axes[-1] = Axis(axes[-1].size * size, has)
        elif size != 1:
            axes.append(Axis(size, has))
    return tuple(axes)


class Batch:
    """How a trace serves a batch. `start` emits the prologue; the trace asks for the rest."""

    def __init__(
        self, axes: Sequence[Axis], unit_bytes: Sequence[int], grid_x: int, cluster_x: int
    ) -> None:
        self._axes = tuple(axes)
        self._unit_bytes = tuple(unit_bytes)
        self._grid_x = grid_x
        self._cluster_x = cluster_x
        self._index: list[Reg] = []  # position along each axis

    def start(self, trace: Trace) -> None:
        """Splits `%ctaid.x` into the element of the batch and the kernel's own x."""
        cta, element, x = _scratch(trace), _scratch(trace), _scratch(trace)
        trace.emit("mov.u32", (cta, Special(trace, "%ctaid.x", u32)))
        trace.emit("div.u32", (element, cta, self._grid_x))
        trace.emit("rem.u32", (x, cta, self._grid_x))
        self._x = _ReadOnly(trace, x.text)
        rest = element
        for axis in reversed(self._axes[1:]):
            position, quotient = _scratch(trace), _scratch(trace)
            trace.emit("rem.u32", (position, rest, axis.size))
            trace.emit("div.u32", (quotient, rest, axis.size))
            self._index.insert(0, position)
            rest = quotient
        if self._axes:
            self._index.insert(0, rest)
        trace.batch = self

    def special(self, trace: Trace, name: str) -> Reg | None:
        """What stands for a special register, or None if it is the register itself.

        Emitted where it is asked for: an earlier place may be one that not every thread comes by.
        """
        if name == "ctaid.x":
            return self._x
        constants = {"nctaid.x": self._grid_x, "nclusterid.x": self._grid_x // self._cluster_x}
        if name in constants:
            value = _scratch(trace)
            trace.emit("mov.u32", (value, constants[name]))
        elif name == "clusterid.x":
            value = _scratch(trace)
            trace.emit("div.u32", (value, self._x, self._cluster_x))
        else:
            return None
        return _ReadOnly(trace, value.text)

    def after(self, trace: Trace, name: str, operands: Sequence[object], pred: object) -> None:
        """Advances a pointer that was just loaded to its tensor's element of the batch."""
        named = [symbol for symbol in map(_symbol, operands) if symbol in trace.tensors]
        if not named:
            return
        tensor, target = list(trace.tensors).index(named[0]), operands[0]
        loads = name.startswith("ld.param.")
        if not (loads and isinstance(target, Reg) and target.dtype.bits == 64):
            raise trace.error(
                NotImplementedError,
                f"one launch for a batch: {name} takes {named[0]}, whose pointer is not loaded into "
                "one 64-bit register; ptx.global_ptrs loads it",
            )
        stride = self._unit_bytes[tensor]
        for axis, index in reversed(list(zip(self._axes, self._index, strict=True))):
            if axis.mask[tensor]:
                trace.emit("add.s64", (target, target, index * stride), pred)
                stride *= axis.size


class _ReadOnly(Special):
    """A register that stands for a special one."""

    __slots__ = ()

    def __init__(self, trace: Trace, text: str) -> None:
        super().__init__(trace, text, u32)
        self.operand = REGISTER[u32]


def _symbol(operand: object) -> str | None:
    """The symbol that an operand is, or is the address of."""
    if isinstance(operand, Address):
        return operand.symbol
    return str(operand) if isinstance(operand, Tensor | str) else None


def _scratch(trace: Trace) -> Reg:
    return Reg(trace, trace.register_name(u32), u32)


def batch_bytes(
    unit_bytes: Sequence[int], sizes: Sequence[int], mask: Sequence[Sequence[bool]]
) -> tuple[int, ...]:
    """The size of each tensor with its axes of the batch."""
    return tuple(
        unit * math.prod(size for size, has in zip(sizes, axes, strict=True) if has)
        for unit, axes in zip(unit_bytes, mask, strict=True)
    )
