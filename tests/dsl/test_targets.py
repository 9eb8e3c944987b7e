"""Targets and versions: compared as numbers, and the least that a kernel needs."""

from __future__ import annotations

import pytest

from jax_ptx import ptx, reg
from jax_ptx.dsl.target import Target, parse_target, supports
from jax_ptx.types import b16, b32, bf16, f32
from tests.dsl.tracing import text_of
from tests.ptxas import assemble, assemble_everywhere


def header(text: str) -> list[str]:
    return text.splitlines()[:2]


def bf16_load():
    ptx.inst.cvt.f32.bf16(reg.scalar(f32), reg.scalar(bf16, 1.0))


@pytest.mark.parametrize(
    ("body", "least"),
    [
        (lambda: ptx.bar.sync(), [".version 7.0", ".target sm_80"]),
        (bf16_load, [".version 7.1", ".target sm_80"]),
        (lambda: ptx.cluster.sync(), [".version 7.8", ".target sm_90"]),
        (lambda: ptx.special.cluster_ctarank() + 1, [".version 7.8", ".target sm_90"]),
        (
            lambda: ptx.inst.elect.sync((reg.scalar(b32), ptx.special.tid.x() == 0), -1),
            [".version 8.0", ".target sm_90"],
        ),
    ],
)
def test_auto_takes_the_least_that_is_needed(body, least):
    text = text_of(body)
    assert header(text) == least
    assemble_everywhere(text)


@pytest.mark.parametrize(
    ("arch", "version"),
    [
        ("sm_75", "6.3"),
        ("sm_80", "7.0"),
        ("sm_86", "7.1"),
        ("sm_89", "7.8"),
        ("sm_90", "7.8"),
        ("sm_90a", "8.0"),
        ("sm_100", "8.6"),
        ("sm_100a", "8.6"),
        ("sm_120", "8.7"),
    ],
)
def test_a_target_brings_its_least_version(arch, version):
    text = text_of(lambda: ptx.bar.sync(), arch=arch)
    assert header(text) == [f".version {version}", f".target {arch}"]
    assemble(text, arch)


def test_a_version_of_the_author_is_kept():
    assert header(text_of(ptx.bar.sync, version=(8, 3)))[0] == ".version 8.3"


def test_a_cluster_needs_sm_90():
    assert header(text_of(ptx.bar.sync, grid=(2, 1, 1), cluster=(2, 1, 1))) == [
        ".version 7.8",
        ".target sm_90",
    ]
    with pytest.raises(ValueError, match=r"cluster=\(2, 1, 1\) needs target sm_90"):
        text_of(ptx.bar.sync, grid=(2, 1, 1), cluster=(2, 1, 1), arch="sm_80")


def setmaxnreg():  # sm_90a, and each later `a` target, but no target without it
    ptx.inst.setmaxnreg.inc.sync.aligned.u32(64)


def to_e2m3():  # sm_100a and later `a` targets
    ptx.inst.cvt.rn.satfinite.e2m3x2.f32(
        reg.scalar(b16), reg.scalar(f32, 1.0), reg.scalar(f32, 2.0)
    )


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a", "sm_103a", "sm_120a", "sm_121a"])
def test_an_instruction_of_several_architecture_specific_targets(arch):
    text = text_of(setmaxnreg, arch=arch)
    assert header(text)[1] == f".target {arch}"
    assemble(text, arch)


@pytest.mark.parametrize("arch", ["sm_90", "sm_100", "sm_120"])
def test_a_target_without_what_is_architecture_specific(arch):
    message = (
        rf"`setmaxnreg.*` needs target sm_90a or sm_100a or .*; this kernel is for {arch}: "
        'arch="sm_90a" or arch="auto" has it'
    )
    with pytest.raises(ValueError, match=message):
        text_of(setmaxnreg, arch=arch)


def test_auto_takes_a_target_that_has_everything():
    assert header(text_of(setmaxnreg))[1] == ".target sm_90a"

    def both():
        setmaxnreg()
        to_e2m3()

    text = text_of(both)
    assert header(text) == [".version 8.6", ".target sm_100a"]
    assemble(text, "sm_100a")

    def neither():
        f, members = reg.scalar(f32, 1.0), reg.scalar(b32, -1)
        ptx.inst.redux.sync.min.f32(f, f, members)  # sm_100a or sm_103a
        d, a, b = ([reg.scalar(t, 0) for _ in range(n)] for t, n in ((f32, 4), (b32, 4), (b32, 2)))
        mma = ptx.inst.mma.sync.aligned.m16n8k32.row.col.kind__f8f6f4
        mma.f32.e3m2.e3m2.f32(d, a, b, d)

    message = "needs target sm_120a or sm_121a, and another instruction sm_100a"
    with pytest.raises(ValueError, match=message):
        text_of(neither)


def test_targets_compare_as_numbers():
    assert supports(Target(100), Target(90))
    assert not supports(Target(90), Target(100))
    assert supports(Target(90, "a"), Target(90))
    assert not supports(Target(100, "a"), Target(90, "a"))
    assert not supports(Target(90), Target(90, "a"))
    assert text_of(lambda: ptx.cluster.sync(), arch="sm_100")


@pytest.mark.parametrize("arch", ["sm90", "sm_9", "sm_85", "sm_80a", "compute_90", "", None, 90])
def test_what_is_no_target(arch):
    with pytest.raises(ValueError, match='arch must be "auto" or one of sm_75, sm_80'):
        parse_target(arch)
