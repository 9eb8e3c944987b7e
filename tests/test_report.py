"""Reading a text: statements and accesses; and what a report says of a kernel, by target."""

from __future__ import annotations

import pytest

from jax_ptx import Tile, kernel, ptx, ptx_kernel, reg, toolkit
from jax_ptx.ptx_text import access_alignment, statements
from jax_ptx.report import Report, report
from jax_ptx.types import f32, u32

FOREIGN = """
// .entry k(.param .u64 no) { ld.global.f64 %fd0, [%rd0]; }
.version 8.0
.target sm_80
.address_size 64
.file 1 "http://host/a{b;.cu"
.global .b32 table[2] = {1, 2};
.func (.param .b32 r) f (.param .b64 a) { st.global.v2.f64 [a], {%fd0, %fd1}; ret; }
.visible .entry other() { mul.f32 %f0, %f0, %f0; ret; }
.visible .entry k(.param .u64 x)
.reqntid 128
{
    .reg .b32 %r<3>; /* add.s32 %r1, %r1, 1; { */ .loc 1 2 3
    .loc 1 2 3, function_name $info, inlined_at 1 4 2
    @%p1 ld.global.nc.L1::no_allocate.L2::128B.v4.b32 {%r0, %r1, _, %r2}, [%rd1]; mov.u32 %r1, %r2; // ld.f32
L1: L2: { .reg .b32 t; add.s32 %r1, %r1, 1; { add.s32 t, t, t; } } $L3:
    @!%p2 st.shared::cta.v2.f32 [a+4], {%f0, %f1};
    @%p1 bra L1; call (r), f, (x); call.uni f;
    cp.async.cg.shared.global.L2::128B [%r0], [%rd0], 16; cp.async.commit_group; cp.async.wait_group 0;
    cp.async.ca.shared.global [%r0], [%rd0], 4;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [a], [b], 512, [m];
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [a], [b], %r1, [m];
    atom.global.add.noftz.f16x2 %r1, [%rd1], %r2;
    red.global.add.v2.f32
        [%rd1], {%f1, %f2};
    ld.param.u64 %rd1, [x];
    ld.const.u8 %r1, [table];
    ld.f64 %fd0, [%rd1];
    prototype_0 : .callprototype (.param .b32 _) _ (.param .b64 _);
    .pragma "nounroll; }";
    ret;
}
"""


def needs(tool: str) -> None:
    try:
        toolkit.find(tool)
    except toolkit.ToolkitError as e:
        pytest.skip(str(e))


def read(text: str, entry: str, monkeypatch: pytest.MonkeyPatch) -> Report:
    """A report without an assembler: the text is read as it stands."""
    monkeypatch.setattr(toolkit, "find", lambda tool: None)
    assembly = toolkit.Assembly("sm_80", 32, 0, 0, 0, b"")
    monkeypatch.setattr(toolkit, "assemble", lambda *_: {entry: assembly})
    return report(text, entry, 128, 0, targets=())


@kernel(in_specs=(Tile(128, 4, f32),), out_specs=(Tile(128, 4, f32),), block=128)
def doubled(x, y):
    px, py = ptx.global_ptrs(x, y)
    offset = reg.from_(ptx.special.tid.x(), u32) * 16
    values = reg.array(f32, 4)
    ptx.inst.ld.global_.v4.f32(values, ptx.addr(px + offset))
    for value in values:
        ptx.inst.add.rn.f32(value, value, value)
    ptx.inst.st.global_.v4.f32(ptx.addr(py + offset), values)


def test_the_instructions_of_a_foreign_text_are_counted_each(monkeypatch) -> None:
    view = read(FOREIGN, "k", monkeypatch)
    counts = [*view.instructions.items()]
    assert counts[:4] == [("cp", 6), ("ld", 4), ("add", 2), ("call", 2)]
    assert counts[4:] == [(name, 1) for name in ("mov", "st", "bra", "atom", "red", "ret")]
    assert view.bytes_per_thread == {
        "atom.global": 4,
        "cp.async": 20,
        "cp.async.bulk": 512,
        "ld.const": 1,
        "ld.generic": 8,
        "ld.global.v4": 16,
        "red.global.v2": 8,
        "st.shared.v2": 8,
    }
    assert read(FOREIGN, "other", monkeypatch).instructions == {"mul": 1, "ret": 1}


def test_a_kernel_of_the_language_is_counted(monkeypatch) -> None:
    view = read(doubled.ptx(), "doubled", monkeypatch)
    body = doubled.ptx().split("{\n", 1)[1]
    assert sum(view.instructions.values()) == body.count(";") - body.count(".reg")
    assert (view.instructions["ld"], view.instructions["st"]) == (3, 1)
    assert view.instructions["add"] == 6
    assert view.bytes_per_thread == {"ld.global.v4": 16, "st.global.v4": 16}


