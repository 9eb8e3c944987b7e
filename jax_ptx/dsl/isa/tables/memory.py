"""Loads and stores, prefetches and cache policies."""

from __future__ import annotations

from jax_ptx.dsl.isa.row import Row, row

_TYPES = "b8|b16|b32|b64|u8|u16|u32|u64|s8|s16|s32|s64|f32|f64"
_WORDS = "b16|b32|b64|u16|u32|u64|s16|s32|s64|f32|f64"
_V = f"[V:v2|v4] T:{_TYPES}"
_SHARED = "shared|shared::cta|shared::cluster"
_SCOPE = "cta|cluster|gpu|sys"
_L1 = "L1::evict_normal|L1::evict_unchanged|L1::evict_first|L1::evict_last|L1::no_allocate"
_L2 = "L2::evict_normal|L2::evict_first|L2::evict_last"
_AHEAD = "[L2::64B|L2::128B|L2::256B]"
_HINT = "[L2::cache_hint]"
_LOAD_CACHE = "ca|cg|cs|lu|cv"
_STORE_CACHE = "wb|cg|cs|wt"
# 256 bits, in global memory only; they alone take an eviction priority in L2.
_WIDE = ("V:v8 T:b32|u32|s32|f32", "V:v4 T:b64|u64|s64|f64")

_NEEDS = {
    "shared::cta": "7.8",
    "shared::cluster": "7.8 sm_90",
    "param::entry": "8.3",
    "cluster": "7.8 sm_90",
    **dict.fromkeys(_L1.split("|"), "7.4"),
    "L2::cache_hint": "7.4 sm_80",
    "L2::64B": "7.4",
    "L2::128B": "7.4",
    "L2::256B": "7.4 sm_80",
}
# Four of 64 bits are a wide vector.
_TOO_LONG = tuple(f"v4 {t}64" for t in "busf")
_D, _B = "d:T~*V, a:addr, policy@L2::cache_hint:u64+", "a:addr, b:T~*V+, policy@L2::cache_hint:u64+"


def _plain(syntax: str, operands: str, *forbid: str) -> Row:
    return row(f"{syntax} {_V}", operands, needs=_NEEDS, forbid=(*_TOO_LONG, *forbid))


def _wide(syntax: str, operands: str) -> tuple[Row, ...]:
    return tuple(row(f"{syntax} {v}", operands, since="8.8 sm_100", needs=_NEEDS) for v in _WIDE)


LOADS = (
    _plain(f"ld [weak] [const|global|local|param|param::entry|{_SHARED}] [{_LOAD_CACHE}]", _D),
    _plain(f"ld [weak] [global] [{_LOAD_CACHE}|{_L1}] {_HINT} {_AHEAD}", _D),
    _plain(f"ld volatile [global|{_SHARED}]", _D),
    _plain(f"ld volatile global {_AHEAD}", _D),
    row(f"ld volatile local {_V}", _D, since="9.1", forbid=_TOO_LONG),
    _plain(f"ld relaxed|acquire {_SCOPE} [global] [{_L1}] {_HINT} {_AHEAD}", _D),
    _plain(f"ld relaxed|acquire {_SCOPE} {_SHARED}", _D),
    _plain(f"ld global [ca|cg|cs|{_L1}] nc", _D),
    _plain(f"ld global [ca|cg|cs] nc {_HINT} {_AHEAD}", _D),
    _plain(f"ld global nc {_L1} {_HINT} {_AHEAD}", _D),
    *_wide(f"ld [weak] [global] [{_LOAD_CACHE}|{_L1}] [{_L2}] {_HINT} {_AHEAD}", _D),
    *_wide(f"ld volatile [global] {_AHEAD}", _D),
    *_wide(f"ld relaxed|acquire {_SCOPE} [global] [{_L1}] [{_L2}] {_HINT} {_AHEAD}", _D),
    *_wide(f"ld global nc [{_L1}] [{_L2}] {_HINT} {_AHEAD}", _D),
    row(f"ld mmio relaxed sys [global] T:{_TYPES}", "d:T~, a:addr", since="8.2"),
)
STORES = (
    _plain(f"st [weak] [global|local|{_SHARED}] [{_STORE_CACHE}]", _B),
    _plain(f"st [weak] [global] [{_STORE_CACHE}|{_L1}] {_HINT}", _B),
    _plain(f"st volatile [global|{_SHARED}]", _B),
    row(f"st volatile local {_V}", _B, since="9.1", forbid=_TOO_LONG),
    _plain(f"st relaxed|release {_SCOPE} [global] [{_L1}] {_HINT}", _B),
    _plain(f"st relaxed|release {_SCOPE} {_SHARED}", _B),
    *_wide(f"st [weak] [global] [{_STORE_CACHE}|{_L1}] [{_L2}] {_HINT}", _B),
    *_wide("st volatile [global]", _B),
    *_wide(f"st relaxed|release {_SCOPE} [global] [{_L1}] [{_L2}] {_HINT}", _B),
    row(f"st mmio relaxed sys [global] T:{_TYPES}", "a:addr, b:T~+", since="8.2"),
)

_PRIORITY = f"{_L2}|L2::evict_unchanged"
_OTHERWISE = "[L2::evict_first|L2::evict_unchanged]"
POLICIES = (
    row("prefetch [global|local] L1|L2", "a:addr"),
    row("prefetch global L2::evict_last|L2::evict_normal", "a:addr", since="7.4 sm_80"),
    row("prefetchu L1", "a:addr"),
    row("applypriority [global] L2::evict_normal", "a:addr, size:int=128", since="7.4 sm_80"),
    row("discard [global] L2", "a:addr, size:int=128", since="7.4 sm_80"),
    row(
        f"createpolicy fractional {_PRIORITY} {_OTHERWISE} b64",
        "d:u64, fraction?:f32+",
        since="7.4 sm_80",
    ),
    row(
        f"createpolicy range [global] {_PRIORITY} {_OTHERWISE} b64",
        "d:u64, a:addr, primary_size:u32+=64, total_size:u32+=128",
        since="7.4 sm_80",
    ),
    row("createpolicy cvt L2 b64", "d:u64, a:u64+", since="7.4 sm_80"),
)
DISTRIBUTED = (
    row(
        "st async [weak] [shared::cluster] mbarrier::complete_tx::bytes [V:v2|v4]"
        " T:b32|u32|s32|f32",
        "a:addr, b:T*V+, mbarrier:addr",
        since="8.1 sm_90",
    ),
    row(
        "st async [weak] [shared::cluster] mbarrier::complete_tx::bytes [V:v2] T:b64|u64|s64|f64",
        "a:addr, b:T*V+, mbarrier:addr",
        since="8.1 sm_90",
    ),
    row(f"st async release gpu|sys [global] T:{_WORDS}", "a:addr, b:T", since="8.7 sm_100"),
    row(f"st async mmio release sys [global] T:{_WORDS}", "a:addr, b:T", since="8.7 sm_100"),
    row("st bulk [weak] [shared::cta]", "a:addr, size:u64, initial:int=0", since="8.6 sm_100"),
)

ROWS = (*LOADS, *STORES, *POLICIES, *DISTRIBUTED)
