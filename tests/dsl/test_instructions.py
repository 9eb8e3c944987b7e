"""`ptx.inst` and its operands, special registers, pointers, barriers, warp reductions."""

from __future__ import annotations

import re

import pytest

from jax_ptx import Tile, kernel, ptx, reg, smem
from jax_ptx.types import b16, b32, b64, bf16x2, f32, f64, pred, s32, u32, u64
from tests.dsl.tracing import lines_of


@pytest.mark.parametrize(
    ("instruction", "name"),
    [
        (ptx.inst.ld.global_.v4.f32, "ld.global.v4.f32"),
        (ptx.inst.and_.b32, "and.b32"),
        (ptx.inst.cp.async_.cg.shared.global_, "cp.async.cg.shared.global"),
        (ptx.inst.ld.global_.nc.L1__no_allocate.f32, "ld.global.nc.L1::no_allocate.f32"),
        (
            ptx.inst.mbarrier.try_wait.parity.shared__cta.b64,
            "mbarrier.try_wait.parity.shared::cta.b64",
        ),
        (ptx.inst.cp.async_.bulk.tensor._2d, "cp.async.bulk.tensor.2d"),
    ],
)
def test_spelling(instruction, name):
    with pytest.raises(
        ValueError, match=f"`{re.escape(name)}` was given|`{re.escape(name)}` is out"
    ):
        lines_of(lambda: instruction("too", "many", "operands", "for", "any", "of", "them"))


@pytest.mark.parametrize(
    "written", ["ld.global_.f32", "and_.b32", "cp.async_.bulk._2d", "mapa.shared__cluster.u32"]
)
def test_an_instruction_is_shown_as_it_is_written(written):
    instruction = ptx.inst
    for attribute in written.split("."):
        instruction = getattr(instruction, attribute)
    assert repr(instruction) == f"ptx.inst.{written}"


def test_operands():
    def body():
        r, f, d, w = reg.scalar(u32), reg.scalar(f32), reg.scalar(f64), reg.scalar(b64)
        p, q = reg.scalar(pred), reg.scalar(pred)
        a, s = reg.array(f32, 4), smem.alloc(f32, 8)
        ptx.inst.mov.u32(r, -1)
        ptx.inst.mov.f32(f, 1.0)
        ptx.inst.mov.f32(f, 0)  # an int where the instruction computes with floats
        ptx.inst.fma.rn.f64(d, d, 0.5, d)
        ptx.inst.mov.b32(r, 1.0)
        ptx.inst.mov.u32(r, "0x1F")
        ptx.inst.mov.f32(f, "0f3F800000")
        ptx.inst.mov.u32(r, s)
        ptx.inst.ld.shared.f32(f, ptx.addr(s, 8))
        ptx.inst.ld.global_.v4.f32(a, ptx.addr(w, -16))
        ptx.inst.st.global_.v2.f32(ptx.addr(w), [a[0], 1.0])
        ptx.inst.mov.b64(w, [r, r])
        ptx.inst.setp.lt.u32((p, q), r, 7, pred=~p)
        ptx.inst.shfl.sync.bfly.b32((r, "_"), r, 1, 31, -1)

    assert lines_of(body) == [
        "mov.u32 %r0, -1;",
        "mov.f32 %f0, 0f3F800000;",
        "mov.f32 %f0, 0f00000000;",
        "fma.rn.f64 %fd0, %fd0, 0d3FE0000000000000, %fd0;",
        "mov.b32 %r0, 0x3F800000;",
        "mov.u32 %r0, 0x1F;",
        "mov.f32 %f0, 0f3F800000;",
        "mov.u32 %r0, smem_0;",
        "ld.shared.f32 %f0, [smem_0+8];",
        "ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd0+-16];",
        "st.global.v2.f32 [%rd0], {%f1, 0f3F800000};",
        "mov.b64 %rd0, {%r0, %r0};",
        "@!%p0 setp.lt.u32 %p0|%p1, %r0, 7;",
        "shfl.sync.bfly.b32 %r0|_, %r0, 1, 31, -1;",
    ]


def test_an_instruction_returns_its_destination():
    def body():
        r = reg.scalar(u32)
        assert ptx.inst.mov.u32(r, 1) is r
        assert ptx.inst.st.shared.u32(ptx.addr(smem.alloc(u32, 1)), r) is None

    lines_of(body)


