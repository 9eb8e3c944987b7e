"""Barriers and fences."""

from __future__ import annotations

from jax_ptx.dsl.isa.row import row

_SCOPE = "cta|cluster|gpu|sys"

ROWS = (
    row("bar sync", "a:u32+, b?:u32+=64"),
    row("bar arrive", "a:u32+, b:u32+=64"),
    row("bar red popc u32", "d:u32, a:u32+, b?:u32+=64, c:pred"),
    row("bar red and|or pred", "p:pred, a:u32+, b?:u32+=64, c:pred"),
    row("bar warp sync", "mask:u32+"),
    row("barrier [cta] sync [aligned]", "a:u32+, b?:u32+=64", needs={"cta": "7.8"}),
    row("barrier [cta] arrive [aligned]", "a:u32+, b:u32+=64", needs={"cta": "7.8"}),
    row(
        "barrier [cta] red popc [aligned] u32",
        "d:u32, a:u32+, b?:u32+=64, c:pred",
        needs={"cta": "7.8"},
    ),
    row(
        "barrier [cta] red and|or [aligned] pred",
        "p:pred, a:u32+, b?:u32+=64, c:pred",
        needs={"cta": "7.8"},
    ),
    row(
        "barrier cluster arrive [release|relaxed] [aligned]",
        since="7.8 sm_90",
        needs={"release": "8.0", "relaxed": "8.0"},
    ),
    row("barrier cluster wait [acquire] [aligned]", since="7.8 sm_90", needs={"acquire": "8.0"}),
    row("membar cta|gl|sys"),
    row(f"fence [sc|acq_rel] {_SCOPE}", needs={"cluster": "7.8 sm_90"}),
)
