"""Moves and conversions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jax_ptx.dsl.isa.row import ALSO_BLACKWELL, Row, row

_INT = "u8|u16|u32|u64|s8|s16|s32|s64"
_WORDS = "u16|u32|u64|s16|s32|s64"
_TO_INT = "rni|rzi|rmi|rpi"
_ROUND = "rn|rz|rm|rp"
_SPACE = "const|global|local|shared|shared::cta|shared::cluster"
_SPACE_NEEDS = {"shared::cta": "7.8", "shared::cluster": "7.8 sm_90"}
_DA = "d:D~, a:A~"
_DI = "d:D~, a:A~+"  # ptxas takes immediates of f32 and f64, though the ISA does not say so
_SATFINITE = {"satfinite": "8.1"}
_REGISTERS = f"b16|b32|b64|{_WORDS}|f32|f64"

MOVES = (
    row(f"mov T:{_REGISTERS}", "d:T, a:T+"),
    row("mov T:b32|u32|s32|b64|u64|s64", "d:T, a:T%/sym"),
    row("mov pred", "p:pred, a:pred/int"),
    # Packs a vector into a scalar, and unpacks one.
    row("mov b32", "d:b32, a:b16*2"),
    row("mov b64", "d:b64, a:b32*2"),
    row("mov b64", "d:b64, a:b16*4"),
    row("mov b32", "d:b16*2, a:b32"),
    row("mov b64", "d:b32*2, a:b64"),
    row("mov b64", "d:b16*4, a:b64"),
)


def _range(name: str) -> tuple[int, int]:
    bits = int(name[1:])
    return (0, 2**bits - 1) if name[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _since_a(version: str) -> Any:
    """Forms that the architecture-specific targets from Blackwell on have in common."""
    return {"since": f"{version} sm_100a", "also": ALSO_BLACKWELL}


_RANDOM: Any = {"since": "8.7 sm_100a", "also": "sm_103a"}


def _saturating() -> Iterator[Row]:
    """Between integers, `.sat` is allowed where it can change something."""
    for to in _INT.split("|"):
        low, high = _range(to)
        sources = [a for a in _INT.split("|") if _range(a)[0] < low or _range(a)[1] > high]
        yield row(f"cvt sat D:{to} A:{'|'.join(sources)}", "d:D~, a:A~+")


CONVERSIONS = (
    row(f"cvt D:{_INT} A:{_INT}", "d:D~, a:A~+%"),
    *_saturating(),
    row(f"cvt {_TO_INT} [ftz] [sat] D:{_INT} A:f32", _DI),
    row(f"cvt {_TO_INT} [sat] D:{_INT} A:f16", _DA),
    row(f"cvt {_TO_INT} [sat] D:{_INT} A:f64", _DI),
    row(f"cvt {_TO_INT} D:{_WORDS} A:bf16", "d:D, a:A", since="7.8 sm_90"),
    row(f"cvt {_ROUND} [ftz] [sat] D:f32 A:{_INT}", "d:D~, a:A~+"),
    row(f"cvt {_ROUND} [sat] D:f16|f64 A:{_INT}", "d:D~, a:A~+"),
    row(f"cvt {_ROUND} D:bf16 A:{_WORDS}", "d:D, a:A+", since="7.8 sm_90"),
    # Widening is exact and takes no rounding.
    row("cvt [ftz] [sat] D:f32 A:f16", _DA),
    row("cvt [ftz] [sat] D:f32|f64 A:f32", _DI),
    row("cvt [sat] D:f64 A:f16", _DA),
    row("cvt [sat] D:f64 A:f64", _DI),
    row("cvt [sat] D:f16 A:f16", _DA),
    row("cvt D:f32 A:bf16", _DA, since="7.1 sm_80"),
    row("cvt ftz D:f32 A:bf16", _DA, since="7.8 sm_90"),
    row("cvt D:f64|f16|bf16 A:bf16", _DA, since="7.8 sm_90"),
    row("cvt D:bf16 A:f16", _DA, since="7.8 sm_90"),
    row(f"cvt {_TO_INT} [ftz] [sat] D:f32 A:f32", _DI),
    row(f"cvt {_TO_INT} [sat] D:f64 A:f64", _DI),
    row(f"cvt {_TO_INT} [sat] D:f16 A:f16", _DA),
    row(f"cvt {_TO_INT} D:bf16 A:bf16", _DA, since="7.8 sm_90"),
    row(f"cvt {_ROUND} [ftz] [sat] D:f32 A:f64", _DI),
    row(f"cvt {_ROUND} [sat] D:f16 A:f64", _DI),
    row(f"cvt {_ROUND} [ftz] [sat] D:f16 A:f32", _DI),
    row(f"cvt {_ROUND} D:bf16 A:f16", _DA, since="7.8 sm_90"),
    row(f"cvt {_ROUND} D:bf16 A:f64", _DI, since="7.8 sm_90"),
    row(f"cvt {_ROUND} D:f16 A:bf16", _DA, since="7.8 sm_90"),
    row(f"cvt {_ROUND} [ftz] D:bf16 A:f32", _DI, since="7.0 sm_80"),
    row("cvt rn|rz relu [satfinite] D:f16|bf16 A:f32", _DI, since="7.0 sm_80", needs=_SATFINITE),
    row("cvt rn|rz satfinite D:f16 A:f32", _DI, since="8.1"),
    row("cvt rn|rz satfinite D:bf16 A:f32", _DI, since="8.1 sm_80"),
    row(
        "cvt rn|rz [relu] [satfinite] D:f16x2|bf16x2 f32",
        "d:D, a:f32+, b:f32+",
        since="7.0 sm_80",
        needs=_SATFINITE,
    ),
    row("cvt rna [satfinite] tf32 f32", "d:i32, a:f32+", since="7.0 sm_80", needs=_SATFINITE),
    row("cvt rn|rz [relu] tf32 f32", "d:i32, a:f32+", since="7.8 sm_90"),
    row("cvt rn|rz [relu] satfinite tf32 f32", "d:i32, a:f32+", since="8.6 sm_100"),
    # Two 8-bit floats in a register of 16 bits.
    row("cvt rn satfinite [relu] e4m3x2|e5m2x2 f32", "d:b16, a:f32+, b:f32+", since="8.1 sm_89"),
    row("cvt rn satfinite [relu] e4m3x2|e5m2x2 f16x2", "d:b16, a:f16x2", since="8.1 sm_89"),
    row("cvt rn [relu] f16x2 e4m3x2|e5m2x2", "d:f16x2, a:b16", since="8.1 sm_89"),
    row("cvt rn satfinite [relu] e4m3x2|e5m2x2 bf16x2", "d:b16, a:bf16x2", **_since_a("9.1")),
    row("cvt rn [relu] [satfinite] bf16x2 e4m3x2|e5m2x2", "d:bf16x2, a:b16", **_since_a("9.2")),
    row("cvt rn satfinite [relu] e2m3x2|e3m2x2 f32", "d:b16, a:f32, b:f32", **_since_a("8.6")),
    row("cvt rn [relu] f16x2 e2m3x2|e3m2x2", "d:f16x2, a:b16", **_since_a("8.6")),
    row("cvt rz|rp [satfinite] ue8m0x2 f32", "d:b16, a:f32, b:f32", **_since_a("8.6")),
    row("cvt rz|rp [satfinite] ue8m0x2 bf16x2", "d:b16, a:bf16x2", **_since_a("8.6")),
    row("cvt rn bf16x2 ue8m0x2", "d:bf16x2, a:b16", **_since_a("8.6")),
    # Rounded by the random bits in the last operand.
    row("cvt rs [relu] [satfinite] D:f16x2|bf16x2 f32", "d:D, a:f32, b:f32, bits:b32", **_RANDOM),
    row("cvt rs [relu] satfinite e4m3x4|e5m2x4 f32", "d:b32, a:f32*4, bits:b32", **_RANDOM),
    row("cvt pack sat D:u16|s16 s32", "d:u32, a:s32+, b:s32+", since="6.5"),
    row("cvt pack sat D:u8|s8 s32 b32", "d:u32, a:s32+, b:s32+, c:b32+", since="6.5"),
    row(f"cvta {_SPACE} T:u64", "d:T, a:T+/sym", needs=_SPACE_NEEDS),
    row(f"cvta to {_SPACE} T:u64", "d:T, a:T", needs=_SPACE_NEEDS),
    row("cvta param T:u64", "d:T, a:sym", since="7.7"),
    row("cvta param::entry T:u64", "d:T, a:sym", since="8.3"),
    row(
        f"isspacep {_SPACE}|param",
        "p:pred, a:u64",
        needs={**_SPACE_NEEDS, "param": "7.7"},
    ),
    row("mapa [shared::cluster] T:u32|u64", "d:T, a:T, b:u32+", since="7.8 sm_90"),
    row("mapa shared::cluster T:u32|u64", "d:T, a:sym, b:u32+", since="7.8 sm_90"),
    row("getctarank [shared::cluster] T:u32|u64", "d:u32, a:T", since="7.8 sm_90"),
    row("getctarank shared::cluster T:u32|u64", "d:u32, a:sym", since="7.8 sm_90"),
)

ROWS = (*MOVES, *CONVERSIONS)
