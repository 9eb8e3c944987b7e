"""GPU primitives for JAX whose kernels are PTX text written in Python.

`rms_norm` is an operation for models; `kernel` and the names beside it are the language that it is
written in; `ptx_kernel` takes a PTX text from elsewhere. On a machine without an NVIDIA GPU the same text
runs in an emulator.
"""

import importlib as _importlib
import sys as _sys
from importlib.metadata import version as _version
from typing import TYPE_CHECKING
from typing import Any as _Any

try:
    # JAX first: with an extension built by g++ 13.3 a process died in `import jax` on one machine when the
    # extension was there before it, and lives in this order. Why was not found.
    _importlib.import_module("jax")
    _importlib.import_module("jax_ptx._ext")
except ModuleNotFoundError as error:
    if error.name != "jax_ptx._ext":
        raise
    raise ImportError(
        f"the extension of jax_ptx for Python {_sys.version_info.major}.{_sys.version_info.minor} is not in "
        f"{__path__[0]}; if that is a source folder, start Python in another one to import the installed "
        "package, or build the extension there: pip install --editable ."
    ) from None

from jax_ptx import types as types
from jax_ptx.dsl import ptx as ptx
from jax_ptx.dsl import reg as reg
from jax_ptx.dsl import smem as smem
from jax_ptx.dsl.tile import RunTime as RunTime
from jax_ptx.dsl.tile import Tensor as Tensor
from jax_ptx.dsl.tile import Tile as Tile
from jax_ptx.emulate import emulate as emulate
from jax_ptx.findings import EmulationError as EmulationError
from jax_ptx.findings import EmulationReport as EmulationReport
from jax_ptx.kernel import Kernel as Kernel
from jax_ptx.kernel import kernel as kernel
from jax_ptx.launch import TARGET as TARGET
from jax_ptx.launch import Launch as Launch
from jax_ptx.launch import export_checks as export_checks
from jax_ptx.launch import ptx_call as ptx_call
from jax_ptx.ops.rms_norm import add_rms_norm as add_rms_norm
from jax_ptx.ops.rms_norm import rms_norm as rms_norm
from jax_ptx.text_kernel import ptx_kernel as ptx_kernel

if TYPE_CHECKING:
    from jax_ptx import equinox as equinox
    from jax_ptx import flax as flax
    from jax_ptx import torch as torch

__version__ = _version("jax_ptx")


_FRAMEWORKS = ("equinox", "flax", "torch")


def __getattr__(name: str) -> _Any:
    """The modules for other frameworks, which are imported when they are first named."""
    if name not in _FRAMEWORKS:
        raise AttributeError(f"module 'jax_ptx' has no attribute {name!r}")
    return _importlib.import_module(f"jax_ptx.{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_FRAMEWORKS})
