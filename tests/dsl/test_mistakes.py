"""Mistakes that would be silent, or that only an assembler would find: each is told at its line."""

from __future__ import annotations

import numpy as np
import pytest

from jax_ptx import Tile, kernel, ptx, reg, smem
from jax_ptx.types import b64, e4m3, f16, f32, pred, s16, s32, u16, u32, u64
from tests.dsl.tracing import lines_of, refused, text_of
from tests.ptxas import assemble

# ---- registers of another kernel ----


@pytest.mark.parametrize(
    "use",
    [
        lambda r, s: r.__iadd__(1),
        lambda r, s: r + 1,
        lambda r, s: r < 1,
        lambda r, s: -r,
        lambda r, s: r.assign(3),
        lambda r, s: s[0],
        lambda r, s: s.__setitem__(0, 1),
        lambda r, s: ptx.warp.reduce_sum(r),
        lambda r, s: ptx.inst.add.u32(r, r, 1),
        lambda r, s: ptx.addr(s),
        lambda r, s: ptx.inst.mov.u32(reg.scalar(u32), s),
        lambda r, s: ptx.addr(r),
        lambda r, s: reg.from_(r, u32),
    ],
)
def test_what_belongs_to_a_kernel_that_is_over(use):
    kept = []

    @kernel
    def first():
        kept.extend((reg.scalar(u32), smem.alloc(u32, 4)))

    before = first.ptx()
    message = refused(lambda: use(*kept), TypeError)
    assert "belongs to another run of a kernel" in message
    assert first.ptx() == before


def test_an_iterator_that_is_closed_in_another_kernel():
    kept = []

    @kernel
    def first():
        kept.append(ptx.range_(3))
        next(kept[0])

    with pytest.raises(ValueError, match="still open"):
        first.ptx()
    assert "bra" not in text_of(lambda: kept.pop().close())


# ---- immediates ----


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (lambda: reg.scalar(u16) < 70000, "70000, which does not fit (0 to 65535)"),
        (lambda: reg.scalar(s16) + 70000, "70000 does not fit in 16 bits (-32768 to 65535)"),
        (lambda: reg.scalar(s32) < 2**32 - 1, "does not fit (-2147483648 to 2147483647)"),
        (lambda: reg.scalar(s32).max(2**31), "does not fit (-2147483648 to 2147483647)"),
        (
            lambda: ptx.inst.mul.wide.u32(reg.scalar(u64), reg.scalar(u32), 1 << 40),
            "1099511627776 does not fit in 32 bits",
        ),
        (
            lambda: ptx.inst.st.shared.v2.b16(ptx.addr(smem.alloc(u16, 2)), [1, 70000]),
            "70000 does not fit in 16 bits",
        ),
        (lambda: ptx.inst.lop3.b32(*[reg.scalar(u32)] * 4, 256), "256 is not between 0 and 255"),
        (lambda: ptx.bar.sync(16), "16 is not between 0 and 15"),
        (lambda: ptx.bar.sync(1, 48), "48 is not a multiple of 32"),
        (
            lambda: ptx.inst.cp.async_.ca.shared.global_(
                ptx.addr(reg.scalar(u32)), ptx.addr(reg.scalar(b64)), 12
            ),
            "12 must be 4 or 8 or 16 here",
        ),
        (
            lambda: ptx.inst.cp.async_.cg.shared.global_(
                ptx.addr(reg.scalar(u32)), ptx.addr(reg.scalar(b64)), 8
            ),
            "8 must be 16 here",
        ),
        (
            lambda: ptx.inst.cp.async_.bulk.shared__cluster.global_.mbarrier__complete_tx__bytes(
                *(ptx.addr(reg.scalar(t)) for t in (u32, b64)), 24, ptx.addr(reg.scalar(u32))
            ),
            "24 is not a multiple of 16",
        ),
    ],
)
def test_an_immediate_that_does_not_fit(body, message):
    assert message in refused(body)


def test_an_int_that_no_float_holds():
    assert "too large" in refused(lambda: ptx.inst.mov.f32(reg.scalar(f32), 10**400), OverflowError)


