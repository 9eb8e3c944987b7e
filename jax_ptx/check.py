"""`python -m jax_ptx check`: runs a PTX file in the emulator, on generated inputs, and reports."""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jax_ptx import types
from jax_ptx.emulate import SCHEDULES, Settings, observe
from jax_ptx.entry import SCALARS, Argument, scalar_bytes
from jax_ptx.findings import Dim3
from jax_ptx.launch import Launch
from jax_ptx.ptx_text import strip_comments
from jax_ptx.text_kernel import read_entries

_DESCRIPTION = """\
Runs a kernel of a PTX file in the emulator, with generated inputs, and prints what it found and counted.
The exit status is 0 when nothing was found, 1 when something was, or when the text does not parse,
2 for a wrong command, and 130 after Ctrl-C.
"""
_EPILOG = """\
Each parameter of the entry takes a --param:
  --param x=f32[256,4096]         an input: standard normal floats, or integers from 0 to 99
  --param x=f32[256,4096]:zeros   an input of zeros; ones and arange (0, 1, 2, …) likewise
  --param y=bf16[256,4096]:out    an output, which starts without a value
  --param z=u32[1024]:inout       updated in place; generated as an input is
  --param x=@x.npy                an input from a file of numpy.save; @x.npy:inout likewise
  --param n=4096                  a scalar, in the type that the entry declares

example:
  python -m jax_ptx check add.ptx --grid 8 --block 128 --param x=f32[1000] --param y=f32[1000]:out \\
      --param n=1000 --race-check
"""
_TENSOR = re.compile(r"(?P<type>[a-z]\w*)\[(?P<shape>[\d,\s]*)\](?P<words>(?::\w+)*)")
_THREADS = re.compile(r"\.(?:reqntid|maxntid)\s+(\d+(?:\s*,\s*\d+)*)")
_CTAS = re.compile(r"\.reqnctapercluster\s+(\d+(?:\s*,\s*\d+)*)")
_FILLS = ("random", "zeros", "ones", "arange")
_ROLES = {"in": "i", "out": "o", "inout": "b"}


