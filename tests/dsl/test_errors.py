"""Errors name the kernel, the author's file and line, the form as written, and what is allowed."""

from __future__ import annotations

import inspect
import re

import pytest

from jax_ptx import kernel, ptx, reg, smem
from jax_ptx.dsl.isa import InstructionError
from jax_ptx.types import f16, f32, u32
from tests.dsl.tracing import text_of


def here(offset: int = 0) -> str:
    """File and line of the caller."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return f"{__file__}:{frame.f_back.f_lineno + offset}"


def message_of(k, kind=Exception) -> str:
    with pytest.raises(kind) as raised:
        k.ptx()
    return str(raised.value)


def test_an_unknown_modifier():
    line = here(5)

    @kernel
    def rms_norm(x):
        a = reg.scalar(u32)
        ptx.inst.add.u31(a, a, 4)

    text = message_of(rms_norm, InstructionError)
    assert text.startswith(f"kernel rms_norm, {line}: ptx.inst.add.u31(%r0, %r0, 4): ")
    assert "`.u31` is no modifier of `add`" in text
    assert "the nearest valid form is" in text


def test_an_unknown_instruction():
    @kernel
    def k():
        ptx.inst.fmad.rn.f32(reg.scalar(f32), 1.0)

    assert "there is no instruction `fmad` in the table; the nearest are" in message_of(k)


@pytest.mark.parametrize(
    ("emit", "message"),
    [
        (
            lambda r, f: ptx.inst.add.u32(r, r),
            r"ptx.inst.add.u32\(%r0, %r0\): `add.u32` was given 2 operands; it is written",
        ),
        (
            lambda r, f: ptx.inst.add.u32(r, r, f),
            r"operand 3 \(b\) of `add.u32 d, a, b` is a .f32 register; allowed: a .u32",
        ),
        (
            lambda r, f: ptx.inst.mov.u32(r, 2**32),
            r"ptx.inst.mov.u32\(%r0, 4294967296\): 4294967296 does not fit in 32 bits",
        ),
        (
            lambda r, f: ptx.inst.add.u32(r, r, 1.5),
            r"operand 3 \(b\) of `add.u32 d, a, b` is a float immediate; allowed: a .u32",
        ),
        (
            lambda r, f: ptx.inst.add.u32(r, r, None),
            "NoneType is not an operand, which is a register",
        ),
        (
            lambda r, f: ptx.inst.add.f16(reg.scalar(f16), reg.scalar(f16), 1.0),
            r"is a float immediate; allowed: .* and no immediate: reg.scalar\(dtype, init=value\)",
        ),
        (
            lambda r, f: ptx.inst.mov.u32(r, 1, pred=r),
            "pred= takes a predicate register or its negation",
        ),
        (
            lambda r, f: ptx.inst.ld.global_.f32(f, r),
            r"operand 2 \(a\) of `ld.global.f32 d, \[a\]`",
        ),
        (lambda r, f: ptx.addr(r, r), "add a register to the base, as in ptx.addr"),
        (
            lambda r, f: ptx.addr(5),
            "ptx.addr takes a register, a shared array, a tensor or a symbol",
        ),
        (
            lambda r, f: ptx.global_ptrs(r),
            r"ptx.global_ptrs takes the kernel's tensors, got Reg\(%r0, u32\)",
        ),
        (lambda r, f: ptx.inst.wgmma.fence.sync.aligned(), "outside the instruction table"),
        (lambda r, f: ptx.raw(""), "ptx.raw takes a line of PTX"),
    ],
)
def test_operands(emit, message):
    with pytest.raises((TypeError, ValueError), match=message) as raised:
        text_of(lambda: emit(reg.scalar(u32), reg.scalar(f32)))
    assert re.match(rf"kernel traced, {re.escape(__file__)}:\d+: ", str(raised.value))


def test_the_line_is_the_author_s_inside_helpers_operators_and_blocks():
    def helper(s):
        with ptx.if_(s[0] == 0):
            for _ in ptx.range_(3):
                s[0] + 1.5

    helper_line = inspect.getsourcelines(helper)[1] + 3

    @kernel
    def k():
        helper(smem.alloc(u32, (1,)))

    assert message_of(k, TypeError).startswith(
        f"kernel k, {__file__}:{helper_line}: `+` of a u32 register"
    )


def test_the_target_lacks_a_form():
    def body():
        ptx.cluster.sync()

    with pytest.raises(
        ValueError,
        match=r"ptx.inst.barrier.cluster.arrive\(\): `barrier.cluster.arrive` needs target sm_90; "
        r'this kernel is for sm_80: arch="sm_90" or arch="auto" has it',
    ):
        text_of(body, arch="sm_80")


def test_the_version_lacks_a_form():
    with pytest.raises(ValueError, match=r"needs PTX version 7.8; this kernel is for version 7.4"):
        text_of(ptx.cluster.sync, version=(7, 4))
    with pytest.raises(
        ValueError, match=r"target sm_90a needs PTX version 8.0, got version=\(7, 8\)"
    ):
        text_of(ptx.bar.sync, arch="sm_90a", version=(7, 8))


def test_a_special_register_of_clusters_needs_a_target():
    with pytest.raises(
        ValueError, match="%cluster_ctarank needs target sm_90; this kernel is for sm_80"
    ):
        text_of(lambda: ptx.special.cluster_ctarank(), arch="sm_80")


def test_an_error_of_the_author_keeps_its_type_and_says_which_kernel():
    @kernel
    def k():
        return {}["missing"]

    with pytest.raises(KeyError, match="missing") as raised:
        k.ptx()
    assert raised.value.__notes__ == ["while tracing the kernel k"]
