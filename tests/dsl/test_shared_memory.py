"""Shared memory: declarations, element access, and the limit of each target."""

from __future__ import annotations

import inspect

import pytest

from jax_ptx import kernel, ptx, reg, smem
from jax_ptx.types import bf16, f32, f64, s32, u8, u32, u64
from tests.dsl.tracing import lines_of, text_of
from tests.ptxas import assemble, assemble_everywhere


def test_declarations():
    def body():
        smem.alloc(f32, (4, 2))
        smem.alloc(u8, 10, name="flags")
        smem.alloc(f64, (3,), align=128)

    text = text_of(body)
    assert ".shared .align 16 .b8 smem_0[32];" in text
    assert ".shared .align 16 .b8 flags[10];" in text
    assert ".shared .align 128 .b8 smem_2[24];" in text
    assert "extern" not in text


def test_constant_indices_fold():
    def body():
        s = smem.alloc(f32, (4, 8))
        s[1, 2] = s[0, 3]
        s[0, 0] = 1.0

    assert lines_of(body) == [
        "ld.shared.f32 %f0, [smem_0+12];",
        "st.shared.f32 [smem_0+40], %f0;",
        "mov.f32 %f1, 0f3F800000;",
        "st.shared.f32 [smem_0], %f1;",
    ]


def test_register_indices():
    def body():
        s = smem.alloc(bf16, (4, 8))
        value = s[reg.scalar(u32), 3]
        assert value.dtype is bf16
        s[2, reg.scalar(s32)] = value
        s[reg.scalar(u64), ptx.special.tid.x()] = value

    assert lines_of(body) == [
        "mov.u32 %r1, smem_0;",
        "mad.lo.u32 %r2, %r0, 16, %r1;",
        "ld.shared.b16 %h0, [%r2+6];",
        "mov.u32 %r4, smem_0;",
        "mad.lo.u32 %r5, %r3, 2, %r4;",
        "st.shared.b16 [%r5+32], %h0;",
        "cvt.u32.u64 %r6, %rd0;",
        "mov.u32 %r7, smem_0;",
        "mad.lo.u32 %r8, %r6, 16, %r7;",
        "mov.u32 %r9, %tid.x;",
        "mad.lo.u32 %r10, %r9, 2, %r8;",
        "st.shared.b16 [%r10], %h0;",
    ]


def test_the_right_side_comes_first():
    def body():
        s = smem.alloc(u32, (4,))
        i = reg.scalar(u32)
        s[i + 1] = i + 2
        s[i] += 1

    lines = lines_of(body)
    assert lines[:2] == ["add.u32 %r1, %r0, 2;", "add.u32 %r2, %r0, 1;"]
    assert lines[-5:] == [
        "ld.shared.u32 %r7, [%r6];",
        "add.u32 %r7, %r7, 1;",
        "mov.u32 %r8, smem_0;",
        "mad.lo.u32 %r9, %r0, 4, %r8;",
        "st.shared.u32 [%r9], %r7;",
    ]


def test_a_part_of_an_array():
    def body():
        stages = smem.alloc(f32, (3, 4, 8))
        second = stages.part(1)
        assert (second.shape, second.n_bytes) == ((4, 8), 128)
        second[2, 1]
        ptx.inst.mov.u32(reg.scalar(u32), stages.part(2, 3))

    assert lines_of(body) == ["ld.shared.f32 %f0, [smem_0+196];", "mov.u32 %r0, smem_0+352;"]


def big_arrays():
    first = smem.alloc(f32, (100, 128))
    second = smem.alloc(f32, 64)
    second[3] = first[1, 2]
    ptx.inst.mov.u32(reg.scalar(u32), second)


def test_more_than_48_kib_becomes_one_dynamic_array():
    @kernel(in_specs=(), out_specs=())
    def k():
        big_arrays()

    text = k.ptx()
    assert ".extern .shared .align 128 .b8 smem[];" in text
    assert "ld.shared.f32 %f0, [smem+520];" in text
    assert "st.shared.f32 [smem+51212], %f0;" in text
    assert "mov.u32 %r0, smem+51200;" in text
    assert k.launch().smem_bytes == 51200 + 256
    assemble_everywhere(text)


