"""The instruction table: what it finds, how operands agree with it, and what it says when they do not."""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from jax_ptx.dsl import isa
from jax_ptx.dsl.isa import Operand
from jax_ptx.dsl.isa.reading import readings
from jax_ptx.types import BY_NAME, u64

from .isa_samples import samples

INTEGER, FLOAT, SYMBOL = Operand("integer"), Operand("float"), Operand("symbol")
ADDRESS, PARAMETER = Operand("address", u64), Operand("address")


def operands(text: str) -> tuple[Operand, ...]:
    """ "f32 f32*4 pred [] 1 1.0 s" as operands."""
    fixed = {"[]": ADDRESS, "[p]": PARAMETER, "1": INTEGER, "1.0": FLOAT, "s": SYMBOL}
    result = []
    for word in text.split():
        name, _, count = word.partition("*")
        if word in fixed:
            result.append(fixed[word])
        elif count:
            result.append(Operand("vector", BY_NAME[name], int(count)))
        elif word.startswith("%"):
            result.append(Operand("special", BY_NAME[word[1:]]))
        elif word.endswith("|pred"):
            result.append(Operand("pair", BY_NAME[word.removesuffix("|pred")]))
        else:
            result.append(Operand("predicate" if word == "pred" else "register", BY_NAME[name]))
    return tuple(result)


def find(name: str, text: str = "") -> isa.Form:
    return isa.find(name, operands(text))


def error(name: str, text: str = "") -> str:
    with pytest.raises(isa.InstructionError) as caught:
        find(name, text)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "given", "version", "target"),
    [
        ("add.rn.f32", "f32 f32 1.0", (6, 3), "sm_75"),
        ("shfl.sync.bfly.b32", "f32 f32 1 1 1", (6, 3), "sm_75"),
        ("cvt.rn.bf16x2.f32", "bf16x2 f32 f32", (7, 0), "sm_80"),
        ("cvt.f32.bf16", "f32 bf16", (7, 1), "sm_80"),
        ("ld.global.nc.L1::no_allocate.v4.f32", "f32*4 []", (7, 4), "sm_75"),
        ("cvt.rn.satfinite.e4m3x2.f32", "b16 f32 f32", (8, 1), "sm_89"),
        ("mapa.shared::cluster.u32", "u32 u32 u32", (7, 8), "sm_90"),
        ("griddepcontrol.wait", "", (7, 8), "sm_90"),
        ("elect.sync", "b32|pred 1", (8, 0), "sm_90"),
        (
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes",
            "[] [] 1 []",
            (8, 0),
            "sm_90",
        ),
        ("setmaxnreg.dec.sync.aligned.u32", "1", (8, 0), "sm_90a"),
        ("redux.sync.max.f32", "f32 f32 1", (8, 6), "sm_100a"),
        ("ld.global.v8.f32", "f32*8 []", (8, 8), "sm_100"),
    ],
)
def test_a_form_knows_its_least_version_and_target(name, given, version, target) -> None:
    form = find(name, given)
    assert (form.name, form.version) == (name, version)
    assert f"sm_{form.target}{form.suffix}" == target


