"""One launch for a whole batch: the record, the prologue, and which tensors advance."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from jax_ptx import RunTime, Tile, kernel, ptx, reg
from jax_ptx.dsl.batch import Axis, merge_axes
from jax_ptx.kernel import Batch
from jax_ptx.types import b64, f32, u32
from tests.dsl.programs import scaled_rows
from tests.dsl.tracing import text_of
from tests.ptxas import assemble_everywhere


def body_lines(text: str) -> list[str]:
    return [line.strip() for line in text.split("\n\n")[-1].splitlines()]


@kernel(
    in_specs=(Tile("n", f32), Tile("n", f32)),
    out_specs=(Tile("n", f32),),
    grid=lambda n: (n, 3),
)
def place(x, w, y):
    ptx.global_ptrs(x, w, y)
    reg.from_(ptx.special.ctaid.x(), u32)
    reg.from_(ptx.special.ctaid.y(), u32)
    reg.from_(ptx.special.nctaid.x(), u32)


def test_the_record_of_a_batch():
    launch = place.launch(Batch((5, 7), ((True, True), (False, False), (True, True))), n=4)
    assert launch.grid == (4 * 35, 3, 1)
    assert launch.unit_bytes == (16 * 35, 16, 16 * 35)
    assert launch is place.launch(((5, 7), ((True, True), (False, False), (True, True))), n=4)
    assert launch.retrace is None


def test_like_axes_are_one_and_pointers_advance():
    launch = place.launch(Batch((5, 7), ((True, True), (False, False), (True, True))), n=4)
    assert body_lines(launch.ptx) == [
        "mov.u32 %r0, %ctaid.x;",
        "div.u32 %r1, %r0, 4;",
        "rem.u32 %r2, %r0, 4;",
        "ld.param.u64 %rd0, [x];",
        "mul.wide.u32 %rd1, %r1, 16;",
        "add.s64 %rd0, %rd0, %rd1;",
        "cvta.to.global.u64 %rd2, %rd0;",
        "ld.param.u64 %rd3, [w];",
        "cvta.to.global.u64 %rd4, %rd3;",
        "ld.param.u64 %rd5, [y];",
        "mul.wide.u32 %rd6, %r1, 16;",
        "add.s64 %rd5, %rd5, %rd6;",
        "cvta.to.global.u64 %rd7, %rd5;",
        "mov.u32 %r3, %r2;",
        "mov.u32 %r4, %ctaid.y;",
        "mov.u32 %r5, 4;",
        "mov.u32 %r6, %r5;",
        "ret;",
        "}",
    ]
    assemble_everywhere(launch.ptx)


def test_axes_that_differ_are_told_apart():
    launch = place.launch(Batch((5, 7), ((True, False), (False, True), (True, True))), n=4)
    lines = body_lines(launch.ptx)
    # element = outer * 7 + inner
    assert lines[3:5] == ["rem.u32 %r3, %r1, 7;", "div.u32 %r4, %r1, 7;"]
    assert lines[6:8] == ["mul.wide.u32 %rd1, %r4, 16;", "add.s64 %rd0, %rd0, %rd1;"]
    assert lines[10:12] == ["mul.wide.u32 %rd4, %r3, 16;", "add.s64 %rd3, %rd3, %rd4;"]
    assert lines[14:18] == [
        "mul.wide.u32 %rd7, %r3, 16;",
        "add.s64 %rd6, %rd6, %rd7;",
        "mul.wide.u32 %rd8, %r4, 112;",
        "add.s64 %rd6, %rd6, %rd8;",
    ]
    assert launch.unit_bytes == (16 * 5, 16 * 7, 16 * 35)
    assemble_everywhere(launch.ptx)


def test_merging():
    yes, no = (True, True), (True, False)
    assert merge_axes((2, 3), ((True, True), (True, True))) == (Axis(6, yes),)
    assert merge_axes((2, 3, 4), ((True,) * 3, (True, False, False))) == (
        Axis(2, yes),
        Axis(12, no),
    )
    assert merge_axes((2, 1, 4), ((True,) * 3, (True, False, True))) == (Axis(8, yes),)
    assert merge_axes((1,), ((True,), (False,))) == ()


def test_a_pointer_may_also_be_loaded_by_hand():
    @kernel(in_specs=(Tile(4, f32),), out_specs=(Tile(4, f32),))
    def k(x, y):
        p = reg.scalar(b64)
        ptx.inst.ld.param.u64(p, ptx.addr(x))
        ptx.inst.ld.param.u64(p, ptx.addr("y"))

    text = k.launch(Batch((3,), ((True,), (True,)))).ptx
    assert text.count("add.s64 %rd0, %rd0") == 2

    @kernel(in_specs=(Tile(4, f32),), out_specs=())
    def odd(x):
        ptx.inst.ld.param.u32(reg.scalar(u32), ptx.addr(x))

    with pytest.raises(
        NotImplementedError, match=r"ld.param.u32 takes x, whose .* ptx.global_ptrs loads"
    ):
        odd.launch(Batch((3,), ((True,),)))


def test_what_stands_for_ctaid_cannot_be_written():
    @kernel(in_specs=(), out_specs=())
    def k():
        x = ptx.special.ctaid.x()
        x += 1

    for launch in (lambda: k.launch(), lambda: k.launch(Batch((3,), ()))):
        with pytest.raises(TypeError, match="is a special register and cannot be written"):
            launch()


def test_clusters_keep_their_place():
    @kernel(in_specs=(), out_specs=(), grid=6, cluster=(2, 1, 1))
    def k():
        reg.from_(ptx.special.clusterid.x(), u32)
        reg.from_(ptx.special.nclusterid.x(), u32)
        reg.from_(ptx.special.cluster_ctaid.x(), u32)

    launch = k.launch(Batch((4,), ()))
    assert launch.grid == (24, 1, 1)
    lines = body_lines(launch.ptx)
    assert "div.u32 %r3, %r2, 2;" in lines  # clusterid.x
    assert "mov.u32 %r5, 3;" in lines  # nclusterid.x
    assert "mov.u32 %r7, %cluster_ctaid.x;" in lines


def test_65_536_and_more_fit_in_x_and_2_to_the_31_do_not():
    assert place.launch(Batch((65537,), ((True,),) * 3), n=4).grid[0] == 4 * 65537
    with pytest.raises(NotImplementedError, match=r"past the 2147483647 of a grid's x"):
        place.launch(Batch((2**31,), ((True,),) * 3), n=4)


def test_a_batch_of_nothing():
    launch = place.launch(Batch((0,), ((True,),) * 3), n=4)
    assert (launch.grid, launch.unit_bytes) == ((0, 3, 1), (0, 0, 0))


def test_kernels_that_cannot_be_traced_for_a_batch_say_so():
    @kernel(in_specs=(Tile(RunTime("rows"), f32),), out_specs=(), grid=9, rows_per_cta=1)
    def run_time(x):
        pass

    @kernel(in_specs=(Tile(4, f32),), out_specs=())
    def raw(x):
        ptx.raw("// unread")

    for k in (run_time, raw):
        assert k.launch().retrace is None
        with pytest.raises(NotImplementedError, match="one launch for a batch, with"):
            k.launch(Batch((3,), ((True,),)))


def test_vmap_is_one_custom_call_and_copies_nothing():
    k = scaled_rows()
    x, w = jnp.ones((6, 4, 32)), jnp.ones(32)
    f = jax.jit(jax.vmap(lambda x: k(x, w)))
    text = f.trace(x).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("stablehlo.custom_call") == 1
    assert "broadcast" not in text
    assert "rem.u32" in text


def test_the_unbatched_text_knows_nothing_of_batches():
    assert "rem.u32" not in text_of(lambda: reg.from_(ptx.special.ctaid.x(), u32))


def test_special_registers_under_their_names():
    @kernel(in_specs=(), out_specs=(), grid=(4, 2))
    def k():
        r = reg.scalar(u32)
        ptx.inst.mov.u32(r, "%ctaid.x")
        ptx.inst.mov.u32(r, "%nctaid.x")
        ptx.inst.mov.u32(r, "%ctaid.y")
        ptx.inst.mov.u32(r, "%tid.x")

    lines = body_lines(k.launch(Batch((3,), ())).ptx)
    assert lines[3:-2] == [
        "mov.u32 %r3, %r2;",
        "mov.u32 %r4, 4;",
        "mov.u32 %r3, %r4;",
        "mov.u32 %r3, %ctaid.y;",
        "mov.u32 %r3, %tid.x;",
    ]


def test_what_would_pass_the_batch_by_is_refused():
    @kernel(in_specs=(Tile(4, f32),), out_specs=())
    def address_of_a_parameter(x):
        ptx.inst.mov.u64(reg.scalar(b64), x)

    assert address_of_a_parameter.launch()
    with pytest.raises(NotImplementedError, match="one launch for a batch"):
        address_of_a_parameter.launch(Batch((3,), ((True,),)))