def test_global_pointers():
    seen = []

    @kernel(in_specs=(Tile("m", 8, f32), Tile(8, f32)), out_specs=(Tile("m", 8, f32),))
    def k(x, w, y):
        seen.extend([x.shape, x.dtype, x.name, w.shape])
        px, pw = ptx.global_ptrs(x, w)
        (py,) = ptx.global_ptrs(y)
        assert {p.dtype for p in (px, pw, py)} == {b64}

    text = k.ptx(m=3)
    assert seen == [(3, 8), f32, "x", (8,)]
    assert "    .param .u64 x,\n    .param .u64 w,\n    .param .u64 y\n)" in text
    for name in ("x", "w", "y"):
        assert text.count(f", [{name}];") == 1
    assert text.count("cvta.to.global.u64") == 3


def test_special_registers():
    def body():
        special = ptx.special
        for source, dtype in (
            (special.tid.x(), u32),
            (special.ntid.y(), u32),
            (special.ctaid.z(), u32),
            (special.nctaid.x(), u32),
            (special.laneid(), u32),
            (special.warpid(), u32),
            (special.smid(), u32),
            (special.clock(), u32),
            (special.clock64(), u64),
            (special.cluster_ctaid.x(), u32),
            (special.cluster_ctarank(), u32),
        ):
            assert source.dtype is dtype
            reg.from_(source, dtype)

    sources = [line.split(", ")[1] for line in lines_of(body)]
    assert sources == [
        *("%tid.x;", "%ntid.y;", "%ctaid.z;", "%nctaid.x;", "%laneid;", "%warpid;", "%smid;"),
        *("%clock;", "%clock64;", "%cluster_ctaid.x;", "%cluster_ctarank;"),
    ]


def test_an_unknown_special_register():
    with pytest.raises(
        AttributeError, match=r"ptx.special.lane: there is no such register; one of tid"
    ):
        _ = ptx.special.lane


def test_barriers():
    def body():
        ptx.bar.sync()
        ptx.bar.sync(1, 64)
        ptx.cluster.arrive(aligned=True)
        ptx.cluster.wait()
        ptx.ret(pred=reg.scalar(pred))

    assert lines_of(body) == [
        "bar.sync 0;",
        "bar.sync 1, 64;",
        "barrier.cluster.arrive.aligned;",
        "barrier.cluster.wait;",
        "@%p0 ret;",
    ]


@pytest.mark.parametrize(
    ("dtype", "method", "operation", "prefix"),
    [
        (f32, "reduce_sum", "add.rn.f32", "%f"),
        (f32, "reduce_max", "max.f32", "%f"),
        (u32, "reduce_sum", "add.u32", "%r"),
        (s32, "reduce_min", "min.s32", "%r"),
    ],
)
def test_a_warp_reduction_is_a_butterfly_in_place(dtype, method, operation, prefix):
    def body():
        value = reg.scalar(dtype)
        assert getattr(ptx.warp, method)(value, width=8) is None

    v = f"{prefix}0"
    expected = []
    for step, distance in enumerate((4, 2, 1), 1):
        expected += [
            f"shfl.sync.bfly.b32 {prefix}{step}, {v}, {distance}, 31, -1;",
            f"{operation} {v}, {v}, {prefix}{step};",
        ]
    assert lines_of(body) == expected


def test_a_warp_reduction_of_64_bits_moves_halves():
    lines = lines_of(lambda: ptx.warp.reduce_sum(reg.scalar(f64), width=2))
    assert lines == [
        "mov.b64 {%r0, %r1}, %fd0;",
        "shfl.sync.bfly.b32 %r0, %r0, 1, 31, -1;",
        "shfl.sync.bfly.b32 %r1, %r1, 1, 31, -1;",
        "mov.b64 %fd1, {%r0, %r1};",
        "add.rn.f64 %fd0, %fd0, %fd1;",
    ]


@pytest.mark.parametrize("width", [0, 1, 3, 33, 64])
def test_widths_of_a_warp_reduction(width):
    with pytest.raises(ValueError, match=f"width must be a power of two from 2 to 32, got {width}"):
        lines_of(lambda: ptx.warp.reduce_sum(reg.scalar(f32), width=width))


@pytest.mark.parametrize("dtype", [b16, bf16x2])
def test_types_of_a_warp_reduction(dtype):
    with pytest.raises(TypeError, match=f"takes a register of 32 or 64 bits, got {dtype}"):
        lines_of(lambda: ptx.warp.reduce_sum(reg.scalar(dtype)))


def test_raw_lines_are_taken_as_they_are():
    def body():
        r = reg.scalar(b32)
        ptx.raw(f"mov.b32 {r}, 5;")

    assert lines_of(body) == ["mov.b32 %r0, 5;"]
