"""mbarrier: barriers that are objects in shared memory, which also count bytes that arrive."""

from __future__ import annotations

from collections.abc import Iterator

from jax_ptx.dsl.isa.row import Row, row

_SHARED = "[shared|shared::cta]"
_CTA = {"shared::cta": "7.8"}
_ORDERED = {
    **_CTA,
    "release": "8.0",
    "acquire": "8.0",
    "cluster": "8.0 sm_90",
    "relaxed": "8.6 sm_90",
}


def _arrivals(arrive: str, discards: str) -> Iterator[Row]:
    """At one's own CTA's barrier an arrival returns its state, at another CTA's nothing (`_`)."""
    for order in ("", "release|relaxed cta|cluster"):
        name = f"mbarrier {arrive} {order}"
        for operands, since in (("a:addr", "7.0 sm_80"), ("a:addr, count:u32+", "7.8 sm_90")):
            own = f"{name} {_SHARED} b64"
            yield row(own, f"state:u64, {operands}", since=since, needs=_ORDERED)

            yield row(own, f"state:_, {operands}", since=max(since, discards), needs=_ORDERED)
        yield row(
            f"{name} shared::cluster b64",
            "state:_, a:addr, count?:u32+",
            since="8.0 sm_90",
            needs=_ORDERED,
        )
        name = f"mbarrier {arrive} expect_tx {order}"
        yield row(
            f"{name} {_SHARED} b64",
            "state:u64/_, a:addr, tx_count:u32+",
            since="8.0 sm_90",
            needs=_ORDERED,
        )
        yield row(
            f"{name} shared::cluster b64",
            "state:_, a:addr, tx_count:u32+",
            since="8.0 sm_90",
            needs=_ORDERED,
        )
    for order in ("", "release cta"):
        name = f"mbarrier {arrive} noComplete {order} {_SHARED} b64"
        yield row(name, "state:u64, a:addr, count:u32+", since="7.0 sm_80", needs=_ORDERED)
        yield row(name, "state:_, a:addr, count:u32+", since=discards, needs=_ORDERED)


def _waits() -> Iterator[Row]:
    """test_wait asks once, try_wait may suspend the thread for a while."""
    for wait, since, hint in (
        ("test_wait", "7.0 sm_80", ""),
        ("try_wait", "7.8 sm_90", ", hint?:u32+"),
    ):
        for order in ("", "acquire|relaxed cta|cluster"):
            yield row(
                f"mbarrier {wait} {order} {_SHARED} b64",
                f"done:pred, a:addr, state:u64{hint}",
                since=since,
                needs=_ORDERED,
            )
            yield row(
                f"mbarrier {wait} parity {order} {_SHARED} b64",
                f"done:pred, a:addr, parity:u32+{hint}",
                since=max(since, "7.1 sm_80"),
                needs=_ORDERED,
            )


ROWS = (
    row(f"mbarrier init {_SHARED} b64", "a:addr, count:u32+", since="7.0 sm_80", needs=_CTA),
    row(f"mbarrier inval {_SHARED} b64", "a:addr", since="7.0 sm_80", needs=_CTA),
    *(
        row(
            f"mbarrier expect_tx|complete_tx {order} [shared|shared::cta|shared::cluster] b64",
            "a:addr, tx_count:u32+",
            since="8.0 sm_90",
        )
        for order in ("", "relaxed cta|cluster")
    ),
    *_arrivals("arrive", discards="7.1 sm_80"),
    *_arrivals("arrive_drop", discards="7.0 sm_80"),
    *_waits(),
    row("mbarrier pending_count b64", "count:u32, state:u64", since="7.0 sm_80"),
)
