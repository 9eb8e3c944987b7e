"""Root mean square normalisation over the last axis."""

from jax_ptx.ops.rms_norm.api import rms_norm as rms_norm
from jax_ptx.ops.rms_norm.primitive import rms_norm_p as rms_norm_p
