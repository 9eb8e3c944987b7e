"""The kernel language. It imports neither JAX nor NumPy, and no array reaches it."""

from jax_ptx.dsl import ptx as ptx
from jax_ptx.dsl import reg as reg
from jax_ptx.dsl import smem as smem
from jax_ptx.dsl.tile import RunTime as RunTime
from jax_ptx.dsl.tile import Tile as Tile
