"""Targets and PTX versions, compared as numbers, and the shared memory of a CTA on each target."""

from __future__ import annotations

import re
from typing import NamedTuple

from jax_ptx.dsl.isa.row import TARGETS

Version = tuple[int, int]

AUTO_FLOOR = 80  # `arch="auto"` never goes below Ampere
STATIC_SMEM_LIMIT_BYTES = 48 * 1024  # what ptxas accepts as declared arrays, on every target

# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability": the shared memory
# that a CTA may opt in to. A target that is not listed has what the last listed one before it has.
_SMEM_LIMIT_KIB = {75: 64, 80: 163, 86: 99, 87: 163, 88: 99, 89: 99, 90: 227, 120: 99}


class Target(NamedTuple):
    """A target: sm_90a is (90, "a")."""

    number: int
    suffix: str = ""

    def __str__(self) -> str:
        return f"sm_{self.number}{self.suffix}"


AUTO_TARGETS = tuple(Target(*t) for t in sorted(TARGETS) if t[0] >= AUTO_FLOOR)
"""What `arch="auto"` takes the first of."""


NEWEST_VERSION: Version = (9, 5)
"""The newest PTX version that this library was held against an assembler of."""


def parse_target(arch: str) -> Target:
    """Reads "sm_90" or "sm_90a".

    Raises:
        ValueError: it is no target, or none that this library knows.
    """
    match = re.fullmatch(r"sm_(\d+)([a-z]?)", arch) if isinstance(arch, str) else None
    target = Target(int(match[1]), match[2]) if match else None
    if target is None or (target.number, target.suffix) not in TARGETS:
        known = ", ".join(str(Target(*t)) for t in sorted(TARGETS))
        raise ValueError(f'arch must be "auto" or one of {known}; got {arch!r}')
    return target


LARGEST_SMEM = Target(90)
"""A target that has as much shared memory as any."""


def least_version(target: Target) -> Version:
    """The least PTX version that knows the target."""
    return TARGETS[target.number, target.suffix]


def smem_limit_bytes(target: Target) -> int:
    """The shared memory that a CTA may have on the target, static and dynamic together."""
    listed = max(number for number in _SMEM_LIMIT_KIB if number <= target.number)
    return _SMEM_LIMIT_KIB[listed] * 1024


def supports(target: Target, needed: Target) -> bool:
    """Whether code for one target runs on another; what needs an `a` target runs on that alone."""
    if needed.suffix:
        return target == needed
    return target.number >= needed.number


def version_text(version: Version) -> str:
    """ "8.0" for (8, 0)."""
    return f"{version[0]}.{version[1]}"