def test_the_table_says_what_an_immediate_is():
    def traced(x):
        (a,) = ptx.global_ptrs(x)
        f, h, policy = reg.scalar(f32), reg.scalar(f16), reg.scalar(u64)
        ptx.inst.slct.f32.s32(f, 1.0, 2, 5)
        ptx.inst.createpolicy.fractional.L2__evict_first.b64(policy, 0.5)
        ptx.inst.fma.rn.f32.f16(f, h, h, 1.0)
        ptx.inst.ld.global_.L2__cache_hint.f32(f, ptx.addr(a), 1 << 40)
        ptx.inst.mov.b64(policy, 1.0)
        ptx.inst.cvt.rn.f16.f32(h, 1.0)

    text = kernel(traced).ptx()
    for line in (
        "slct.f32.s32 %f0, 0f3F800000, 0f40000000, 5;",
        "createpolicy.fractional.L2::evict_first.b64 %rd2, 0f3F000000;",
        "fma.rn.f32.f16 %f0, %h0, %h0, 0f3F800000;",
        "ld.global.L2::cache_hint.f32 %f0, [%rd1], 1099511627776;",
        "mov.b64 %rd2, 0x3FF0000000000000;",
        "cvt.rn.f16.f32 %h0, 0f3F800000;",
    ):
        assert line in text
    assemble(text, "sm_100")


def test_a_reduction_takes_its_mask_as_an_int():
    def body():
        ptx.inst.redux.sync.min.f32(reg.scalar(f32), reg.scalar(f32), -1)

    assert lines_of(body, arch="sm_100a") == ["redux.sync.min.f32 %f0, %f1, -1;"]


def test_bits_of_bytes_and_numbers_of_numpy():
    def body():
        reg.scalar(e4m3, init=0x38)
        s = smem.alloc(e4m3, np.int64(4), align=np.int64(16))
        s[np.int32(1)] = 0x38
        r = reg.array(u32, np.int64(2))
        ptx.inst.ld.shared.u32(r[np.int64(1)], ptx.addr(s, np.int32(0)))
        with ptx.loop(np.int64(3)):
            r[0] += np.uint32(1)

    lines = lines_of(body)
    assert lines[0] == "mov.b16 %h0, 56;"
    assert lines[1:3] == ["mov.b16 %h1, 56;", "st.shared.b8 [smem_0+1], %h1;"]
    assemble(text_of(body), "sm_90")
    assert "256 is not the bits of" in refused(lambda: reg.scalar(e4m3, init=256))


# ---- addresses, destinations, symbols ----


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda x, s, r: ptx.inst.ld.global_.f32(reg.scalar(f32), ptx.addr(x)), "x is a parameter"),
        (lambda x, s, r: ptx.inst.ld.f32(reg.scalar(f32), ptx.addr("x")), "x is a parameter"),
        (lambda x, s, r: ptx.inst.ld.shared.f32(reg.scalar(f32), ptx.addr(x)), "x is a parameter"),
        (lambda x, s, r: ptx.inst.ld.global_.f32(reg.scalar(f32), ptx.addr(s)), "in shared memory"),
        (lambda x, s, r: ptx.inst.ld.param.f32(reg.scalar(f32), ptx.addr(s)), "in shared memory"),
        (lambda x, s, r: ptx.inst.ld.global_.f32(reg.scalar(f32), ptx.addr(r)), "has 32 bits"),
        (lambda x, s, r: ptx.inst.ld.f32(reg.scalar(f32), ptx.addr(r)), "has 32 bits"),
        (
            lambda x, s, r: ptx.inst.cp.async_.ca.shared.global_(ptx.addr(s), ptx.addr(r), 4),
            "has 32 bits",
        ),
        (
            lambda x, s, r: ptx.inst.cp.async_.ca.shared.global_(ptx.addr(x), ptx.addr(s), 4),
            "x is a parameter",
        ),
    ],
)
def test_an_address_of_another_space(use, message):
    @kernel(in_specs=(Tile(4, f32),), out_specs=())
    def k(x):
        use(x, smem.alloc(f32, 4), reg.scalar(u32))

    with pytest.raises(ValueError, match=message) as raised:
        k.ptx()
    assert str(raised.value).startswith(f"kernel k, {__file__}:")


def test_addresses_that_ptxas_takes():
    def body():
        s, r, f = smem.alloc(f32, 256), reg.scalar(u32, 0), reg.scalar(f32)
        bar = smem.alloc(b64, 1)
        ptx.inst.ld.f32(f, ptx.addr(s))
        ptx.inst.ld.shared.f32(f, ptx.addr(r))
        ptx.inst.mbarrier.init.b64(ptx.addr(bar), 1)
        ptx.inst.mbarrier.init.shared.b64(ptx.addr(r), 1)
        ptx.inst.cp.async_.ca.shared.global_(ptx.addr(r), ptx.addr(reg.scalar(b64, 0)), 4)
        ptx.inst.st.async_.mbarrier__complete_tx__bytes.u32(ptx.addr(r), 1, ptx.addr(r))

    assemble(text_of(body), "sm_90")


