"""The parameters of an entry of a PTX text from elsewhere, and what a run in the emulator gives them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jax_ptx.text_kernel import chosen_entry, read_entries

SCALARS = {
    **{f"{kind}{bits}": f"uint{bits}" for kind in "ub" for bits in (8, 16, 32, 64)},
    **{f"s{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"f{bits}": f"float{bits}" for bits in (16, 32, 64)},
}


class Argument(NamedTuple):
    """What a parameter gets: a tensor with its role, "i", "o" or "b" for both, or another value's bytes."""

    name: str
    array: np.ndarray | None
    role: str = ""
    scalar: bytes = b""


def scalar_bytes(kind: str, value: Any) -> bytes:
    """A number as a parameter of a declared type, such as "u32", holds it.

    Raises:
        ValueError, OverflowError, TypeError: it does not fit.
    """
    dtype = np.dtype(SCALARS[kind])
    if dtype.kind == "f":
        return np.array(float(value), dtype).tobytes()
    number = int(value)
    if number < 0 and dtype.kind == "u":  # two's complement, also for .b and .u
        number += 2 ** (8 * dtype.itemsize)
    return np.array(number, dtype).tobytes()


def bind(
    text: str, entry: str | None, values: Sequence[Any], in_place: Collection[str]
) -> tuple[str, list[Argument]]:
    """The entry that is meant, and its arguments.

    Args:
        text: the PTX.
        entry: its name; None: the only one.
        values: one for each parameter: an array is an input and a `jax.ShapeDtypeStruct` an output;
            a number, of Python or NumPy, a scalar; bytes a struct.
        in_place: names of the parameters whose arrays are outputs too.

    Raises:
        TypeError, ValueError: they do not fit the parameters.
    """
    entries = read_entries(text)
    name = chosen_entry(entries, entry)
    declared = entries[name]
    listed = ", ".join(f"{each} (.{kind})" for each, kind in declared) or "none"
    if len(values) != len(declared):
        raise TypeError(
            f"{name}: its {len(declared)} parameters are {listed}; {len(values)} values came"
        )
    if unknown := [each for each in in_place if each not in dict(declared)]:
        raise ValueError(f"{name}: in_place names {unknown[0]!r}; its parameters are {listed}")
    arguments = [
        _argument(f"{name}: the parameter {each}", each, kind, value, each in in_place)
        for (each, kind), value in zip(declared, values, strict=True)
    ]
    return name, arguments


def _argument(what: str, name: str, kind: str, value: Any, in_place: bool) -> Argument:
    if isinstance(value, bytes):
        return Argument(name, None, scalar=value)
    if isinstance(value, jax.ShapeDtypeStruct):
        return Argument(name, np.empty(value.shape, value.dtype), "b" if in_place else "o")
    if isinstance(value, np.ndarray | jax.Array) and (value.ndim or kind not in SCALARS):
        array = np.array(value, order="C") if in_place else np.ascontiguousarray(np.asarray(value))
        return Argument(name, array, "b" if in_place else "i")
    if kind not in SCALARS:
        raise TypeError(f"{what} is a struct, .{kind}: pass its bytes, got {type(value).__name__}")
    try:
        return Argument(name, None, scalar=scalar_bytes(kind, value))
    except (ValueError, OverflowError, TypeError) as error:
        raise TypeError(
            f"{what} is .{kind}: pass a number, an array, or a jax.ShapeDtypeStruct for an output; got "
            f"{value!r} ({error})"
        ) from error