def test_a_modifier_may_need_more_than_its_row() -> None:
    assert find("min.f32", "f32 f32 f32").target == 75
    assert find("min.NaN.f32", "f32 f32 f32").target == 80
    assert find("ld.relaxed.cluster.global.u32", "u32 []").target == 90
    assert find("ld.relaxed.gpu.global.u32", "u32 []").target == 75


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("add.s64", "u64 u64 1"),  # signed and unsigned interchange
        ("add.s64", "b64 s64 u64"),
        ("mul.wide.u32", "u64 u32 1"),
        ("mad.wide.s32", "s64 s32 1 b64"),
        ("shl.b64", "u64 u64 u32"),  # a shift's count has 32 bits
        ("mov.b32", "f32 u32"),  # untyped bits agree with every type of their size
        ("mov.b64", "b64 f32*2"),
        ("mov.b32", "f16*2 f16x2"),
        ("mov.b16", "e4m3 e4m3"),  # nothing lives in less than 16 bits
        ("mov.u32", "u32 %u32"),
        ("mov.u64", "u64 %u64"),
        ("mov.u32", "u32 s"),
        ("cvt.u64.u32", "u64 u32"),
        ("cvt.u16.u32", "u32 u64"),  # wider registers, in conversions of integers
        ("ld.param.u64", "u64 [p]"),
        ("ld.global.u8", "u32 []"),  # and in loads and stores
        ("st.global.b16", "[] u32"),
        ("ld.global.b16", "bf16 []"),
        ("ld.global.b32", "f32 []"),
        ("st.shared.v2.f32", "[] f32*2"),
        ("st.global.L2::cache_hint.f32", "[] f32 b64"),
        ("st.global.b32", "[] 1.0"),  # untyped bits take either immediate
        ("st.global.v2.b32", "[] b32*2"),
        ("mov.b64", "b64 1.0"),
        ("setp.lt.f32", "pred f32 1.0"),
        ("setp.lt.and.u32", "pred|pred u32 1 pred"),
        ("setp.eq.f16x2", "pred|pred f16x2 f16x2"),
        ("selp.f32", "f32 1.0 f32 pred"),
        ("fma.rn.bf16x2", "bf16x2 b32 bf16x2 bf16x2"),
        ("bar.sync", "1"),
        ("bar.sync", "u32 1"),
        ("atom.global.add.f32", "f32 [] f32"),
        ("atom.global.add.f32", "s [] 1.0"),  # the sink `_`
        ("atom.global.add.v4.f32", "f32*4 [] f32*4"),
        ("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", "f32*4 b32*4 b32*2 f32*4"),
        ("bra", "s"),
        ("ret", ""),
    ],
)
def test_valid_operands(name, given) -> None:
    assert find(name, given).name == name


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("add.rn.f32", "f32 f32 1"),  # a float instruction takes no integer
        ("add.u32", "u32 u32 1.0"),
        ("add.u32", "u32 f32 u32"),
        ("add.f16", "f16 bf16 f16"),  # both live in .b16, and yet
        ("add.f16", "f16 f16 1"),  # there are no immediates of half types
        ("mul.wide.u32", "u32 u32 1"),
        ("shl.b64", "u64 u64 u64"),
        ("mov.u32", "f32 u32"),
        ("mov.u32", "u32 %u64"),
        ("add.u32", "u32 %u32 u32"),  # special registers: mov and cvt only
        ("cvt.u32.u64", "u64 u32"),  # a register may be wider than the source, not narrower
        ("cvt.rn.bf16.f32", "u32 f32"),
        ("ld.global.v4.f32", "f32*2 []"),
        ("ld.global.f32", "f32 u64"),
        ("ld.global.f32", "u32*1 []"),
        ("st.global.L2::cache_hint.f32", "[] f32"),  # the hint is an operand
        ("st.global.f32", "[] f32 b64"),
        ("st.global.f32", "[] 1"),
        ("st.global.v2.f32", "[] 1.0"),
        ("setp.eq.f16x2", "pred f16x2 f16x2"),
        ("setp.eq.f16", "pred|pred f16 f16"),
        ("selp.f32", "f32 1.0 f32 u32"),
        ("elect.sync", "b32 1"),
        ("bra", "u32"),
        ("bar.arrive", "1"),
    ],
)
def test_invalid_operands(name, given) -> None:
    assert f"`{name}" in error(name, given)


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        (
            "ad.f32",
            "",
            "`ad.f32`: there is no instruction `ad` in the table; the nearest are sad, mad and and; "
            "ptx.raw(line) writes what the table does not have",
        ),
        (
            "shfl.bfly.b32",
            "",
            "`shfl.bfly.b32`: `.bfly` may not follow `shfl`; the nearest valid form is "
            "`shfl.sync.bfly.b32`; after `shfl` may come .sync",
        ),
        (
            "ld.f32.global",
            "",
            "`ld.f32.global`: `.global` may not follow `ld.f32`; the nearest valid form is "
            "`ld.global.f32`, in Python `ptx.inst.ld.global_.f32`; `ld.f32` is complete",
        ),
        (
            "fma.rn",
            "",
            "`fma.rn`: `fma.rn` is incomplete; the nearest valid form is `fma.rn.f32`; it goes on "
            "with .ftz, .sat, .f32, .f64, .f16, .f16x2, .relu, .bf16, .bf16x2, .oob or .f32x2",
        ),
        (
            "mov.f16",
            "",
            "`mov.f16`: `.f16` is no modifier of `mov`; the nearest valid form is `mov.b16`; after "
            "`mov` may come .b16, .b32, .b64, .u16, .u32, .u64, .s16, .s32, .s64, .f32, .f64 or .pred",
        ),
        (
            "atom.shared.add.L2::cache_hint.u32",
            "",
            "`atom.shared.add.L2::cache_hint.u32`: `.shared` does not go with `.L2::cache_hint`; the "
            "nearest valid form is `atom.add.L2::cache_hint.u32`, in Python "
            "`ptx.inst.atom.add.L2__cache_hint.u32`",
        ),
        (
            "bar.sync",
            "",
            "`bar.sync` was given 0 operands; it is written `bar.sync a, b` or `bar.sync a`",
        ),
        (
            "add.rn.f32",
            "f32 u32 f32",
            "operand 2 (a) of `add.rn.f32 d, a, b` is a .u32 register; allowed: a .f32 or .b32 "
            "register; a float immediate",
        ),
        (
            "ld.global.v4.f32",
            "f32*2 []",
            "operand 1 (d) of `ld.global.v4.f32 d, [a]` is a vector of 2 .f32 registers; allowed: a "
            "vector of 4, each a .f32 or .b32 register",
        ),
        (
            "ld.param.u64",
            "u32 [p]",
            "operand 1 (d) of `ld.param.u64 d, [a]` is a .u32 register; allowed: a .u64, .s64 or .b64 "
            "register, or a wider one",
        ),
        (
            "elect.sync",
            "b32 1",
            "operand 1 (d) of `elect.sync d, mask` is a .b32 register; allowed: a pair d|p with a "
            "32-bit d",
        ),
        (
            "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16",
            "",
            "`wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16` is outside the instruction table "
            "(warpgroup matrix multiply, for sm_90a alone): write it as text with ptx.raw(line)",
        ),
    ],
)
def test_errors_as_text(name, given, said) -> None:
    assert error(name, given) == said


