"""Barriers of the CTA, of the warp and of the cluster, and fences."""

from __future__ import annotations

from jax_ptx.dsl.isa.row import row

_CLUSTER = {"cluster": "7.8 sm_90"}
_CTA = {"cta": "7.8"}
_A, _B = "a:u32+=1<16", "b:u32+=64%32"

BARRIERS = (
    row("bar [cta] sync", f"{_A}, b?:u32+=64%32", needs=_CTA),
    row("bar [cta] arrive", f"{_A}, {_B}", needs=_CTA),
    row("bar [cta] red popc u32", f"d:u32, {_A}, b?:u32+=64%32, c:pred", needs=_CTA),
    row("bar [cta] red and|or pred", f"p:pred, {_A}, b?:u32+=64%32, c:pred", needs=_CTA),
    row("bar warp sync", "mask:u32+"),
    row("barrier [cta] sync [aligned]", f"{_A}, b?:u32+=64%32", needs=_CTA),
    row("barrier [cta] arrive [aligned]", f"{_A}, {_B}", needs=_CTA),
    row("barrier [cta] red popc [aligned] u32", f"d:u32, {_A}, b?:u32+=64%32, c:pred", needs=_CTA),
    row(
        "barrier [cta] red and|or [aligned] pred",
        f"p:pred, {_A}, b?:u32+=64%32, c:pred",
        needs=_CTA,
    ),
    row(
        "barrier cluster arrive [release|relaxed] [aligned]",
        since="7.8 sm_90",
        needs={"release": "8.0", "relaxed": "8.0"},
    ),
    row("barrier cluster wait [acquire] [aligned]", since="7.8 sm_90", needs={"acquire": "8.0"}),
)
_ASYNC_SPACE = "[global|shared::cta|shared::cluster]"
FENCES = (
    row("membar cta|gl|sys"),
    row("membar proxy alias", since="7.5"),
    row("fence [sc|acq_rel] cta|cluster|gpu|sys", needs=_CLUSTER),
    row("fence acquire|release cta|cluster|gpu|sys", since="8.6 sm_90"),
    row("fence acquire sync_restrict::shared::cluster cluster", since="8.6 sm_90"),
    row("fence release sync_restrict::shared::cta cluster", since="8.6 sm_90"),
    row("fence mbarrier_init release cluster", since="8.0 sm_90"),
    row("fence proxy alias", since="7.5"),
    row(f"fence proxy async {_ASYNC_SPACE}", since="8.0 sm_90"),
    row(
        "fence proxy async::generic acquire sync_restrict::shared::cluster cluster",
        since="8.6 sm_90",
    ),
    row("fence proxy async::generic release sync_restrict::shared::cta cluster", since="8.6 sm_90"),
)

ROWS = (*BARRIERS, *FENCES)
