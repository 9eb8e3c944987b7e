"""ptxas judges the instruction table: samples of every row assemble where the table says that they do, and
are refused for one PTX version less and for one target less.

ptxas names the line of everything that it refuses, and checks the version and the target of every
instruction by itself, so a few thousand instructions are judged in one run. For a virtual architecture
it looks at the text alone; where a form is claimed it also has to write the code.

What ptxas enforces is what the table claims. It differs from the ISA document in that a `.cta`-scoped
mbarrier instruction with an order needs no more than sm_80 (the document says sm_90), and that
`mma` with `kind::f8f6f4` of two 8-bit types is there for every target that `sm_100a` begins (the document:
sm_120a). ptxas 13.0 takes `fence.acquire` and `fence.release` anywhere; 13.5 as documented.
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
# What the registers of the language are declared as; every integer is in untyped bits.
LANGUAGE_REGISTERS = ("pred", "b16", "b32", "b64", "f32", "f64")
PLAIN = sorted(number for number, suffix in isa.TARGETS if not suffix)
SPECIFIC = sorted(number for number, suffix in isa.TARGETS if suffix)

# The samples are made once, by one worker of pytest-xdist.
pytestmark = pytest.mark.xdist_group("instruction table")

Claim = tuple[tuple[int, int], int, str]


@cache
def by_claim() -> dict[Claim, list[Sample]]:
    claims: dict[Claim, list[Sample]] = defaultdict(list)
    for row in isa.rows():
        for sample in samples(row):
            form = isa.find(sample.name, sample.operands)
            claims[form.version, form.target, form.suffix].append(sample)
    return claims


def target_name(claim: Claim) -> str:
    return f"sm_{claim[1]}{claim[2]}"


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
            source, first = module(lines, version, target)
            (tmp_path / "module.ptx").write_text(source)
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
def claims(newest: tuple[int, int]) -> dict[Claim, list[Sample]]:
    """The samples by what the table claims for them, as far as this ptxas knows the version."""
    return {claim: of for claim, of in by_claim().items() if claim[0] <= newest}


def text(of: list[Sample]) -> list[str]:
    return [sample.line for sample in of]


def test_samples_assemble_where_it_is_claimed(claims, judge) -> None:
    for claim, of in claims.items():
        refused = judge(text(of), claim[0], target_name(claim), code=True)
        assert not refused, (claim, {of[at].line: said for at, said in refused.items()})


def test_every_instruction_may_be_guarded(claims, judge) -> None:
    for claim, of in claims.items():
        guarded = [f"@!%pred_78 {line.removeprefix('@%pred_79 ')}" for line in text(of)]
        refused = judge(guarded, claim[0], target_name(claim))
        assert not refused, (claim, {guarded[at]: said for at, said in refused.items()})


def test_samples_are_refused_by_the_version_before(claims, judge, newest) -> None:
    for claim, of in claims.items():
        version, target, suffix = claim
        if version == isa.TARGETS[target, suffix]:
            continue  # no earlier PTX version knows the target
        refused = judge(text(of), VERSIONS[VERSIONS.index(version) - 1], target_name(claim))
        assert not accepted(of, refused, newest), claim


def test_samples_are_refused_by_the_target_before(claims, judge, newest) -> None:
    for claim, of in claims.items():
        _, target, suffix = claim
        if not suffix and target == PLAIN[0]:
            continue  # the oldest target that ptxas knows
        before = target if suffix else PLAIN[PLAIN.index(target) - 1]
        refused = judge(text(of), newest, f"sm_{before}")
        assert not accepted(of, refused, newest), claim


@pytest.mark.parametrize("target", ["sm_100", "sm_120a"])
def test_registers_that_the_table_takes(target: str, claims, judge, newest) -> None:
    """Every kind of register that the language has, at every place of a sample of every row."""
    number = int(target.removeprefix("sm_").removesuffix("a"))
    tried: dict[str, Sample] = {}
    for claim, of in claims.items():
        if claim[1] > number or (claim[2] and target_name(claim) != target):
            continue
        for sample in {(s.row, s.name.split(".")[-1]): s for s in of}.values():
            for position in range(len(sample.operands)):
                for name in LANGUAGE_REGISTERS:
                    other = sample.with_register(position, name)
                    if other and taken(other):
                        tried[other.line] = other
    refused = judge(tried, newest, target)
    assert not refused, {list(tried)[at]: said for at, said in refused.items()}


def taken(sample: Sample) -> bool:
    try:
        isa.find(sample.name, sample.operands)
    except isa.InstructionError:
        return False
    return True


@pytest.mark.parametrize("number", SPECIFIC)
def test_architecture_specific_forms_have_all_their_targets(
    number: int, claims, judge, newest
) -> None:
    of = [sample for claim, found in claims.items() if claim[2] for sample in found]
    refused = judge(text(of), newest, f"sm_{number}a")
    for at, sample in enumerate(of):
        form = isa.find(sample.name, sample.operands)
        has = (number, "a") in ((form.target, form.suffix), *form.also)
        assert has == (at not in refused), (sample.line, refused.get(at))


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a", "sm_120a"])
def test_later_targets_keep_every_row(target: str, claims, judge, newest) -> None:
    number = int(target.removeprefix("sm_").removesuffix("a"))
    of = []
    for claim, found in claims.items():
        _, least, suffix = claim
        if target_name(claim) == target if suffix else least <= number:
            of += {id(sample.row): sample for sample in found}.values()
    refused = judge(text(of), newest, target, code=True)
    assert not refused, {of[at].line: said for at, said in refused.items()}


def accepted(of: list[Sample], refused: dict[int, str], newest: tuple[int, int]) -> list[str]:
    lax = ("fence.acquire.", "fence.release.") if newest <= (9, 0) else ()
    return [s.line for at, s in enumerate(of) if at not in refused and not s.name.startswith(lax)]
