"""GPU primitives for JAX whose kernels are PTX text written in Python.

`rms_norm` is an operation for models; `kernel` and the names beside it are the language that it is
written in; `ptx_kernel` takes a PTX text from elsewhere. On a machine without an NVIDIA GPU the same text
runs in an emulator.
"""

from importlib.metadata import version as _version

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

__version__ = _version("jax_ptx")