@pytest.mark.parametrize(
    "body",
    [
        lambda: ptx.inst.setp.lt.u32(~reg.scalar(pred), 1, 2),
        lambda: ptx.inst.setp.lt.u32((reg.scalar(pred), ~reg.scalar(pred)), 1, 2),
    ],
)
def test_a_negated_predicate_is_no_destination(body):
    assert "!%p" in (message := refused(body, TypeError))
    assert "is no destination: give the predicate register itself" in message


def a_label_that_nobody_puts():
    ptx.bra("out")  # here
    ptx.label("outer")


def a_symbol_that_nobody_has():
    ptx.inst.mov.u32(reg.scalar(u32), "table")  # here


@pytest.mark.parametrize("body", [a_label_that_nobody_puts, a_symbol_that_nobody_has])
def test_an_unknown_symbol(body):
    assert "there is no label or symbol" in refused(body, line="# here")


def test_symbols_that_are_known():
    def body():
        ptx.bra("out")
        smem.alloc(f32, 4, name="table")
        ptx.inst.mov.u32(reg.scalar(u32), "table")
        ptx.inst.mov.u32(reg.scalar(u32), "table+4")
        ptx.inst.mov.u32(reg.scalar(u32), "%tid.x")
        ptx.label("out")

    assert "mov.u32 %r2, %tid.x;" in lines_of(body)
    assemble(text_of(body), "sm_80")


def test_special_registers_as_strings_are_checked():
    assert "needs target sm_90" in refused(
        lambda: ptx.inst.mov.u32(reg.scalar(u32), "%cluster_ctarank"), arch="sm_80"
    )
    assert "a special register (.u32)" in refused(
        lambda: ptx.inst.mov.u64(reg.scalar(u64), "%clock")
    )
    assert "ptx.special has" in refused(lambda: ptx.inst.mov.u32(reg.scalar(u32), "%ctaid"))


def test_a_special_register_in_arithmetic():
    message = refused(
        lambda: ptx.inst.mad.lo.u32(
            reg.scalar(u32), ptx.special.ctaid.x(), 128, ptx.special.tid.x()
        )
    )
    assert "reg.from_(ptx.special.ctaid.x(), u32) copies it into one" in message
    message = refused(lambda: ptx.inst.add.u32(reg.scalar(u32), "%tid.x", 1))
    assert "reg.from_(ptx.special.tid.x(), u32) copies it into one" in message


def test_a_version_that_there_is_not():
    with pytest.raises(ValueError, match=r"version=\(99, 0\) is newer than any that is known"):
        text_of(ptx.bar.sync, version=(99, 0))


# ---- other words ----


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda x, r: bool(r), "ptx.if_"),
        (lambda x, r: range(r), "ptx.range_"),
        (lambda x, r: [1, 2][r], "smem.alloc"),
        (lambda x, r: reg.array(u32, 2)[r], "smem.alloc"),
        (lambda x, r: int(r), "ptx.inst.cvt"),
        (lambda x, r: 1 << r, "reg.scalar(u32, 1) << %r0"),
        (lambda x, r: r**2, "PTX has no `**`"),
        (lambda x, r: x + 4, "ptx.global_ptrs(x)"),
        (lambda x, r: x[0], "ptx.global_ptrs(x)"),
        (lambda x, r: ptx.inst.add.u32(r, r, 1, prd=r), "takes operands and pred=, got prd="),
        (lambda x, r: ptx.inst.ld.globl.f32(r), "in Python `ptx.inst.ld.global_.f32`"),
        (lambda x, r: ptx.inst.ld.global_.f32(r), "ptx.inst.ld.global_.f32(%r0): "),
        (lambda x, r: ptx.inst.ld.global_.b128(r), "types of 128 bits"),
        (
            lambda x, r: (
                ptx.inst.mma.sync.aligned.m16n8k64.row.col.kind__mxf4.block_scale.f32.e2m1.e2m1.f32()
            ),
            "scales of their own): write it as text with ptx.raw",
        ),
    ],
)
def test_messages_that_help(use, message):
    @kernel
    def k(x):
        use(x, reg.scalar(u32))

    with pytest.raises((TypeError, ValueError)) as raised:
        k.ptx()
    assert str(raised.value).startswith(f"kernel k, {__file__}:")
    assert message in str(raised.value)


def test_many_shared_arrays_are_laid_out_once():
    def body():
        for _ in range(3000):
            smem.alloc(f32, 4)

    assert ".shared .align 16 .b8 smem_2999[16];" in text_of(body)
    too_much = refused(lambda: [smem.alloc(f32, 1024) for _ in range(100)])
    assert "bytes of shared memory were asked for" in too_much
