"""ptxas judges the instruction table: samples of every row assemble where the table says that they do, and
are refused for one PTX version less and for one target less.

ptxas names the line of everything that it refuses, and checks the version and the target of every
instruction by itself, so a few thousand instructions are judged in one run. It looks at the text alone
here (a virtual architecture, no code): the last test has it write code for every row.

What ptxas enforces is what the table claims. It differs from the ISA document in that a `.cta`-scoped
mbarrier instruction with an order needs no more than sm_80 (the document says sm_90), and that
`mma….kind::f8f6f4` of two 8-bit types is there for every target that `sm_100a` begins (the document:
sm_120a).
"""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable
from functools import cache

import pytest

from jax_ptx import toolkit
from jax_ptx.dsl import isa

from .isa_samples import Sample, module, samples

VERSIONS = [(6, 3), (6, 4), (6, 5)]
VERSIONS += [(7, minor) for minor in range(9)] + [(8, minor) for minor in range(9)]
VERSIONS += [(9, minor) for minor in range(6)]
PLAIN = sorted(number for number, suffix in isa.TARGETS if not suffix)
SPECIFIC = sorted(number for number, suffix in isa.TARGETS if suffix)

Claim = tuple[tuple[int, int], int, str]


@cache
def by_claim() -> dict[Claim, list[Sample]]:
    claims: dict[Claim, list[Sample]] = defaultdict(list)
    for row in isa.rows():
        for sample in samples(row):
            form = isa.find(sample.name, sample.operands)
            claims[form.version, form.target, form.suffix].append(sample)
    return claims


CLAIMS = sorted(by_claim())


def name(claim: Claim) -> str:
    (major, minor), target, suffix = claim
    return f"{major}.{minor}-sm_{target}{suffix}"


@pytest.fixture(scope="module")
def ptxas() -> str:
    try:
        return str(toolkit.find("ptxas"))
    except toolkit.ToolkitError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def newest(ptxas: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, int]:
    """The newest PTX version that this ptxas knows."""
    file = tmp_path_factory.mktemp("newest") / "newest.ptx"
    file.write_text(".version 99.0\n.target sm_80\n")
    run = subprocess.run([ptxas, str(file)], capture_output=True, text=True, check=False)
    found = re.search(r"current version is '(\d+)\.(\d+)'", run.stdout + run.stderr)
    assert found, run.stderr
    return int(found[1]), int(found[2])


@pytest.fixture
def judge(ptxas: str, tmp_path):
    """Runs ptxas over instructions; returns what it says of each that it refuses, by position."""

    def run(lines: Iterable[str], version: tuple[int, int], target: str, *, code: bool = False):
        lines, refused = list(lines), {}
        while True:
            text, first = module(lines, version, target)
            (tmp_path / "module.ptx").write_text(text)
            arch = target if code else target.replace("sm_", "compute_")
            command = [ptxas, f"-arch={arch}", "-O0", "module.ptx", "-o", "module.out"]
            done = subprocess.run(
                command, cwd=tmp_path, capture_output=True, text=True, check=False
            )
            log = done.stdout + done.stderr
            found = re.findall(r"line (\d+); (error|fatal) *: (.*)", log)
            for number, _, message in found:
                refused.setdefault(int(number) - first, message)
            # After a fatal error ptxas looks no further: judge the rest without that line.
            fatal = [int(number) - first for number, severity, _ in found if severity == "fatal"]
            if not fatal:
                assert done.returncode == 0 or refused, log
                assert all(0 <= at < len(lines) for at in refused), log
                return refused
            lines[fatal[0]] = ""

    return run


@pytest.fixture
def claimed(newest: tuple[int, int], request: pytest.FixtureRequest) -> list[Sample]:
    claim: Claim = request.getfixturevalue("claim")
    if claim[0] > newest:
        pytest.skip(f"this ptxas knows PTX {newest[0]}.{newest[1]} and no later")
    return by_claim()[claim]


def lines(of: list[Sample]) -> list[str]:
    return [sample.line for sample in of]


def accepted(of: list[Sample], refused: dict[int, str]) -> list[str]:
    return [sample.line for at, sample in enumerate(of) if at not in refused]


@pytest.mark.parametrize("claim", CLAIMS, ids=name)
def test_assembles_where_it_is_claimed(claim: Claim, claimed: list[Sample], judge) -> None:
    version, target, suffix = claim
    refused = judge(lines(claimed), version, f"sm_{target}{suffix}")
    assert not refused, {claimed[at].line: message for at, message in refused.items()}


@pytest.mark.parametrize("claim", CLAIMS, ids=name)
def test_is_refused_by_the_version_before(claim: Claim, claimed: list[Sample], judge) -> None:
    version, target, suffix = claim
    if version == isa.TARGETS[target, suffix]:
        pytest.skip("no earlier PTX version knows the target")
    before = VERSIONS[VERSIONS.index(version) - 1]
    refused = judge(lines(claimed), before, f"sm_{target}{suffix}")
    assert not accepted(claimed, refused)


@pytest.mark.parametrize("claim", CLAIMS, ids=name)
def test_is_refused_by_the_target_before(
    claim: Claim, claimed: list[Sample], judge, newest: tuple[int, int]
) -> None:
    _, target, suffix = claim
    if not suffix and target == PLAIN[0]:
        pytest.skip("the oldest target that ptxas knows")
    before = target if suffix else PLAIN[PLAIN.index(target) - 1]
    refused = judge(lines(claimed), newest, f"sm_{before}")
    assert not accepted(claimed, refused)


@pytest.mark.parametrize("number", SPECIFIC)
def test_the_architecture_specific_targets_that_have_a_form(
    number: int, judge, newest: tuple[int, int]
) -> None:
    of = [
        s for claim, found in by_claim().items() if claim[2] and claim[0] <= newest for s in found
    ]
    refused = judge(lines(of), newest, f"sm_{number}a")
    for at, sample in enumerate(of):
        form = isa.find(sample.name, sample.operands)
        has = (number, "a") in ((form.target, form.suffix), *form.also)
        assert has == (at not in refused), (sample.line, refused.get(at))


@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a"])
def test_code_is_written_for_every_row(target: str, judge, newest: tuple[int, int]) -> None:
    """ptxas has limits that show only when it writes code; one sample of each row, and its forms."""
    number = int(target.removeprefix("sm_").removesuffix("a"))
    of = []
    for (version, least, suffix), found in by_claim().items():
        there = least <= number if not suffix else target == f"sm_{least}a"
        if version <= newest and there:
            of += {id(sample.row): sample for sample in found}.values()
    refused = judge(lines(of), newest, target, code=True)
    assert not refused, {of[at].line: message for at, message in refused.items()}