class _UsageError(Exception):
    """What the command line says cannot be done."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command, and returns its exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        launch, parameters, settings = _read(options)
    except _UsageError as error:
        parser.error(str(error))
    tensors = [p for p in parameters if p.array is not None]
    written: dict[str, Any] = {p.name: p.array for p in tensors if p.role != "i"}
    try:
        settings.check(launch.entry)
        report = observe(
            launch,
            [p.array for p in tensors if p.array is not None],
            "".join(p.role for p in tensors),
            settings,
            outputs=written,
            scalars={i: p.scalar for i, p in enumerate(parameters) if p.array is None},
        )
    except OSError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except (TypeError, ValueError, NotImplementedError, RuntimeError) as error:
        print(error)  # the text does not parse, or a limit does not hold
        return 1
    print(report)
    for name, array in written.items():
        print(f"  {name}: {_summary(array)}")
    if options.save:
        np.savez(options.save, **written)
    return 1 if report.findings else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m jax_ptx")
    commands = parser.add_subparsers(required=True, metavar="check")
    check = commands.add_parser(
        "check",
        help="run a PTX file in the emulator",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = check.add_argument
    add("file", type=Path, help="a PTX module")
    add("--entry", help="the kernel; needed when the file has several")
    add("--grid", type=_dim3, default=(1, 1, 1), metavar="X,Y,Z", help="CTAs; 1 unless given")
    add("--block", type=_dim3, metavar="X,Y,Z", help="threads; .reqntid or .maxntid unless given")
    add("--cluster", type=_dim3, metavar="X,Y,Z", help="its CTAs; .reqnctapercluster unless given")
    add("--smem", type=int, default=0, metavar="BYTES", help="dynamic shared memory")
    add("--param", action="append", default=[], metavar="NAME=VALUE", help="see below")
    add("--race-check", action="store_true", help="find data races")
    add("--schedule", choices=SCHEDULES, default="round_robin", help="whose turn it is")
    add("--seed", type=int, default=0, help="of the schedule and the inputs")
    add("--step-limit", type=int, metavar="N", help="most instructions of a cluster's warps")
    add("--own-rows", type=int, metavar="N", help="rows that a CTA may store to, by its number")
    add("--save", type=Path, metavar="FILE.npz", help="save the outputs there, by numpy.savez")
    add("--trace", type=Path, metavar="FILE", help="write the executed instructions there")
    return parser


def _dim3(text: str) -> Dim3:
    sizes = [int(size) for size in text.split(",")]
    if not 1 <= len(sizes) <= 3 or min(sizes) < 1:
        raise argparse.ArgumentTypeError(f"expected up to three sizes, X,Y,Z, got {text!r}")
    if max(sizes) >= 2**31:
        raise argparse.ArgumentTypeError(f"a size is below 2**31, got {text!r}")
    x, y, z = [*sizes, 1, 1][:3]
    return x, y, z


def _read(options: argparse.Namespace) -> tuple[Launch, list[Argument], Settings]:
    try:
        text = options.file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise _UsageError(f"cannot read {options.file}: {error}") from error
    entries = read_entries(text)
    found = ", ".join(entries) or "none"
    entry = options.entry or (next(iter(entries)) if len(entries) == 1 else None)
    if entry not in entries:
        asked = (
            f"{options.file} has no entry {entry!r}" if entry else "choose the kernel by --entry"
        )
        raise _UsageError(f"{asked}; the file has {found}")
    values = {}
    for given in options.param:
        name, equals, value = given.partition("=")
        if not equals:
            raise _UsageError(f"--param takes NAME=VALUE, got {given!r}")
        values[name.strip()] = value.strip()
    declared = entries[entry]
    unknown = [name for name in values if name not in dict(declared)]
    missing = [f"{name} (.{kind})" for name, kind in declared if name not in values]
    if unknown or missing:
        listed = ", ".join(f"{name} (.{kind})" for name, kind in declared) or "none"
        what = f"has no parameter {unknown[0]!r}" if unknown else f"needs --param {missing[0]}"
        raise _UsageError(f"the entry {entry} {what}; its parameters: {listed}")
    numbers = np.random.default_rng(options.seed)
    parameters = [_parameter(name, kind, values[name], numbers) for name, kind in declared]
    tensors = [p.array for p in parameters if p.array is not None]
    launch = Launch(
        ptx=text,
        entry=entry,
        grid=options.grid,
        block=options.block or _declared_block(text, entry),
        cluster=options.cluster or _declared(_CTAS, text, entry) or (1, 1, 1),
        smem_bytes=options.smem,
        unit_bytes=tuple(array.nbytes for array in tensors),
        dims=(0,) * len(tensors),
    )
    return launch, parameters, _settings(options)


def _settings(options: argparse.Namespace) -> Settings:
    return Settings(
        race_check=options.race_check,
        schedule=options.schedule,
        seed=options.seed,
        step_limit=options.step_limit,
        trace=options.trace,
        own_rows=options.own_rows,
    )


def _declared(directive: re.Pattern[str], text: str, entry: str) -> Dim3 | None:
    """The sizes that a directive of the entry names."""
    head = re.search(rf"\.entry\s+{re.escape(entry)}\b[^{{]*", strip_comments(text))
    found = directive.search(head[0]) if head else None
    return _dim3(found[1]) if found else None


def _declared_block(text: str, entry: str) -> Dim3:
    threads = _declared(_THREADS, text, entry)
    if threads is None:
        raise _UsageError(f"the entry {entry} has neither .reqntid nor .maxntid: give --block")
    return threads


def _parameter(name: str, kind: str, value: str, numbers: np.random.Generator) -> Argument:
    if value.startswith("@"):
        return _from_file(name, value[1:])
    tensor = _TENSOR.fullmatch(value)
    if tensor is None:
        return Argument(name, None, scalar=_scalar(name, kind, value))
    dtype = _dtype(name, tensor["type"])
    shape = tuple(int(size) for size in tensor["shape"].split(",") if size.strip())
    role, fill = "i", "random"
    for word in tensor["words"].split(":")[1:]:
        if word in _ROLES:
            role = _ROLES[word]
        elif word in _FILLS:
            fill = word
        else:
            known = ", ".join([*_ROLES, *_FILLS])
            raise _UsageError(f"--param {name}: {word!r} is none of {known}")
    try:
        return Argument(name, _filled(shape, dtype, fill, numbers), role)
    except (MemoryError, ValueError, OverflowError) as error:
        raise _UsageError(f"--param {name}: {value} is too large ({error})") from error


def _from_file(name: str, value: str) -> Argument:
    path, _, word = value.partition(":")
    if word not in ("", "in", "inout"):
        raise _UsageError(f"--param {name}: {word!r} is neither in nor inout")
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise _UsageError(f"--param {name}: cannot read {path}: {error}") from error
    if not isinstance(array, np.ndarray):
        raise _UsageError(f"--param {name}: {path} holds several arrays; save one by numpy.save")
    return Argument(name, np.ascontiguousarray(array), _ROLES[word or "in"])


def _dtype(name: str, kind: str) -> np.dtype[Any]:
    named = getattr(types, kind, None)
    if not isinstance(named, types.DType):
        raise _UsageError(f"--param {name}: {kind!r} is no PTX type such as f32, bf16 or u32")
    if named.numpy_name:
        return jax.numpy.dtype(named.numpy_name)
    return np.dtype(f"uint{named.bits}")


def _filled(
    shape: tuple[int, ...], dtype: np.dtype[Any], fill: str, numbers: np.random.Generator
) -> np.ndarray:
    if fill == "arange":
        return np.arange(math.prod(shape)).reshape(shape).astype(dtype)
    if fill != "random":
        return np.full(shape, fill == "ones", dtype)
    is_integer = np.issubdtype(dtype, np.integer)
    values = numbers.integers(0, 100, shape) if is_integer else numbers.standard_normal(shape)
    return np.ascontiguousarray(values.astype(dtype))


def _scalar(name: str, kind: str, value: str) -> bytes:
    if kind not in SCALARS:
        raise _UsageError(
            f"--param {name}: a parameter of type .{kind} cannot be given; jax_ptx.emulate takes its bytes"
        )
    try:
        return scalar_bytes(kind, float(value) if kind[0] == "f" else int(value, 0))
    except (ValueError, OverflowError) as error:
        raise _UsageError(
            f"--param {name}: {value!r} is neither a .{kind} nor a tensor such as "
            f"f32[256,4096]:out ({error})"
        ) from error


def _summary(array: np.ndarray | None) -> str:
    """What can be seen of an output at a glance."""
    if array is None or array.size == 0:
        return "empty"
    values = array.astype(np.float64)
    text = f"{array.dtype}{list(array.shape)}"
    n_bad = int(np.sum(~np.isfinite(values)))
    finite = values[np.isfinite(values)]
    if finite.size:
        text += f" from {finite.min():g} to {finite.max():g}"
    return text + (f", {n_bad} not finite" if n_bad else "")
