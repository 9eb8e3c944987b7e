"""The module: what a finished trace is, and its text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from jax_ptx.dsl.isa.row import TARGETS
from jax_ptx.dsl.target import (
    AUTO_FLOOR,
    LARGEST_SMEM,
    STATIC_SMEM_LIMIT_BYTES,
    Target,
    Version,
    smem_limit_bytes,
    version_text,
)

_REFERENCE = re.compile("\0(\\d+)\\+(\\d+)\0")
_DYNAMIC_ALIGNMENT = 128  # of the author's own region: what a 128-byte swizzle needs


@dataclass(frozen=True)
class SharedVariable:
    """A shared array as it was asked for."""

    name: str
    n_bytes: int
    alignment: int


@dataclass(frozen=True)
class SharedLayout:
    """Where the shared arrays of a kernel are.

    Attributes:
        declarations: lines of the entry's body, when the arrays are declared one by one.
        places: the symbol and the byte offset of each array.
        dynamic_symbol: the one dynamic array, or None.
        dynamic_bytes: its size, given at the launch.
        alignment: its alignment.
        needs: the least target that has as much, or None if every target has.
    """

    declarations: tuple[str, ...] = ()
    places: tuple[tuple[str, int], ...] = ()
    dynamic_symbol: str | None = None
    dynamic_bytes: int = 0
    alignment: int = _DYNAMIC_ALIGNMENT
    needs: Target | None = None


@dataclass(frozen=True)
class Module:
    """A kernel as PTX: `text` is what is launched. `raw`: some lines are the author's own."""

    name: str
    version: Version
    target: Target
    parameters: tuple[str, ...]
    block: tuple[int, int, int]
    registers: tuple[str, ...] = ()
    shared: SharedLayout = field(default_factory=SharedLayout)
    body: tuple[str, ...] = ()
    raw: bool = False

    @cached_property
    def text(self) -> str:
        """The PTX text."""
        shared = self.shared
        lines = [
            f".version {version_text(self.version)}",
            f".target {self.target}",
            ".address_size 64",
            "",
        ]
        if shared.dynamic_symbol is not None:
            alignment, symbol = shared.alignment, shared.dynamic_symbol
            lines += [f".extern .shared .align {alignment} .b8 {symbol}[];", ""]
        parameters = ",\n".join(f"    .param .u64 {name}" for name in self.parameters)
        lines += [f".visible .entry {self.name}(" + (f"\n{parameters}\n)" if parameters else ")")]
        # ptxas must know the CTA's size to fit its registers: else 1024 threads may not launch.
        lines += [f".reqntid {', '.join(map(str, self.block))}", "{"]
        lines += [f"    {line}" for line in (*self.registers, *shared.declarations)]
        lines += ["", *self.body, "}", ""]
        return _REFERENCE.sub(self._place, "\n".join(lines))

    def _place(self, reference: re.Match[str]) -> str:
        symbol, offset = self.shared.places[int(reference[1])]
        offset += int(reference[2])
        return f"{symbol}+{offset}" if offset else symbol


class SharedSize:
    """The shared memory asked for so far: whether there is enough, without laying it all out."""

    def __init__(self, dynamic_bytes: int) -> None:
        self._dynamic_bytes = dynamic_bytes
        self._declared_end, self._dynamic_end = 0, dynamic_bytes

    def add(self, array: SharedVariable, target: Target | None) -> bool:
        """Adds an array; whether the target (None: any) has as much."""
        self._declared_end = _align(self._declared_end, array.alignment) + array.n_bytes
        self._dynamic_end = _align(self._dynamic_end, array.alignment) + array.n_bytes
        total = self._dynamic_end
        if self._declared_end <= STATIC_SMEM_LIMIT_BYTES:
            total = self._declared_end + self._dynamic_bytes
        return total <= smem_limit_bytes(target or LARGEST_SMEM)


def lay_out_shared(
    arrays: Sequence[SharedVariable], dynamic_bytes: int, target: Target | None
) -> SharedLayout:
    """Places the arrays: declared one by one up to 48 KiB, and all in one dynamic array beyond.

    Args:
        arrays: what `smem.alloc` was asked for, in order.
        dynamic_bytes: the size of the region that the author manages; it comes first.
        target: the target, or None if the least that has enough is to be taken.

    Raises:
        ValueError: there is more than the target has.
    """
    alignment = max([_DYNAMIC_ALIGNMENT] + [array.alignment for array in arrays])
    # Declared arrays are placed by ptxas, which may order them; this is the most they take.
    static_bytes = 0
    for array in arrays:
        static_bytes = _align(static_bytes, array.alignment) + array.n_bytes
    if static_bytes <= STATIC_SMEM_LIMIT_BYTES:
        needs = _least_target(static_bytes + dynamic_bytes, arrays, dynamic_bytes, target)
        return SharedLayout(
            declarations=tuple(
                f".shared .align {a.alignment} .b8 {a.name}[{a.n_bytes}];" for a in arrays
            ),
            places=tuple((array.name, 0) for array in arrays),
            dynamic_symbol="smem" if dynamic_bytes else None,
            dynamic_bytes=dynamic_bytes,
            alignment=alignment,
            needs=needs,
        )
    places, end = [], dynamic_bytes
    for array in arrays:
        start = _align(end, array.alignment)
        places.append(("smem", start))
        end = start + array.n_bytes
    needs = _least_target(end, arrays, dynamic_bytes, target)
    return SharedLayout((), tuple(places), "smem", end, alignment, needs)


def _least_target(
    n_bytes: int, arrays: Sequence[SharedVariable], dynamic_bytes: int, target: Target | None
) -> Target | None:
    """The least target that has that much shared memory; None if every one has."""
    if n_bytes <= STATIC_SMEM_LIMIT_BYTES:
        return None
    if target is None:
        candidates = [Target(n, s) for n, s in sorted(TARGETS) if n >= AUTO_FLOOR and not s]
    else:
        candidates = [target]
    for candidate in candidates:
        if n_bytes <= smem_limit_bytes(candidate):
            return candidate
    limit = max(map(smem_limit_bytes, candidates))
    asked = [f"{a.name} {a.n_bytes}" for a in arrays]
    if dynamic_bytes:
        asked.append(f"smem= {dynamic_bytes}")
    raise ValueError(
        f"{n_bytes} bytes of shared memory were asked for ({', '.join(asked)}), and a CTA has "
        f"at most {limit} on {'any target' if target is None else target}"
    )


def _align(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment
