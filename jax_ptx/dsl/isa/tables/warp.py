"""Exchange and agreement between the lanes of a warp."""

from __future__ import annotations

from jax_ptx.dsl.isa.row import row

ROWS = (
    row("shfl sync up|down|bfly|idx b32", "d:b32|pred, a:b32+, b:u32+, c:u32+, mask:u32+"),
    row("vote sync all|any|uni pred", "p:pred, a:pred, mask:u32+"),
    row("vote sync ballot b32", "d:b32, a:pred, mask:u32+"),
    row("match any sync T:b32|b64", "d:u32, a:T+, mask:u32+"),
    row("match all sync T:b32|b64", "d:u32|pred, a:T+, mask:u32+"),
    row("activemask b32", "d:b32", since="6.2"),
    row("redux sync add|min|max T:u32|s32", "d:T, a:T+, mask:u32+", since="7.0 sm_80"),
    row("redux sync and|or|xor T:b32", "d:u32, a:u32+, mask:u32+", since="7.0 sm_80"),
    row(
        "redux sync min|max [abs] [NaN] T:f32",
        "d:T, a:T+, mask:u32+",
        since="8.6 sm_100a",
        also="sm_103a",
    ),
    row("elect sync", "d:b32||pred, mask:u32+", since="8.0 sm_90"),
)
