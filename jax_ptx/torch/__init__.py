"""Kernels on PyTorch tensors: on their GPU and PyTorch's current stream, or emulated on a CPU.

Only this package imports PyTorch, and nothing imports it unasked.
"""

from jax_ptx.frameworks import missing as _missing

try:
    from jax_ptx.torch.functional import add_rms_norm as add_rms_norm
    from jax_ptx.torch.functional import rms_norm as rms_norm
    from jax_ptx.torch.launch import call as call
    from jax_ptx.torch.module import RMSNorm as RMSNorm
except ModuleNotFoundError as error:
    raise _missing("torch", error) from None
