"""Integer arithmetic."""

from __future__ import annotations

from jax_ptx.dsl.isa.row import row

_INT = "u16|u32|u64|s16|s32|s64"
_AB, _ABC = "d:T, a:T+, b:T+", "d:T, a:T+, b:T+, c:T+"

ROWS = (
    row(f"add T:{_INT}", _AB),
    row("add [sat] T:s32", _AB),
    row("add T:u16x2|s16x2", "d:T, a:T, b:T", since="8.0 sm_90"),
    row(f"sub T:{_INT}", _AB),
    row("sub [sat] T:s32", _AB),
    row("add|sub cc T:u32|s32|u64|s64", _AB),
    row("addc|subc [cc] T:u32|s32|u64|s64", _AB),
    row(f"mul hi|lo T:{_INT}", _AB),
    row("mul wide T:u16|u32|s16|s32", "d:T.wide, a:T+, b:T+"),
    row(f"mad hi|lo T:{_INT}", _ABC),
    row("mad hi sat T:s32", _ABC),
    row("mad wide T:u16|u32|s16|s32", "d:T.wide, a:T+, b:T+, c:T.wide+"),
    row("mad hi|lo cc T:u32|s32|u64|s64", _ABC),
    row("madc hi|lo [cc] T:u32|s32|u64|s64", _ABC),
    row("mul24 hi|lo T:u32|s32", _AB),
    row("mad24 hi|lo T:u32|s32", _ABC),
    row("mad24 hi sat T:s32", _ABC),
    row("sad T:" + _INT, _ABC),
    row(f"div|rem T:{_INT}", _AB),
    row("abs|neg T:s16|s32|s64", "d:T, a:T+"),
    row(f"min|max T:{_INT}", _AB),
    row("min|max T:u16x2|s16x2", "d:T, a:T, b:T", since="8.0 sm_90"),
    row("min|max relu T:s16x2", "d:T, a:T, b:T", since="8.0 sm_90"),
    row("min|max relu T:s32", _AB, since="8.0 sm_90"),
    row("popc|clz T:b32|b64", "d:u32, a:T+"),
    row("bfind [shiftamt] T:u32|u64|s32|s64", "d:u32, a:T+"),
    row("brev T:b32|b64", "d:T, a:T+"),
    row("fns b32", "d:b32, mask:u32+, base:u32+, offset:s32+"),
    row("bfe T:u32|u64|s32|s64", "d:T, a:T+, b:u32+, c:u32+"),
    row("bfi T:b32|b64", "f:T, a:T+, b:T+, c:u32+, d:u32+"),
    row("bmsk clamp|wrap b32", "d:u32, a:u32+, b:u32+", since="7.6"),
    row("szext clamp|wrap T:u32|s32", "d:T, a:T+, b:u32+", since="7.6"),
    row("dp4a A:u32|s32 B:u32|s32", "d:s32, a:A+, b:B+, c:s32+"),
    row("dp2a lo|hi A:u32|s32 B:u32|s32", "d:s32, a:A+, b:B+, c:s32+"),
)
