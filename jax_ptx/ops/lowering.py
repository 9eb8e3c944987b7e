"""When a row-wise primitive is the kernel and when its formula; and its other rules, in one place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jax_ptx.ops import partition, rowwise


def register(
    primitive: Primitive,
    *,
    abstract: Callable[..., Any],
    batch: Callable[..., Any],
    jvp: Callable[..., Any],
    formula: Callable[..., list[jax.Array]],
    launch_of: Callable[..., rowwise.Call | None] | None = None,
) -> None:
    """Gives a primitive its rules.

    Args:
        primitive: it has several results and a parameter `emulate`.
        abstract: its types.
        batch: its rule for vmap.
        jvp: its derivative.
        formula: the plain JAX formula.
        launch_of: the call of its kernel for given types; None: there is no kernel, or not for these.
    """
    primitive.def_abstract_eval(abstract)
    batching.primitive_batchers[primitive] = batch
    ad.primitive_jvps[primitive] = jvp
    if launch_of is None:
        mlir.register_lowering(primitive, mlir.lower_fun(formula, multiple_results=True))
        return
    mlir.register_lowering(primitive, _lowering(False, formula, launch_of))
    for platform, ptx in (("cpu", None), ("cuda", True)):
        rule = _lowering(ptx, formula, launch_of)
        # inline=False: call sites that are alike share one copy of the text.
        mlir.register_lowering(primitive, rule, platform=platform, inline=False)


def _lowering(
    ptx: bool | None,
    formula: Callable[..., list[jax.Array]],
    launch_of: Callable[..., rowwise.Call | None],
) -> Callable[..., Any]:
    """A lowering rule.

    Args:
        ptx: True: the kernel. None: the kernel where it is asked for, for the emulator checks, it does
            not compete with XLA. False: never.
        formula: as in `register`.
        launch_of: as in `register`.
    """
    lower_formula = mlir.lower_fun(formula, multiple_results=True)

    def rule(ctx: mlir.LoweringRuleContext, *operands: Any, **params: Any) -> Any:
        emulate = params["emulate"]
        if ptx is False and emulate:
            raise NotImplementedError(
                "rms_norm: implementation='ptx' runs on an NVIDIA GPU or, emulated, on a CPU; "
                "implementation=None takes the plain formula elsewhere"
            )
        call = launch_of(*ctx.avals_in, **params) if ptx or emulate else None
        if call is None:
            return lower_formula(ctx, *operands, **params)
        return partition.lower(ctx, operands, call)

    return rule