def test_exactly_48_kib_stays_static():
    @kernel(in_specs=(), out_specs=())
    def k():
        smem.alloc(u8, 48 * 1024)

    assert "extern" not in k.ptx()
    assert k.launch().smem_bytes == 0
    assemble(k.ptx(), "sm_80")


def test_dynamic_memory_of_the_author():
    @kernel(in_specs=(), out_specs=(), smem=1000)
    def k():
        base = smem.base()
        assert base.dtype is u32
        smem.alloc(f32, 8)[0] = 1.0

    assert "mov.u32 %r0, smem;" in k.ptx()
    assert "[smem_0], %f0" in k.ptx()
    assert k.launch().smem_bytes == 1000

    @kernel(in_specs=(), out_specs=(), smem=1000)
    def both():
        smem.alloc(f32, 15000)[0] = 1.0

    assert "[smem+1008], %f0" in both.ptx()
    assert both.launch().smem_bytes == 61008


@pytest.mark.parametrize(
    ("arch", "kib", "limit"),
    [("sm_80", 164, 166912), ("sm_89", 100, 101376), ("sm_90a", 228, 232448)],
)
def test_more_than_the_target_has(arch, kib, limit):
    def body():
        smem.alloc(u8, kib * 1024)

    with pytest.raises(
        ValueError,
        match=rf"{kib * 1024} bytes of shared memory were asked for \(smem_0 {kib * 1024}\), and a CTA "
        f"has at most {limit} on {arch}",
    ):
        text_of(body, arch=arch)


def test_the_error_is_at_the_line_of_the_array_that_is_too_much():
    line = inspect.currentframe().f_lineno + 4  # type: ignore[union-attr]

    def body():
        smem.alloc(u8, 160 * 1024)
        smem.alloc(u8, 4 * 1024)
        smem.alloc(u8, 4)

    with pytest.raises(ValueError, match=f"kernel traced, {__file__}:{line}: 167936 bytes"):
        text_of(body, arch="sm_80")


def test_auto_takes_a_target_that_has_enough():
    assert ".target sm_80" in text_of(lambda: smem.alloc(u8, 160 * 1024))
    assert ".target sm_90" in text_of(lambda: smem.alloc(u8, 200 * 1024))
    with pytest.raises(ValueError, match="232448 on any target"):
        text_of(lambda: smem.alloc(u8, 228 * 1024))


@pytest.mark.parametrize(
    ("use", "kind", "message"),
    [
        (lambda s: s[4, 0], IndexError, "index 0 of smem_0 is 4; the dimension has size 4"),
        (lambda s: s[0, -1], IndexError, "index 1 of smem_0 is -1"),
        (lambda s: s[0, 0, 0], IndexError, "smem_0 has 2 dimensions, got 3 indices"),
        (lambda s: s.__setitem__(0, 1.0), IndexError, "smem_0 has 2 dimensions, got 1 indices"),
        (lambda s: s[1.0, 0], TypeError, "index 0 of smem_0 is 1.0; it takes an int or a register"),
        (lambda s: s[reg.scalar(f32), 0], TypeError, "it takes 32 or 64 bits"),
        (
            lambda s: s.__setitem__((0, 0), reg.scalar(bf16)),
            TypeError,
            "smem_0 holds f32, and what",
        ),
        (lambda s: s.__setitem__((0, 0), reg.scalar(u32)), TypeError, "smem_0 holds f32, and what"),
        (
            lambda s: s.__setitem__((0, 0), None),
            TypeError,
            "what is stored is a register or a number",
        ),
        (lambda s: smem.alloc(f32, 0), ValueError, "dimensions must be ints of 1 or more"),
        (lambda s: smem.alloc(f32, 4, align=3), ValueError, "align must be a power of two"),
        (lambda s: smem.base(), ValueError, "the kernel asks for no dynamic memory"),
    ],
)
def test_what_is_refused(use, kind, message):
    with pytest.raises(kind, match=message):
        lines_of(lambda: use(smem.alloc(f32, (4, 8))))