@pytest.mark.parametrize(
    ("wrong", "near"),
    [
        ("add.f32.rn", "add.rn.f32"),
        ("add.rn.f23", "add.rn.f32"),
        ("mul.u32", "mul.lo.u32"),
        ("cvt.f16.f32", "cvt.rn.f16.f32"),
        ("cvt.rn.e4m3x2.f32", "cvt.rn.satfinite.e4m3x2.f32"),
        ("ld.global.f16", "ld.global.b16"),
        ("ld.global.L1::noallocate.f32", "ld.global.L1::no_allocate.f32"),
        ("ex2.f32", "ex2.approx.f32"),
        ("max.f16.NaN", "max.NaN.f16"),
        ("setp.lt.b32", "setp.lt.u32"),
        ("atom.add.global.f32", "atom.global.add.f32"),
        ("atom.global.add.f16", "atom.global.add.noftz.f16"),
        ("fence.proxy.async.shared", "fence.proxy.async.shared::cta"),
        ("griddepcontrol.launch_dependent", "griddepcontrol.launch_dependents"),
        (
            "mbarrier.try_wait.parity.shared::cluster.b64",
            "mbarrier.try_wait.parity.shared::cta.b64",
        ),
    ],
)
def test_nearest_valid_form(wrong, near) -> None:
    assert readings(near)
    assert f"the nearest valid form is `{near}`" in error(wrong)


@pytest.mark.parametrize(
    "name",
    [
        "wgmma.fence.sync.aligned",
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32",
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes",
        "cp.reduce.async.bulk.tensor.1d.global.shared::cta.add.tile.bulk_group",
        "tensormap.replace.tile.global_address.shared::cta.b1024.b64",
        "prefetch.tensormap",
        "mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
        "tex.1d.v4.f32.f32",
        "call.uni",
    ],
)
def test_what_is_outside_is_refused_by_name(name) -> None:
    assert "outside the instruction table" in error(name)
    assert "ptx.raw(line)" in error(name)


@pytest.mark.parametrize(
    "name", ["", ".", "add.", "add..f32", "ADD.f32", "add f32", "ld.global.f32 "]
)
def test_no_name_at_all(name) -> None:
    assert error(name)


def test_samples_use_every_modifier_of_every_row() -> None:
    for row in isa.rows():
        used = {token for sample in samples(row) for token in sample.name.split(".")}
        for group in row.groups:
            assert used.issuperset(group.values), row


def test_no_row_is_there_twice() -> None:
    rows = [str(row) + str(row.operands) for row in isa.rows()]
    assert len(rows) == len(set(rows))


def test_threads_see_one_table() -> None:
    given = operands("f32 f32 f32 f32")
    names = [f"fma.{rounding}.f32" for rounding in ("rn", "rz", "rm", "rp")] * 50
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda name: isa.find(name, given), names))
    assert [form.name for form in found] == names


@pytest.mark.skipif(sys.gettrace() is not None, reason="a tracer slows every call")
def test_a_repeated_instruction_is_one_look_up() -> None:
    given = operands("f32 f32 f32 f32")
    isa.find("fma.rn.f32", given)

    def seconds() -> float:
        start = time.perf_counter()
        for _ in range(1000):
            isa.find("fma.rn.f32", given)
        return time.perf_counter() - start

    # About 0.3 µs each; the limit leaves room for a busy machine.
    assert min(seconds() for _ in range(5)) < 1000 * 5e-6
