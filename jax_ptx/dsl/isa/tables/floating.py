"""Floating-point arithmetic, in full and in half precision, scalar and packed."""

from __future__ import annotations

from jax_ptx.dsl.isa.row import row

_ROUND = "rn|rz|rm|rp"
_A, _AB, _ABC = "d:T, a:T+", "d:T, a:T+, b:T+", "d:T, a:T+, b:T+, c:T+"
# There are no immediates of half or packed types.
_HA, _HAB, _HABC = "d:T, a:T", "d:T, a:T, b:T", "d:T, a:T, b:T, c:T"

ROWS = (
    row(f"add|sub|mul [{_ROUND}] [ftz] [sat] T:f32", _AB),
    row(f"add|sub|mul [{_ROUND}] T:f64", _AB),
    row("add|sub|mul [rn] [ftz] [sat] T:f16|f16x2", _HAB),
    row("add|sub|mul [rn] T:bf16|bf16x2", _HAB, since="7.8 sm_90"),
    row(f"add|sub|mul [{_ROUND}] [ftz] T:f32x2", _HAB, since="8.6 sm_100"),
    row(f"add|sub [{_ROUND}] [sat] f32 T:f16|bf16", "d:f32, a:T, c:f32+", since="8.6 sm_100"),
    row(f"fma|mad {_ROUND} [ftz] [sat] T:f32", _ABC),
    row(f"fma|mad {_ROUND} T:f64", _ABC),
    row("fma rn [ftz] [sat] T:f16|f16x2", _HABC),
    row("fma rn [ftz] relu T:f16|f16x2", _HABC, since="7.0 sm_80"),
    row("fma rn [relu] T:bf16|bf16x2", _HABC, since="7.0 sm_80"),
    row("fma rn oob [relu] T:f16|f16x2|bf16|bf16x2", _HABC, since="8.1 sm_90"),
    row(f"fma {_ROUND} [ftz] T:f32x2", _HABC, since="8.6 sm_100"),
    row(f"fma {_ROUND} [sat] f32 T:f16|bf16", "d:f32, a:T, b:T, c:f32+", since="8.6 sm_100"),
    row("div approx|full [ftz] T:f32", _AB),
    row(f"div {_ROUND} [ftz] T:f32", _AB),
    row(f"div {_ROUND} T:f64", _AB),
    row("abs|neg [ftz] T:f32", _A),
    row("abs|neg T:f64", _A),
    row("neg [ftz] T:f16|f16x2", _HA),
    row("abs [ftz] T:f16|f16x2", _HA, since="6.5"),
    row("abs|neg T:bf16|bf16x2", _HA, since="7.0 sm_80"),
    row("min|max [ftz] [NaN] T:f32", _AB, needs={"NaN": "7.0 sm_80"}),
    row("min|max [ftz] [NaN] xorsign abs T:f32", _AB, since="7.2 sm_86"),
    row("min|max [ftz] [NaN] [abs] T:f32", _ABC, since="8.8 sm_100"),
    row("min|max T:f64", _AB),
    row("min|max [ftz] [NaN] T:f16|f16x2", _HAB, since="7.0 sm_80"),
    row("min|max [NaN] T:bf16|bf16x2", _HAB, since="7.0 sm_80"),
    row("min|max [ftz] [NaN] xorsign abs T:f16|f16x2", _HAB, since="7.2 sm_86"),
    row("min|max [NaN] xorsign abs T:bf16|bf16x2", _HAB, since="7.2 sm_86"),
    row("rcp|sqrt approx [ftz] T:f32", _A),
    row(f"rcp|sqrt {_ROUND} [ftz] T:f32", _A),
    row(f"rcp|sqrt {_ROUND} T:f64", _A),
    row("rcp approx ftz T:f64", _A),
    row("rsqrt approx [ftz] T:f32|f64", _A),
    row("sin|cos|lg2|ex2 approx [ftz] T:f32", _A),
    row("ex2 approx T:f16|f16x2", _HA, since="7.0"),
    row("ex2 approx ftz T:bf16|bf16x2", _HA, since="7.8 sm_90"),
    row("tanh approx T:f32", _A, since="7.0"),
    row("tanh approx T:f16|f16x2", _HA, since="7.0"),
    row("tanh approx T:bf16|bf16x2", _HA, since="7.8 sm_90"),
    row("testp finite|infinite|number|notanumber|normal|subnormal T:f32|f64", "p:pred, a:T+"),
    row("copysign T:f32|f64", _AB),
)
