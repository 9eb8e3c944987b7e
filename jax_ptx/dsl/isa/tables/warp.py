"""Exchange between the lanes of a warp."""

from __future__ import annotations

from jax_ptx.dsl.isa.row import row

ROWS = (row("shfl sync up|down|bfly|idx b32", "d:b32|pred, a:b32, b:b32+, c:b32+, mask:b32+"),)
