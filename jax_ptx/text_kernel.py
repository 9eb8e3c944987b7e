"""`ptx_kernel`: a kernel from a PTX text that someone else wrote."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from jax_ptx.declaration import Declared, alias_pairs, tiles
from jax_ptx.dsl.tile import Tile
from jax_ptx.geometry import Grid, Size, grid_size
from jax_ptx.launch import Launch
from jax_ptx.memo import Memo, freeze
from jax_ptx.ptx_text import strip_comments
from jax_ptx.report import Report
from jax_ptx.signature import Bound, Signature

_ENTRY = re.compile(r"\.entry\s+([A-Za-z_$%][\w$]*)\s*(?:\(([^)]*)\)?)?")
_PARAMETER = re.compile(
    r"\.param\s+(?:\.align\s+\d+\s+)?\.(?P<type>[a-z]\w*)\s+"
    r"(?:\.ptr\s*(?:\.(?:global|shared|const|local)\s*)?(?:\.align\s+\d+\s+)?)?"
    r"(?P<name>[A-Za-z_$%][\w$]*)\s*(?P<array>\[\s*\w*\s*\])?"
)
_ADDRESS_TYPES = ("u64", "s64", "b64")


class TextKernel(Declared):
    """A kernel that is a PTX text; `ptx_kernel` makes one. It is called like any other kernel.

    Under vmap it is launched once for each element of the batch, since a text cannot be traced again;
    elements that its widest access would find misaligned are padded first, which copies them.
    """

    def __init__(
        self,
        text: str,
        *,
        in_specs: Sequence[Tile],
        out_specs: Sequence[Tile],
        grid: Grid,
        block: Size,
        cluster: Size,
        smem: int,
        entry: str | None,
        input_output_aliases: Mapping[int, int] | None,
    ) -> None:
        entries = read_entries(text)
        name = chosen_entry(entries, entry)
        parameters = entries[name]
        inputs, outputs = tiles(name, "in_specs", in_specs), tiles(name, "out_specs", out_specs)
        names = tuple(n for n, _ in parameters[: len(inputs) + len(outputs)])
        aliases = alias_pairs(name, input_output_aliases)
        signature = Signature(name, names, inputs, outputs, aliases)
        signature.check_aliases()
        super().__init__(signature, grid=grid, block=block, cluster=cluster, smem=smem)
        self._text = text
        self._check_parameters(parameters)
        self._launches: Memo[Launch] = Memo(1024)

    def __repr__(self) -> str:
        return f"<TextKernel {self._signature.kernel}({', '.join(self._signature.parameters)})>"

    def ptx(self, /) -> str:
        """The text, as it was given."""
        return self._text

    def launch(self, /, **variables: int) -> Launch:
        """The launch record: the same object for the same arguments.

        Args:
            **variables: the variables of the tiles.
        """
        name, signature = self._signature.kernel, self._signature
        missing = [v for v in signature.variables if v not in variables]
        if missing:
            raise ValueError(f"{name}: the variable {missing[0]!r} of its tiles needs a value")
        unknown = [v for v in variables if v not in signature.variables]
        if unknown:
            raise TypeError(f"{name}: unexpected keyword {unknown[0]!r}")
        return self._launches.get(freeze(name, variables), lambda: self._build(variables))

    def __call__(self, /, *arrays: Any, **variables: int) -> Any:
        """Launches the kernel; arguments, results and errors are those of a `Kernel`."""
        return self._signature.run(self._prepare, arrays, variables)

    def _prepare(self, arrays: Sequence[Any], values: dict[str, Any]) -> tuple[Launch, Bound]:
        """The launch of a call, and what its arguments say."""
        bound = self._signature.bind(arrays, values)
        return self.launch(**bound.variables), bound

    def report(self, /) -> Report:
        """What ptxas makes of the kernel, by target.

        Raises:
            jax_ptx.toolkit.ToolkitError: ptxas is not installed.
        """
        return self._report(self._text, self._smem)

    def sass(self, target: str, /) -> str:
        """The machine code for a target such as "sm_90".

        Raises:
            jax_ptx.toolkit.ToolkitError: ptxas or nvdisasm is not installed, or refused the text.
        """
        return self._sass(self._text, target)

    def _build(self, variables: dict[str, int]) -> Launch:
        name = self._signature.kernel
        return Launch(
            ptx=self._text,
            entry=name,
            grid=grid_size(name, self._grid, variables, self._cluster),
            block=self._block,
            cluster=self._cluster,
            smem_bytes=self._smem,
            unit_bytes=self._signature.unit_bytes(variables),
            dims=self._signature.dims,
        )

    def _check_parameters(self, parameters: list[tuple[str, str]]) -> None:
        signature = self._signature
        n_expected = len(signature.specs) + len(signature.run_time_dims)
        found = ", ".join(f".{t} {n}" for n, t in parameters) or "none"
        if len(parameters) != n_expected:
            raise ValueError(
                f"{signature.kernel}: in_specs and out_specs have {len(signature.specs)} tensors "
                f"and {len(signature.run_time_dims)} run-time dimensions, and the entry has "
                f"{len(parameters)} parameters: {found}; each takes one .u64"
            )
        for name, declared in parameters:
            if declared not in _ADDRESS_TYPES:
                raise ValueError(
                    f"{signature.kernel}: the parameter {name} is .{declared}, and a tensor's is "
                    f".u64; found: {found}"
                )


def ptx_kernel(
    text: str,
    *,
    in_specs: Sequence[Tile],
    out_specs: Sequence[Tile],
    grid: Grid = (1, 1, 1),
    block: Size = (1, 1, 1),
    cluster: Size = (1, 1, 1),
    smem: int = 0,
    entry: str | None = None,
    input_output_aliases: Mapping[int, int] | None = None,
) -> TextKernel:
    """Makes a kernel of a PTX text.

    Args:
        text: a whole module, with its `.version` and `.target`.
        in_specs: the tiles of the inputs, in the order of the entry's parameters.
        out_specs: the tiles of the outputs, which follow the inputs.
        grid: CTAs along x, y, z, or a callable that gets the tiles' string variables as keywords.
        block: threads of a CTA along x, y, z.
        cluster: CTAs of a cluster along x, y, z.
        smem: dynamic shared memory in bytes.
        entry: the entry to launch; None: the only one.
        input_output_aliases: which input an output shares its memory with, as for `kernel`.

    Raises:
        TypeError: an argument is of another type.
        ValueError: the text has no such entry, its parameters are not one .u64 a tensor, or a size
            is past a limit.
    """
    if not isinstance(text, str):
        raise TypeError(f"ptx_kernel takes the PTX as a str, got {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"ptx_kernel: the text is not Unicode: {error}") from error
    return TextKernel(
        text,
        in_specs=in_specs,
        out_specs=out_specs,
        grid=grid,
        block=block,
        cluster=cluster,
        smem=smem,
        entry=entry,
        input_output_aliases=input_output_aliases,
    )


def read_entries(text: str) -> dict[str, list[tuple[str, str]]]:
    """The entries of a PTX text, each with the name and the declared type of its parameters."""
    entries = {}
    for match in _ENTRY.finditer(strip_comments(text)):
        entries[match[1]] = [
            (p["name"], p["type"] + ("[]" if p["array"] else ""))
            for p in _PARAMETER.finditer(match[2] or "")
        ]
    return entries


def chosen_entry(entries: dict[str, list[tuple[str, str]]], entry: str | None) -> str:
    """The entry of that name; None: the only one."""
    found = ", ".join(entries)
    if not entries:
        raise ValueError("the PTX text has no .entry")
    if entry is None:
        if len(entries) > 1:
            raise ValueError(f"the PTX text has several entries, choose one by entry=: {found}")
        return next(iter(entries))
    if entry not in entries:
        raise ValueError(f"the PTX text has no entry {entry!r}; it has {found}")
    return entry
