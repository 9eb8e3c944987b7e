"""Targets and versions: compared as numbers, and the least that a kernel needs."""

from __future__ import annotations

import pytest

from jax_ptx import ptx, reg
from jax_ptx.dsl.target import Target, parse_target, supports
from jax_ptx.types import b32, bf16, f32
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
    assert header(text_of(ptx.bar.sync, cluster=(2, 1, 1))) == [".version 7.8", ".target sm_90"]
    with pytest.raises(ValueError, match=r"cluster=\(2, 1, 1\) needs target sm_90"):
        text_of(ptx.bar.sync, cluster=(2, 1, 1), arch="sm_80")


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
