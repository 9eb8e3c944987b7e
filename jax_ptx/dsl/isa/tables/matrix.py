"""Matrices in the registers of a warp: ldmatrix, stmatrix, movmatrix and mma.sync."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jax_ptx.dsl.isa.row import ALSO_BLACKWELL, Row, row

_SHARED = "[shared|shared::cta]"
_CTA = {"shared::cta": "7.8"}

MOVES = (
    row(
        f"ldmatrix sync aligned m8n8 V:x1|x2|x4 [trans] {_SHARED} b16",
        "r:b32*V, p:addr",
        since="6.5",
        needs=_CTA,
    ),
    row(
        f"ldmatrix sync aligned m16n16 x1 trans {_SHARED} b8",
        "r:b32*2, p:addr",
        since="8.6 sm_100a",
        also=ALSO_BLACKWELL,
    ),
    row(
        f"ldmatrix sync aligned m16n16 x2 trans {_SHARED} b8",
        "r:b32*4, p:addr",
        since="8.6 sm_100a",
        also=ALSO_BLACKWELL,
    ),
    row(
        f"ldmatrix sync aligned m8n16 V:x1|x2|x4 {_SHARED} b8x16 b6x16_p32|b4x16_p64",
        "r:b32*V, p:addr",
        since="8.6 sm_100a",
        also=ALSO_BLACKWELL,
    ),
    row(
        f"stmatrix sync aligned m8n8 V:x1|x2|x4 [trans] {_SHARED} b16",
        "p:addr, r:b32*V",
        since="7.8 sm_90",
    ),
    row(
        f"stmatrix sync aligned m16n8 V:x1|x2|x4 trans {_SHARED} b8",
        "p:addr, r:b32*V",
        since="8.6 sm_100a",
        also=ALSO_BLACKWELL,
    ),
    row("movmatrix sync aligned m8n8 trans b16", "d:b32, a:b32", since="7.8"),
)


def _mma(shape: str, types: str, a: str, b: str, c: str, since: str) -> Row:
    """One shape: its types d.a.b.c, and the registers of a, of b, and of c and d."""
    return row(
        f"mma sync aligned {shape} row col {types}", f"d:{c}, a:{a}, b:{b}, c:{c}", since=since
    )


def _small_floats(types: str, **least: Any) -> Iterator[Row]:
    name = "mma sync aligned m16n8k32 row col kind::f8f6f4"
    for d, registers in (("f32", "f32*4"), ("f16", "i32*2")):
        yield row(
            f"{name} {d} A:{types} B:{types} {d}",
            f"d:{registers}, a:i32*4, b:i32*2, c:{registers}",
            needs={"f16": "8.7"},
            **least,
        )


# An accumulator of m8n8k4.
_HALVES = {"f16": "i32*4", "f32": "f32*8"}
_F8 = "e4m3|e5m2"
_I8, _I4 = "[satfinite] s32 u8|s8 u8|s8 s32", "[satfinite] s32 u4|s4 u4|s4 s32"
_F16, _F32 = "f16 f16 f16 f16", "f32 f16 f16 f32"
_XOR, _AND = "s32 b1 b1 s32 xor popc", "s32 b1 b1 s32 and popc"

MULTIPLY = (
    *(
        row(
            f"mma sync aligned m8n8k4 row|col row|col {d} f16 f16 {c}",
            f"d:{_HALVES[d]}, a:i32*2, b:i32*2, c:{_HALVES[c]}",
            since="6.4",
        )
        for d, c in (("f16", "f16"), ("f32", "f16"), ("f32", "f32"))
    ),
    _mma("m16n8k8", _F16, "i32*2", "i32*1", "i32*2", "6.5"),
    _mma("m16n8k8", _F32, "i32*2", "i32*1", "f32*4", "6.5"),
    _mma("m16n8k16", _F16, "i32*4", "i32*2", "i32*2", "7.0 sm_80"),
    _mma("m16n8k16", _F32, "i32*4", "i32*2", "f32*4", "7.0 sm_80"),
    _mma("m16n8k8", "f32 bf16 bf16 f32", "i32*2", "i32*1", "f32*4", "7.0 sm_80"),
    _mma("m16n8k16", "f32 bf16 bf16 f32", "i32*4", "i32*2", "f32*4", "7.0 sm_80"),
    _mma("m16n8k4", "f32 tf32 tf32 f32", "i32*2", "i32*1", "f32*4", "7.0 sm_80"),
    _mma("m16n8k8", "f32 tf32 tf32 f32", "i32*4", "i32*2", "f32*4", "7.0 sm_80"),
    _mma("m16n8k16", f"f32 {_F8} {_F8} f32", "i32*2", "i32*1", "f32*4", "8.7 sm_89"),
    _mma("m16n8k32", f"f32 {_F8} {_F8} f32", "i32*4", "i32*2", "f32*4", "8.4 sm_89"),
    _mma("m16n8k16", f"f16 {_F8} {_F8} f16", "i32*2", "i32*1", "i32*2", "8.7 sm_89"),
    _mma("m16n8k32", f"f16 {_F8} {_F8} f16", "i32*4", "i32*2", "i32*2", "8.7 sm_89"),
    _mma("m8n8k4", "f64 f64 f64 f64", "f64*1", "f64*1", "f64*2", "7.0 sm_80"),
    _mma("m16n8k4", "f64 f64 f64 f64", "f64*2", "f64*1", "f64*4", "7.8 sm_90"),
    _mma("m16n8k8", "f64 f64 f64 f64", "f64*4", "f64*2", "f64*4", "7.8 sm_90"),
    _mma("m16n8k16", "f64 f64 f64 f64", "f64*8", "f64*4", "f64*4", "7.8 sm_90"),
    _mma("m8n8k16", _I8, "i32*1", "i32*1", "s32*2", "6.5"),
    _mma("m16n8k16", _I8, "i32*2", "i32*1", "s32*4", "7.0 sm_80"),
    _mma("m16n8k32", _I8, "i32*4", "i32*2", "s32*4", "7.0 sm_80"),
    _mma("m8n8k32", _I4, "i32*1", "i32*1", "s32*2", "6.5"),
    _mma("m16n8k32", _I4, "i32*2", "i32*1", "s32*4", "7.0 sm_80"),
    _mma("m16n8k64", _I4, "i32*4", "i32*2", "s32*4", "7.0 sm_80"),
    _mma("m8n8k128", _AND, "i32*1", "i32*1", "s32*2", "7.1 sm_80"),
    _mma("m16n8k128", _AND, "i32*2", "i32*1", "s32*4", "7.1 sm_80"),
    _mma("m16n8k256", _AND, "i32*4", "i32*2", "s32*4", "7.1 sm_80"),
    _mma("m8n8k128", _XOR, "i32*1", "i32*1", "s32*2", "7.0"),
    _mma("m16n8k128", _XOR, "i32*2", "i32*1", "s32*4", "7.0 sm_80"),
    _mma("m16n8k256", _XOR, "i32*4", "i32*2", "s32*4", "7.0 sm_80"),
    *_small_floats("e4m3|e5m2", since="8.6 sm_100a", also=ALSO_BLACKWELL),
    *_small_floats(
        "e4m3|e5m2|e3m2|e2m3|e2m1",
        since="8.7 sm_120a",
        also="sm_121a",
        forbid=[f"A={a} B={b}" for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2")],
    ),
)

ROWS = (*MOVES, *MULTIPLY)
