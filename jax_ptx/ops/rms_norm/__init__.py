"""RMS norm, alone and after a residual addition."""

from jax_ptx.ops.rms_norm.api import add_rms_norm as add_rms_norm
from jax_ptx.ops.rms_norm.api import rms_norm as rms_norm
from jax_ptx.ops.rms_norm.primitive import rms_norm_p as rms_norm_p