def test_a_statement_says_where_it_stands() -> None:
    first, *_, last = statements(FOREIGN)
    assert (first.entry, first.opcode, first.modifiers) == (None, "st", ("global", "v2", "f64"))
    assert (first.operands, last.entry) == ("[a], {%fd0, %fd1}", "k")


@pytest.mark.parametrize(
    ("line", "alignment"),
    [
        ("ld.global.f32 %f0, [%rd0];", 4),
        ("ld.global.v8.f32 {a, b, c, d, e, f, g, h}, [%rd0];", 32),
        ("ld.shared.v4.f32 {a, b, c, d}, [%r0];", 1),
        ("ld.v2.f32 {a, b}, [%rd0];", 8),
        ("ld.param.v4.f32 {a, b, c, d}, [p];", 1),
        ("red.global.add.noftz.v4.bf16x2 [%rd0], {a, b, c, d};", 16),
        ("cp.async.ca.shared.global [%r0], [%rd0], 8, %r1;", 8),
        ("cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r0], %r1;", 16),
        ("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%rd0], [%r0], %r1;", 16),
        ("cp.async.bulk.commit_group;", 1),
        ("discard.global.L2 [%rd0], 128;", 128),
        ("ret;", 1),
    ],
)
def test_what_an_access_to_global_memory_is_aligned_to(line: str, alignment: int) -> None:
    assert access_alignment(f".entry k() {{ {line} }}") == alignment


def test_a_report_by_target() -> None:
    needs("ptxas")
    view = doubled.report()
    assert list(view.targets) == ["sm_80", "sm_89", "sm_90", "sm_100", "sm_120"]
    assert (view.refused, view.elsewhere) == ({}, "")
    assert view.targets["sm_90"].ctas_per_sm == 16
    assert view.targets["sm_90"].limited_by == "warps"
    lines = str(view).splitlines()
    assert lines[0] == "doubled: 15 instructions, 128 threads a CTA"
    assert lines[1].startswith("  target  registers  spill bytes  shared bytes  CTAs/SM")
    assert lines[-1] == "  bytes a thread: ld.global.v4 16, st.global.v4 16"
    assert max(map(len, lines)) <= 100


def test_a_text_for_one_target_is_assembled_for_it_and_not_refused_by_the_others() -> None:
    needs("ptxas")
    text = doubled.ptx().replace(".version 7.0", ".version 8.0")
    one = report(text.replace("sm_80", "sm_90a"), "doubled", 128, 0)
    assert (list(one.targets), one.refused) == (["sm_90a"], {})
    assert one.elsewhere == (
        "not on sm_80, sm_89, sm_90, sm_100, sm_120: sm_90a code runs on sm_90a only"
    )
    assert one.elsewhere in str(one)
    later = report(text.replace("sm_80", "sm_90"), "doubled", 128, 0)
    assert list(later.targets) == ["sm_90", "sm_100", "sm_120"]
    assert later.elsewhere == "not on sm_80, sm_89: sm_90 is the least that the text runs on"
    unlisted = report(text.replace("sm_80", "sm_86"), "doubled", 128, 0)
    assert list(unlisted.targets) == ["sm_86", "sm_89", "sm_90", "sm_100", "sm_120"]


def test_what_does_not_fit_says_why() -> None:
    needs("ptxas")
    view = report(doubled.ptx(), "doubled", 128, 150_000)
    assert view.targets["sm_90"].ctas_per_sm == 1
    assert view.targets["sm_90"].limited_by == "shared memory"
    small = view.targets["sm_89"]
    assert (small.ctas_per_sm, small.occupancy) == (0, 0.0)
    assert small.limited_by == "shared memory: a CTA may have 101376 bytes"
    assert small.limited_by in str(view)


def test_a_text_that_ptxas_refuses_says_what_it_said() -> None:
    needs("ptxas")
    view = report(doubled.ptx().replace("    ret;", "    rat;"), "doubled", 128, 0)
    assert view.targets == {}
    assert all("rat" in why or "syntax" in why for why in view.refused.values())
    assert "sm_80 refused: " in str(view)


def test_a_kernel_from_a_text_has_a_report() -> None:
    needs("ptxas")
    specs = {"in_specs": doubled.in_specs, "out_specs": doubled.out_specs}
    k = ptx_kernel(doubled.ptx(), **specs, block=128, smem=4096)
    view = k.report()
    assert view.instructions == doubled.report().instructions
    assert view.targets["sm_80"].smem_bytes == 4096


def test_a_kernel_from_a_text_has_its_machine_code() -> None:
    needs("ptxas")
    needs("nvdisasm")
    k = ptx_kernel(doubled.ptx(), in_specs=doubled.in_specs, out_specs=doubled.out_specs)
    assert "LDG" in k.sass("sm_90")
