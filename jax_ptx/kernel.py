"""`@kernel`: a Python function that emits PTX, as something to call."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, overload

from jax_ptx.declaration import Declared, alias_pairs, tiles
from jax_ptx.dsl.batch import Batch as BatchTrace
from jax_ptx.dsl.batch import batch_bytes, merge_axes
from jax_ptx.dsl.module import Module
from jax_ptx.dsl.target import Target, Version, least_version, parse_target, version_text
from jax_ptx.dsl.tile import Tensor, Tile
from jax_ptx.dsl.trace import Trace, name_fault, tracing
from jax_ptx.geometry import MAX_GRID, Dim3, Grid, Size, grid_size
from jax_ptx.launch import Launch
from jax_ptx.memo import Memo, freeze
from jax_ptx.report import Report
from jax_ptx.signature import Bound, Signature
from jax_ptx.slices import slice_bytes


class Batch(NamedTuple):
    """A batch that one launch covers.

    Attributes:
        sizes: its axes, outermost first.
        mask: for each tensor, inputs then outputs, which of the axes it has, in front of its own.
    """

    sizes: tuple[int, ...]
    mask: tuple[tuple[bool, ...], ...]


class Kernel(Declared):
    """A kernel written in Python; `@kernel` makes one.

    Calling it with JAX arrays (under jit, vmap and the rest too) or with PyTorch tensors launches
    it, and returns one array or a tuple of several. It is copied and pickled as a function is, by its name.

    Under vmap it is traced again, and one launch does the whole batch. A kernel with a `RunTime`
    dimension or with lines of `ptx.raw`, which nobody can trace for a batch, is launched once for each
    element instead: the same values, at the cost of so many launches. Elements that the kernel's
    widest access would find misaligned are padded first, which copies them; a size that is a multiple
    of that access is never copied.
    """

    __name__: str
    __signature__: inspect.Signature

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        in_specs: Sequence[Tile] | None = None,
        out_specs: Sequence[Tile] | None = None,
        grid: Grid | None = None,
        block: Size = (1, 1, 1),
        cluster: Size = (1, 1, 1),
        smem: int = 0,
        arch: str = "auto",
        version: Version | None = None,
        rows_per_cta: int = 0,
        grid_dim: str | None = None,
        input_output_aliases: Mapping[int, int] | None = None,
    ) -> None:
        name = getattr(fn, "__name__", "")
        tensors, constants = _read_parameters(name, fn)
        self._fn = fn
        self._name = name
        self._has_specs = in_specs is not None or out_specs is not None
        signature = Signature(
            name,
            tensors,
            () if in_specs is None else tiles(name, "in_specs", in_specs),
            () if out_specs is None else tiles(name, "out_specs", out_specs),
            alias_pairs(name, input_output_aliases),
            grid_dim,
        )
        grid = (1, 1, 1) if grid is None else grid
        super().__init__(signature, grid=grid, block=block, cluster=cluster, smem=smem)
        self._constants = constants
        self._arch = arch
        self._target = None if arch == "auto" else parse_target(arch)
        self._version = _checked_version(name, version, self._target)
        self._rows_per_cta = rows_per_cta
        self._check_declaration()
        self._launches: Memo[Launch] = Memo(1024)
        functools.update_wrapper(self, fn)
        self.__signature__ = _call_signature(self._signature, constants)

    @property
    def arch(self) -> str:
        """The target asked for, or "auto"."""
        return self._arch

    def __repr__(self) -> str:
        return f"<Kernel {self._name}({', '.join(self._signature.parameters)})>"

    def ptx(self, /, **values: Any) -> str:
        """The PTX text.

        Args:
            **values: the compile-time constants without a default, and the variables of the tiles.
        """
        variables, constants = self._split(values)
        return self._trace(variables, constants, None).text

    def launch(self, batch: Batch | None = None, /, **values: Any) -> Launch:
        """The launch record: the same object for the same arguments.

        Args:
            batch: a batch that the launch covers at once, its elements padded to a multiple of the
                kernel's widest access to global memory; None: there is none.
            **values: as for `ptx`.

        Raises:
            ValueError: a value is missing, or the launch is past a limit.
            NotImplementedError: the kernel cannot cover a batch in one launch.
        """
        if not self._has_specs:
            self._refuse_without_tiles("a launch")
        variables, constants = self._split(values)
        key = (batch, freeze(self._name, variables), freeze(self._name, constants))
        return self._launches.get(key, lambda: self._build(variables, constants, batch))

    def __call__(self, /, *arrays: Any, **values: Any) -> Any:
        """Launches the kernel.

        Args:
            *arrays: the inputs.
            **values: compile-time constants, and variables that no input has as a dimension.

        Returns:
            The output, or a tuple of several.

        Raises:
            TypeError: a wrong number of arguments, or one that is no array, or of another dtype.
            ValueError: a wrong rank or dimension, or a variable with two values.
        """
        return self._signature.run(self._prepare, arrays, values)

    def _prepare(self, arrays: Sequence[Any], values: dict[str, Any]) -> tuple[Launch, Bound]:
        """The launch of a call, and what its arguments say."""
        if not self._has_specs:
            self._refuse_without_tiles("a call")
        signature = self._signature
        given = {name: values[name] for name in signature.variables if name in values}
        bound = signature.bind(arrays, given)
        return self.launch(**{**values, **bound.variables}), bound

    def report(self, /, **values: Any) -> Report:
        """What ptxas makes of the kernel, by target; the arguments are those of `ptx`.

        Raises:
            jax_ptx.toolkit.ToolkitError: ptxas is not installed.
        """
        variables, constants = self._split(values)
        module = self._trace(variables, constants, None)
        return self._report(module.text, module.shared.dynamic_bytes)

    def sass(self, target: str, /, **values: Any) -> str:
        """The machine code for a target such as "sm_90"; the other arguments are those of `ptx`.

        Raises:
            jax_ptx.toolkit.ToolkitError: ptxas or nvdisasm is not installed, or refused the text.
        """
        return self._sass(self.ptx(**values), target)

    # ---- from values to a launch ----

    def _refuse_without_tiles(self, what: str) -> NoReturn:
        raise TypeError(
            f"{self._name}: {what} needs the tensors' tiles: @kernel(in_specs=(Tile(…),), "
            "out_specs=(Tile(…),))"
        )

    def _split(self, values: dict[str, Any]) -> tuple[dict[str, int], dict[str, Any]]:
        """The variables and the constants; a constant with a variable's name has its value."""
        names = self._signature.variables
        unknown = [name for name in values if name not in names and name not in self._constants]
        if unknown:
            known = ", ".join(dict.fromkeys([*names, *self._constants])) or "nothing"
            raise TypeError(f"{self._name}: unexpected keyword {unknown[0]!r}; it takes {known}")
        variables = self._signature.check_variables(values)
        missing = [name for name in names if name not in values]
        if missing:
            raise ValueError(
                f"{self._name}: the variable {missing[0]!r} of its tiles needs a value"
            )
        constants = {}
        for name, default in self._constants.items():
            value = values.get(name, default)
            if value is inspect.Parameter.empty:
                raise TypeError(f"{self._name}: the constant {name!r} has no default; pass {name}=")
            constants[name] = value
        return variables, constants

    def _trace(
        self, variables: dict[str, int], constants: dict[str, Any], batch: BatchTrace | None
    ) -> Module:
        signature = self._signature
        trace = Trace(
            self._name,
            target=self._target,
            version=self._version,
            run_time_dims=signature.run_time_dims,
            dynamic_bytes=self._smem,
        )
        shapes = signature.shapes(variables) if self._has_specs else ()
        for index, name in enumerate(signature.parameters):
            spec = signature.specs[index] if self._has_specs else None
            shape = shapes[index] if spec else None
            trace.add_tensor(Tensor(trace, name, shape, spec.dtype if spec else None))
        if math.prod(self._cluster) > 1:
            trace.require((7, 8), Target(90), f"{self._name}: cluster={self._cluster}")
        with tracing(trace):
            if batch is not None:
                batch.start(trace)
            try:
                self._fn(*trace.tensors.values(), **constants)
            except Exception as e:
                if not getattr(e, "jax_ptx_located", False):
                    e.add_note(f"while tracing the kernel {self._name}")
                raise
            return trace.finish(self._block)

    def _build(
        self, variables: dict[str, int], constants: dict[str, Any], batch: Batch | None
    ) -> Launch:
        signature = self._signature
        # A constant that the caller gave may name what the grid depends on, beside the variables.
        grid = grid_size(self._name, self._grid, {**constants, **variables}, self._cluster)
        unit_bytes = signature.unit_bytes(variables)
        plan = None
        if batch is not None:
            single = self.launch(**{**constants, **variables})
            unit_bytes = slice_bytes(single, batch.mask)
            plan = self._plan(batch, grid, unit_bytes)
            grid = (grid[0] * math.prod(batch.sizes), *grid[1:])
            unit_bytes = batch_bytes(unit_bytes, batch.sizes, batch.mask)
        module = self._trace(variables, constants, plan)
        if batch is not None and module.raw:
            raise NotImplementedError(
                f"{self._name}: one launch for a batch, with lines of ptx.raw"
            )
        values = {**constants, **variables}
        one_launch = batch is None and not module.raw and not signature.run_time_dims
        return Launch(
            ptx=module.text,
            entry=self._name,
            grid=grid,
            block=self._block,
            cluster=self._cluster,
            smem_bytes=module.shared.dynamic_bytes,
            unit_bytes=unit_bytes,
            dims=signature.dims,
            rows_per_cta=self._rows_per_cta,
            retrace=functools.partial(self._retrace, values) if one_launch else None,
        )

    def _plan(self, batch: Batch, grid: Dim3, unit_bytes: tuple[int, ...]) -> BatchTrace:
        if self._signature.run_time_dims:
            raise NotImplementedError(
                f"{self._name}: one launch for a batch, with run-time dimensions"
            )
        if grid[0] * math.prod(batch.sizes) > MAX_GRID[0]:
            raise NotImplementedError(
                f"{self._name}: a batch of {math.prod(batch.sizes)} times {grid[0]} CTAs is past "
                f"the {MAX_GRID[0]} of a grid's x"
            )
        axes = merge_axes(batch.sizes, batch.mask)
        return BatchTrace(axes, unit_bytes, max(grid[0], 1), self._cluster[0])

    def _retrace(
        self, values: dict[str, Any], sizes: tuple[int, ...], mask: tuple[tuple[bool, ...], ...]
    ) -> Launch:
        return self.launch(Batch(sizes, mask), **values)

    def _check_declaration(self) -> None:
        name, signature = self._name, self._signature
        if self._has_specs and len(signature.specs) != len(signature.parameters):
            raise TypeError(
                f"{name}: {len(signature.in_specs)} in_specs and {len(signature.out_specs)} "
                f"out_specs, and the function has {len(signature.parameters)} tensor parameters "
                f"({', '.join(signature.parameters)}); inputs come first, then outputs"
            )
        for dim in signature.run_time_dims:
            if dim in signature.parameters or dim in signature.variables:
                raise ValueError(f"{name}: RunTime({dim!r}) has the name of a tensor or a variable")
        signature.check_aliases()
        if self._rows_per_cta and not signature.run_time_dims:
            raise ValueError(f"{name}: rows_per_cta= needs a tile with a RunTime dimension")
        if signature.grid_dim not in (None, *signature.run_time_dims):
            known = ", ".join(signature.run_time_dims) or "none"
            raise ValueError(
                f"{name}: grid_dim must be a RunTime dimension of a tile ({known}), got "
                f"{signature.grid_dim!r}"
            )


