"""Which shapes are timed, by group, and the least that must be moved for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ELEMENTS = 2**27  # of a tensor: 268 MB of bfloat16, several times an H200's L2
REHEARSAL_ELEMENTS = 2**15

TABLE = (128, 1024, 4096, 8192, 16384, 32768, 65536, 131072, 262144)
# Feature lengths of published models, those of heads included.
MODELS = (
    *(64, 128, 256, 512, 1024, 1536, 2048, 2560, 3072, 3584, 4096, 5120, 6144, 7168, 8192),
    *(12288, 16384, 18432),
)
AWKWARD = (1000, 4097, 10007)
AWKWARD_ROWS = ((10007, 4096), (75600, 1536))
FEW = ((1, 4096), (1, 8192), (128, 4096))
ADD = (1024, 4096, 8192, 16384, 65536)

GROUPS = ("table", "models", "awkward", "few", "add")
PASSES = ("forward", "both")  # both: forward, then dx and dw


@dataclass(frozen=True)
class Case:
    """One op, "rms_norm" or "add_rms_norm", on tensors of `[rows, n]`."""

    op: str
    rows: int
    n: int
    dtype: str = "bfloat16"

    @property
    def name(self) -> str:
        added = "add " if self.op == "add_rms_norm" else ""
        wide = " f32" if self.dtype == "float32" else ""
        return f"{added}{self.rows} x {self.n}{wide}"


def floor_us(case: Case, which: str, copy_us: float, add3_us: float) -> float:
    """The time to move what a pass has to move, given that of a copy and of a sum of two tensors."""
    if case.op == "add_rms_norm":  # x, residual -> y, sum; then sum, dy, dsum -> dx
        return 2 * copy_us if which == "forward" else 4 * copy_us
    return copy_us if which == "forward" else copy_us + add3_us


def group_cases(group: str) -> list[Case]:
    """The cases of a group of `GROUPS`."""
    norm, add = "rms_norm", "add_rms_norm"
    if group == "table":
        wide = [Case(norm, 2048, 8192, "float32"), Case(norm, 32768, 4096, "float32")]
        return [Case(norm, _rows(n), n) for n in TABLE] + wide
    if group == "models":
        return [Case(norm, _rows(n), n) for n in MODELS]
    if group == "awkward":
        rows = [Case(norm, rows, n) for rows, n in AWKWARD_ROWS]
        return [Case(norm, _rows(n), n) for n in AWKWARD] + rows
    if group == "few":
        return [Case(norm, rows, n) for rows, n in FEW]
    if group == "add":
        return [Case(add, _rows(n), n) for n in ADD]
    raise ValueError(f"expected a group of {', '.join(GROUPS)}, got {group!r}")


def selected(groups: Sequence[str], rehearse: bool) -> list[tuple[str, Case]]:
    """Each case of the groups once, under the first group that has it; a rehearsal takes few rows."""
    found: dict[Case, str] = {}
    for group in groups:
        for case in group_cases(group):
            if rehearse:
                rows = min(case.rows, max(1, REHEARSAL_ELEMENTS // case.n))
                case = Case(case.op, rows, case.n, case.dtype)
            found.setdefault(case, group)
    return [(group, case) for case, group in found.items()]


def _rows(n: int) -> int:
    """The rows of a tensor of about `ELEMENTS`; in multiples of 128, as batches of tokens are."""
    rows = ELEMENTS // n
    return rows if rows < 128 else rows // 128 * 128
