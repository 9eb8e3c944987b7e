"""Asynchronous copies, by the thread (cp.async) and in bulk (cp.async.bulk)."""

from __future__ import annotations

from jax_ptx.dsl.isa.row import row

_HINT = "[L2::cache_hint]"
_POLICY = "policy@L2::cache_hint:u64+"
_AHEAD = "[L2::64B|L2::128B|L2::256B]"
_BYTES = "mbarrier::complete_tx::bytes"
_ASYNC_NEEDS: dict[str, str] = dict.fromkeys(
    ("L2::cache_hint", "L2::64B", "L2::128B", "L2::256B"), "7.4"
)

THREAD = (
    row(
        f"cp async ca shared|shared::cta global {_HINT} {_AHEAD}",
        f"dst:addr, src:addr, size:int=4|8|16, src_size?:u32+, {_POLICY}",
        since="7.0 sm_80",
        needs=_ASYNC_NEEDS,
    ),
    row(
        f"cp async ca shared|shared::cta global {_HINT} {_AHEAD}",
        f"dst:addr, src:addr, size:int=4|8|16, ignore_src:pred, {_POLICY}",
        since="7.5 sm_80",
        needs=_ASYNC_NEEDS,
    ),
    row(
        f"cp async cg shared|shared::cta global {_HINT} {_AHEAD}",
        f"dst:addr, src:addr, size:int=16|16, src_size?:u32+, {_POLICY}",
        since="7.0 sm_80",
        needs=_ASYNC_NEEDS,
    ),
    row(
        f"cp async cg shared|shared::cta global {_HINT} {_AHEAD}",
        f"dst:addr, src:addr, size:int=16|16, ignore_src:pred, {_POLICY}",
        since="7.5 sm_80",
        needs=_ASYNC_NEEDS,
    ),
    row("cp async commit_group", since="7.0 sm_80"),
    row("cp async wait_group", "n:int", since="7.0 sm_80"),
    row("cp async wait_all", since="7.0 sm_80"),
    row(
        "cp async mbarrier arrive [noinc] [shared|shared::cta] b64",
        "mbarrier:addr",
        since="7.0 sm_80",
        needs={"shared::cta": "7.8"},
    ),
)
BULK = (
    row(
        f"cp async bulk shared::cluster global {_BYTES} {_HINT}",
        f"dst:addr, src:addr, size:u32+=16%16, mbarrier:addr, {_POLICY}",
        since="8.0 sm_90",
    ),
    row(
        f"cp async bulk shared::cluster global {_BYTES} multicast::cluster {_HINT}",
        f"dst:addr, src:addr, size:u32+=16%16, mbarrier:addr, cta_mask:u16+, {_POLICY}",
        since="8.0 sm_90",
    ),
    row(
        f"cp async bulk shared::cta global {_BYTES} {_HINT}",
        f"dst:addr, src:addr, size:u32+=16%16, mbarrier:addr, {_POLICY}",
        since="8.6 sm_90",
    ),
    row(
        f"cp async bulk shared::cluster shared::cta {_BYTES}",
        "dst:addr, src:addr, size:u32+=16%16, mbarrier:addr",
        since="8.0 sm_90",
    ),
    row(
        f"cp async bulk global shared::cta bulk_group {_HINT}",
        f"dst:addr, src:addr, size:u32+=16%16, {_POLICY}",
        since="8.0 sm_90",
    ),
    row(
        f"cp async bulk global shared::cta bulk_group {_HINT} cp_mask",
        f"dst:addr, src:addr, size:u32+=16%16, {_POLICY}, byte_mask:u16+",
        since="8.6 sm_100",
    ),
    row(
        f"cp async bulk prefetch L2 global {_HINT}",
        f"src:addr, size:u32+=16%16, {_POLICY}",
        since="8.0 sm_90",
    ),
    row("cp async bulk commit_group", since="8.0 sm_90"),
    row("cp async bulk wait_group [read]", "n:int", since="8.0 sm_90"),
)

_INTO_CLUSTER = f"cp reduce async bulk shared::cluster shared::cta {_BYTES}"
_INTO_GLOBAL = f"cp reduce async bulk global shared::cta bulk_group {_HINT}"
_CLUSTER_OPERANDS = "dst:addr, src:addr, size:u32+=16%16, mbarrier:addr"
_GLOBAL_OPERANDS = f"dst:addr, src:addr, size:u32+=16%16, {_POLICY}"
REDUCE = (
    *(
        row(f"{_INTO_CLUSTER} {operation}", _CLUSTER_OPERANDS, since="8.0 sm_90")
        for operation in ("and|or|xor b32", "add u32|s32|u64", "inc|dec u32", "min|max u32|s32")
    ),
    *(
        row(f"{_INTO_GLOBAL} {operation}", _GLOBAL_OPERANDS, since="8.0 sm_90")
        for operation in (
            "and|or|xor b32|b64",
            "add u32|s32|u64|f32|f64",
            "inc|dec u32",
            "min|max u32|s32|u64|s64",
            "add noftz f16|bf16",
            "min|max f16|bf16",
        )
    ),
)

ROWS = (*THREAD, *BULK, *REDUCE)