@overload
def kernel(fn: Callable[..., Any], /) -> Kernel: ...
@overload
def kernel(
    *,
    in_specs: Sequence[Tile] | None = None,
    out_specs: Sequence[Tile] | None = None,
    grid: Grid | None = None,
    block: Size = (1, 1, 1),
    cluster: Size = (1, 1, 1),
    smem: int = 0,
    arch: str = "auto",
    version: Version | None = None,
    rows_per_cta: int = 0,
    grid_dim: str | None = None,
    input_output_aliases: Mapping[int, int] | None = None,
) -> Callable[[Callable[..., Any]], Kernel]: ...
def kernel(fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Makes a kernel of a function: `@kernel`, or `@kernel(in_specs=…, out_specs=…, …)`.

    The function's positional parameters are its tensors, inputs then outputs; keyword-only ones
    are compile-time constants. Its name is the entry's. The body runs once for each
    specialisation, and emits the instructions.

    Args:
        in_specs: the tiles of the inputs.
        out_specs: the tiles of the outputs.
        grid: CTAs along x, y, z, or a callable that gets the tiles' string variables as keywords
            and returns an int or a tuple; what is left out is 1.
        block: threads of a CTA along x, y, z.
        cluster: CTAs of a cluster along x, y, z.
        smem: dynamic shared memory in bytes, for `smem.base()`.
        arch: a target such as "sm_90a"; "auto": the least that the kernel needs, from sm_80 up.
        version: the PTX version as (major, minor); None: the least that the kernel needs.
        rows_per_cta: when positive, the grid's x is ceil(rows / rows_per_cta) at the launch, at
            most what `grid` says; rows is the run-time dimension that `grid_dim` names.
        grid_dim: the run-time dimension that the grid follows; None: the first.
        input_output_aliases: which input (by position) an output (by position) shares its memory
            with, for a kernel that writes in place. JAX copies the input first unless it is donated.
    """
    if fn is None:
        return lambda function: Kernel(function, **options)
    return Kernel(fn, **options)


def _read_parameters(name: str, fn: Callable[..., Any]) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The names of the tensors, and the constants with their defaults."""
    if name_fault(name):
        raise ValueError(
            f"@kernel: the name {name!r} {name_fault(name)}; a `def` gives the entry its name"
        )
    if inspect.isgeneratorfunction(fn) or inspect.iscoroutinefunction(fn):
        raise TypeError(f"{name}: the body of a kernel must not yield or await: it would not run")
    tensors, constants = [], {}
    for parameter in inspect.signature(fn).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY:
            constants[parameter.name] = parameter.default
        elif parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise TypeError(f"{name}: a kernel takes no {parameter}; each tensor needs a name")
        elif parameter.default is not parameter.empty:
            raise TypeError(
                f"{name}: the tensor {parameter.name} has a default; constants come after a `*`"
            )
        elif name_fault(parameter.name):
            raise ValueError(
                f"{name}: the tensor's name {parameter.name!r} {name_fault(parameter.name)}"
            )
        else:
            tensors.append(parameter.name)
    return tuple(tensors), constants


def _call_signature(signature: Signature, constants: dict[str, Any]) -> inspect.Signature:
    """What a call takes: the inputs, and the constants by name; outputs are returned."""
    inputs = signature.parameters[: len(signature.in_specs)]
    positional, keyword = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.KEYWORD_ONLY
    return inspect.Signature(
        [inspect.Parameter(name, positional) for name in inputs]
        + [inspect.Parameter(name, keyword, default=value) for name, value in constants.items()]
    )


def _checked_version(name: str, version: Any, target: Target | None) -> Version | None:
    if version is None:
        return None
    if not (
        isinstance(version, tuple) and len(version) == 2 and all(type(v) is int for v in version)
    ):
        raise TypeError(f"{name}: version must be (major, minor) or None, got {version!r}")
    if target is not None and version < least_version(target):
        raise ValueError(
            f"{name}: target {target} needs PTX version {version_text(least_version(target))}, got "
            f"version={version}; version=None takes the least that is needed"
        )
    return version
