"""Atomic operations and reductions in memory."""

from __future__ import annotations

from collections.abc import Iterator

from jax_ptx.dsl.isa.row import FLOOR, Row, row

_SCOPE = "[cta|cluster|gpu|sys]"
_SPACE = "[global|shared|shared::cta|shared::cluster]"
_HINT = "[L2::cache_hint]"
_POLICY = "policy@L2::cache_hint:u64+"
_NEEDS = {
    "cluster": "7.8 sm_90",
    "shared::cta": "7.8",
    "shared::cluster": "7.8 sm_90",
    "L2::cache_hint": "7.4 sm_80",
}
# A cache policy is for global memory.
_NOT_SHARED = tuple(f"{s} L2::cache_hint" for s in ("shared", "shared::cta", "shared::cluster"))
_ASYNC = "red async relaxed cluster [shared::cluster] mbarrier::complete_tx::bytes"

# Operation, types, and the least version of those that atom and red have in common.
_OPERATIONS = (
    ("and|or|xor", "b32|b64", FLOOR),
    ("add", "u32|s32|u64|f32|f64", FLOOR),
    ("inc|dec", "u32", FLOOR),
    ("min|max", "u32|s32|u64|s64", FLOOR),
    ("add noftz", "f16|f16x2", FLOOR),
    ("add noftz", "bf16|bf16x2", "7.8 sm_90"),
)
_VECTORS = (
    ("add", "V:v2|v4 T:f32"),
    ("add|min|max noftz", "V:v2|v4|v8 T:f16|bf16"),
    ("add|min|max noftz", "V:v2|v4 T:f16x2|bf16x2"),
)


def _atomic(opcode: str, orders: str) -> Iterator[Row]:
    order = f"{opcode} [{orders}] {_SCOPE}"
    returns = opcode == "atom"
    for operation, types, since in _OPERATIONS:
        # Half types have no immediates, and ptxas 13.0 does not survive a discarded result of theirs.
        half = "noftz" in operation
        d = "" if not returns else "d:T, " if half else "d:T/_, "
        yield row(
            f"{order} {_SPACE} {operation} {_HINT} T:{types}",
            f"{d}a:addr, b:{'T' if half else 'T+'}, {_POLICY}",
            since=since,
            needs=_NEEDS,
            forbid=_NOT_SHARED,
        )
    for operation, types in _VECTORS:
        yield row(
            f"{order} [global] {operation} {_HINT} {types}",
            f"{'d:T*V, ' if returns else ''}a:addr, b:T*V, {_POLICY}",
            since="8.1 sm_90",
            needs=_NEEDS,
        )


_ATOM = f"atom [relaxed|acquire|release|acq_rel] {_SCOPE} {_SPACE}"

ROWS = (
    *_atomic("atom", "relaxed|acquire|release|acq_rel"),
    row(
        f"{_ATOM} exch {_HINT} T:b32|b64",
        f"d:T/_, a:addr, b:T+, {_POLICY}",
        needs=_NEEDS,
        forbid=_NOT_SHARED,
    ),
    row(
        f"{_ATOM} cas T:b16|b32|b64",
        "d:T/_, a:addr, b:T+, c:T+",
        needs=_NEEDS,
    ),
    *_atomic("red", "relaxed|release"),
    row(f"{_ASYNC} inc|dec T:u32", "a:addr, b:T+, mbarrier:addr", since="8.1 sm_90"),
    row(f"{_ASYNC} min|max T:u32|s32", "a:addr, b:T+, mbarrier:addr", since="8.1 sm_90"),
    row(f"{_ASYNC} add T:u32|s32|u64", "a:addr, b:T+, mbarrier:addr", since="8.1 sm_90"),
    row(f"{_ASYNC} and|or|xor T:b32", "a:addr, b:T+, mbarrier:addr", since="8.1 sm_90"),
    *(
        row(
            f"red async {scope} [global] add T:u32|s32|u64|s64",
            "a:addr, b:T",
            since="8.7 sm_100",
        )
        for scope in ("release gpu|sys", "mmio release sys")
    ),
)
