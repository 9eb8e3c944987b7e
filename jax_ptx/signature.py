"""The tensors that a kernel takes and gives: binding dimensions, checking arguments, calling."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np

from jax_ptx.dsl.tile import RunTime, Tile
from jax_ptx.launch import Launch, ptx_call
from jax_ptx.types import DType

_BITS_OF = {"bool": None}  # one byte, but only 0 and 1 are valid: no kernel may write it


@dataclass(frozen=True)
class Bound:
    """What the arguments of a call say.

    Attributes:
        variables: the value of each string variable.
        run_time: the size of each run-time dimension; it may be symbolic.
    """

    variables: dict[str, int]
    run_time: dict[str, Any]


# What a call's inputs and keywords say: the launch, and the dimensions.
Prepare = Callable[[Sequence[Any], dict[str, Any]], tuple[Launch, Bound]]


@dataclass(frozen=True)
class Signature:
    """Names and tiles of a kernel's tensors, inputs before outputs.

    `aliases` are pairs (input, output) of positions that share their memory; `grid_dim` is the run-time
    dimension that the grid follows, which comes first of them.
    """

    kernel: str
    parameters: tuple[str, ...]
    in_specs: tuple[Tile, ...]
    out_specs: tuple[Tile, ...]
    aliases: tuple[tuple[int, int], ...] = ()
    grid_dim: str | None = None

    @property
    def specs(self) -> tuple[Tile, ...]:
        """All tiles, in the order of the parameters."""
        return self.in_specs + self.out_specs

    @cached_property
    def variables(self) -> tuple[str, ...]:
        """The string variables, in order of first appearance."""
        return tuple(dict.fromkeys(v for spec in self.specs for v in spec.variables))

    @cached_property
    def run_time_dims(self) -> tuple[str, ...]:
        """The run-time dimensions, in order of first appearance after `grid_dim`."""
        names = dict.fromkeys(s.run_time_dim for s in self.specs if s.run_time_dim)
        first = (self.grid_dim,) if self.grid_dim in names else ()
        return (*first, *(name for name in names if name != self.grid_dim))

    @cached_property
    def dims(self) -> tuple[int, ...]:
        """For each tensor the number of its run-time dimension, counted from 1, or 0."""
        numbers = {name: index + 1 for index, name in enumerate(self.run_time_dims)}
        return tuple(numbers.get(spec.run_time_dim or "", 0) for spec in self.specs)

    def check_aliases(self) -> None:
        """Refuses pairs of tensors that cannot share their memory.

        Raises:
            ValueError: there is no such tensor, one is named twice, or the tiles differ.
        """
        inputs, outputs = [i for i, _ in self.aliases], [o for _, o in self.aliases]
        for i, o in self.aliases:
            exists = i in range(len(self.in_specs)) and o in range(len(self.out_specs))
            if not exists or inputs.count(i) > 1 or outputs.count(o) > 1:
                raise ValueError(
                    f"{self.kernel}: input_output_aliases pairs input {i} with output {o}; it takes "
                    f"each of {len(self.in_specs)} inputs and {len(self.out_specs)} outputs once"
                )
            if self.in_specs[i] != self.out_specs[o]:
                raise ValueError(
                    f"{self.kernel}: input {i} is {self.in_specs[i]} and cannot share its memory with "
                    f"output {o}, {self.out_specs[o]}"
                )

    def shapes(self, variables: Mapping[str, int]) -> tuple[tuple[int | RunTime, ...], ...]:
        """The shape of each tensor, with the variables' values."""
        return tuple(
            tuple(variables[d] if isinstance(d, str) else d for d in spec.shape)
            for spec in self.specs
        )

    def unit_bytes(self, variables: Mapping[str, int]) -> tuple[int, ...]:
        """The bytes of each tensor, per element of its run-time dimension if it has one."""
        return tuple(
            math.prod(d for d in shape if isinstance(d, int)) * spec.dtype.bits // 8
            for shape, spec in zip(self.shapes(variables), self.specs, strict=True)
        )

    def check_variables(self, values: Mapping[str, Any]) -> dict[str, int]:
        """The variables among named values, as Python ints.

        Raises:
            ValueError: one is no int, or less than 0.
        """
        variables = {}
        for name in self.variables:
            if name not in values:
                continue
            value = values[name]
            if isinstance(value, np.integer):
                value = int(value)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ValueError(
                    f"{self.kernel}: {name} must be an int of 0 or more, got {value!r}"
                )
            variables[name] = value
        return variables

    def bind(self, arrays: Sequence[Any], given: Mapping[str, int]) -> Bound:
        """Checks the arguments against the tiles, and reads the dimensions off them.

        Args:
            arrays: the inputs.
            given: variables that the caller passed by name.

        Raises:
            TypeError: a wrong number of arguments, or one that is no array, or of another dtype.
            ValueError: a wrong rank or dimension, or a variable with two values.
            NotImplementedError: a PyTorch tensor that no kernel can be launched on.
        """
        if len(arrays) != len(self.in_specs):
            names = ", ".join(self.parameters[: len(self.in_specs)])
            raise TypeError(
                f"{self.kernel}: expected {_count(len(self.in_specs), 'input')} ({names}), "
                f"got {len(arrays)}; outputs are returned, not passed"
            )
        self._refuse_tensors(arrays)
        bound = Bound(self.check_variables(given), {})
        origin = dict.fromkeys(given, "the keyword argument")
        for name, spec, array in zip(self.parameters, self.in_specs, arrays, strict=False):
            self._check_dtype(name, spec.dtype, array)
            self._bind_shape(name, spec, tuple(array.shape), bound, origin)
        missing = [v for v in self.variables if v not in bound.variables]
        if missing:
            raise ValueError(
                f"{self.kernel}: no input has the dimension {missing[0]!r}; "
                f"pass {missing[0]}= by name"
            )
        free = [d for d in self.run_time_dims if d not in bound.run_time]
        if free:
            raise ValueError(f"{self.kernel}: no input has the run-time dimension {free[0]!r}")
        return bound

    def _refuse_tensors(self, arrays: Sequence[Any]) -> None:
        if any(map(is_torch, arrays)):
            from jax_ptx.torch.refusals import refuse  # only where PyTorch is in use

            pairs = [
                pair for pair in zip(self.parameters, arrays, strict=False) if is_torch(pair[1])
            ]
            refuse(self.kernel, [f"argument {name}" for name, _ in pairs], [t for _, t in pairs])

    def _refuse_a_mixture(self, arrays: Sequence[Any]) -> None:
        for name, array in zip(self.parameters, arrays, strict=False):
            if not is_torch(array):
                make = "torch.from_numpy" if isinstance(array, np.ndarray) else "torch.from_dlpack"
                raise TypeError(
                    f"{self.kernel}: argument {name} must be a PyTorch tensor, as others of this call are, "
                    f"got {type(array).__name__}; {make} makes one"
                )

    def _check_dtype(self, name: str, dtype: DType, array: Any) -> None:
        if not (isinstance(array, jax.Array | np.ndarray | np.generic) or is_torch(array)):
            raise TypeError(
                f"{self.kernel}: argument {name} must be a JAX array, a NumPy array or a PyTorch "
                f"tensor, got {type(array).__name__}"
            )
        came = dtype_name(array)
        if came == dtype.numpy_name or (dtype.kind == "bits" and _bits(came) == dtype.bits):
            return
        raise TypeError(
            f"{self.kernel}: argument {name} must have dtype {dtype.numpy_name} ({dtype}), "
            f"got {came}; cast it before the call"
        )

    def _bind_shape(
        self, name: str, spec: Tile, shape: tuple[Any, ...], bound: Bound, origin: dict[str, str]
    ) -> None:
        expected = (
            "(" + ", ".join(map(_dim_text, spec.shape)) + ("," * (len(spec.shape) == 1)) + ")"
        )
        came = f"shape {expected}, got {shape}"
        if len(shape) != len(spec.shape):
            raise ValueError(
                f"{self.kernel}: argument {name} must have rank {len(spec.shape)}, {came}"
            )
        for axis, (dim, size) in enumerate(zip(spec.shape, shape, strict=True)):
            if isinstance(dim, RunTime):
                known: dict[str, Any] = bound.run_time
                key = dim.name
            else:
                if not isinstance(size, int):
                    raise ValueError(
                        f"{self.kernel}: dimension {axis} of argument {name} is symbolic ({size}), "
                        "and the kernel's text depends on it; only a leading RunTime dimension may "
                        "be symbolic"
                    )
                if isinstance(dim, int):
                    if size != dim:
                        raise ValueError(
                            f"{self.kernel}: argument {name} must have {dim} in dimension {axis}, "
                            f"{came}"
                        )
                    continue
                known, key = bound.variables, dim
            if known.setdefault(key, size) != size:
                raise ValueError(
                    f"{self.kernel}: the dimension {key!r} is {known[key]} in {origin[key]} and "
                    f"{size} in dimension {axis} of argument {name}, {came}"
                )
            origin.setdefault(key, f"dimension {axis} of argument {name}")

    def results(self, bound: Bound) -> list[tuple[tuple[Any, ...], str]]:
        """Shape and dtype name of each output."""
        shapes = self.shapes(bound.variables)[len(self.in_specs) :]
        return [
            (
                tuple(bound.run_time[d.name] if isinstance(d, RunTime) else d for d in shape),
                spec.dtype.numpy_name or "",
            )
            for shape, spec in zip(shapes, self.out_specs, strict=True)
        ]

    def run(self, prepare: Prepare, arrays: Sequence[Any], values: dict[str, Any]) -> Any:
        """A call of the kernel: what `prepare` says of it is launched.

        Returns:
            One result, or a tuple of them.
        """
        if any(map(is_torch, arrays)):
            # Here, since its compiler would stumble over all that follows, and in words of its own.
            from jax_ptx.torch.refusals import call_unseen  # only where PyTorch is in use

            return call_unseen(self._run, prepare, arrays, values)
        return self._run(prepare, arrays, values)

    def _run(self, prepare: Prepare, arrays: Sequence[Any], values: dict[str, Any]) -> Any:
        launch, bound = prepare(arrays, values)
        results = self.results(bound)
        if any(map(is_torch, arrays)):
            self._refuse_a_mixture(arrays)
            from jax_ptx.torch.launch import call_checked  # only where PyTorch is in use

            outputs = call_checked(launch, arrays, results, self.aliases)
        else:
            for name, array in zip(self.parameters, arrays, strict=False):
                if jax.dtypes.canonicalize_dtype(array.dtype) != array.dtype:
                    raise TypeError(
                        f"{self.kernel}: argument {name} has dtype {dtype_name(array)}, which JAX "
                        "would narrow; set jax.config.update('jax_enable_x64', True)"
                    )
            types = [jax.ShapeDtypeStruct(shape, jax.numpy.dtype(name)) for shape, name in results]
            outputs = ptx_call(
                launch,
                *map(jax.numpy.asarray, arrays),
                result_types=types,
                input_output_aliases=self.aliases,
            )
        return outputs[0] if len(results) == 1 else tuple(outputs)


def is_torch(value: Any) -> bool:
    """Whether it is a PyTorch tensor; PyTorch is not imported to find out."""
    return any(c.__name__ == "Tensor" and c.__module__ == "torch" for c in type(value).__mro__)


def dtype_name(array: Any) -> str:
    """The NumPy name of an array's or a PyTorch tensor's dtype."""
    return getattr(array.dtype, "name", None) or str(array.dtype).removeprefix("torch.")


def _bits(name: str) -> int | None:
    if name in _BITS_OF:
        return _BITS_OF[name]
    try:
        return jax.numpy.dtype(name).itemsize * 8
    except TypeError:
        return None


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"


def _dim_text(dim: int | str | RunTime) -> str:
    return dim.name if isinstance(dim, RunTime) else str(dim)
