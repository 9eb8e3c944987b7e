"""Comparison, selection, logic, shifts, and permutation of bits and bytes."""

from __future__ import annotations

from collections.abc import Iterator

from jax_ptx.dsl.isa.row import FLOOR, Row, row

_EQUAL = "eq|ne"
_ORDER = "eq|ne|lt|le|gt|ge"
_UNSIGNED = f"{_ORDER}|lo|ls|hi|hs"
_FLOAT = f"{_ORDER}|equ|neu|ltu|leu|gtu|geu|num|nan"
_BOOL = "and|or|xor"
_ALL = "b16|b32|b64|u16|u32|u64|s16|s32|s64|f32|f64"


def _compare(comparisons: str, types: str) -> Iterator[Row]:
    """setp and set for operands of these types (and .ftz for those that it is about)."""
    ftz = "[ftz]" if types == "f32" else ""
    for combined, c in (("", ""), (_BOOL, ", c:pred")):
        name = f"{comparisons} {combined} {ftz}"
        yield row(f"setp {name} A:{types}", f"p:pred|pred, a:A+, b:A+{c}")
        yield row(f"set {name} D:u32|s32|f32|f16 A:{types}", f"d:D, a:A+, b:A+{c}")
        name = f"{comparisons} {combined} D:bf16 A:{types}"
        yield row(f"set {name}", f"d:D, a:A+, b:A+{c}", since="7.8 sm_90")


def _compare_half(ftz: str, half: str, *, since: str, set_since: str) -> Iterator[Row]:
    """setp and set for one half type, whose setp has a single destination, and for its pair."""
    for combined, c in (("", ""), (_BOOL, ", c:pred")):
        name, operands = f"{_FLOAT} {combined} {ftz}", f"a:A, b:A{c}"
        yield row(f"setp {name} A:{half}", f"p:pred, {operands}", since=since)
        # One predicate for each half.
        yield row(f"setp {name} A:{half}x2", f"p:pred||pred, {operands}", since=since)
        yield row(f"set {name} D:u16|s16|u32|s32 A:{half}", f"d:D, {operands}", since=set_since)
        yield row(f"set {name} D:u32|s32 A:{half}x2", f"d:D, {operands}", since=set_since)
        yield row(f"set {name} D:{half} A:{half}", f"d:D, {operands}", since=since)
        yield row(f"set {name} D:{half}x2 A:{half}x2", f"d:D, {operands}", since=since)


ROWS = (
    *_compare(_EQUAL, "b16|b32|b64"),
    *_compare(_UNSIGNED, "u16|u32|u64"),
    *_compare(_ORDER, "s16|s32|s64"),
    *_compare(_FLOAT, "f32"),
    *_compare(_FLOAT, "f64"),
    *_compare_half("[ftz]", "f16", since=FLOOR, set_since="6.5"),
    *_compare_half("", "bf16", since="7.8 sm_90", set_since="7.8 sm_90"),
    row(f"selp T:{_ALL}", "d:T, a:T+, b:T+, c:pred"),
    row(f"slct T:{_ALL} s32", "d:T, a:T+, b:T+, c:s32+"),
    row(f"slct [ftz] T:{_ALL} f32", "d:T, a:T+, b:T+, c:f32+"),
    row("and|or|xor T:b16|b32|b64", "d:T, a:T+, b:T+"),
    row("and|or|xor pred", "p:pred, a:pred, b:pred"),
    row("not T:b16|b32|b64", "d:T, a:T+"),
    row("not pred", "p:pred, a:pred"),
    row("cnot T:b16|b32|b64", "d:T, a:T+"),
    row("lop3 b32", "d:b32, a:b32+, b:b32+, c:b32+, table:int=232<256"),
    row(
        "lop3 or|and b32",
        "d:b32||pred, a:b32+, b:b32+, c:b32+, table:int=232<256, q:pred",
        since="8.2",
    ),
    row("shl T:b16|b32|b64", "d:T, a:T+, b:u32+"),
    row("shr T:b16|b32|b64|u16|u32|u64|s16|s32|s64", "d:T, a:T+, b:u32+"),
    row("shf l|r clamp|wrap b32", "d:b32, a:b32+, b:b32+, c:u32+"),
    row("prmt b32", "d:b32, a:b32+, b:b32+, c:b32+"),
    row("prmt b32 f4e|b4e|rc8|ecl|ecr|rc16", "d:b32, a:b32+, b:b32+, c:b32+"),
)
