"""What the two sides of the comparison, JAX and PyTorch, have in common."""

from __future__ import annotations

import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from .cases import Case

EPS = 1e-6
N_SETS = 3  # of operands, which the timed calls take by turns, so that large ones are never in L2
FIRST_ROWS = 256
FIRST_N = 3200  # the first of the fresh row lengths, which are this far from any other case's
WRONG = 16  # a result this many times the dtype's epsilon away from float64's is none

Kernels = list[list[tuple[str, float]]]  # of each run: names, and microseconds


class Side(ABC):
    """One framework's implementations; lives in a process of its own.

    Attributes:
        peers: the implementations that are installed, by name, with their versions.
        missing: the others, with the reason.
        rehearse: times are wall time on the CPU, and mean nothing.
    """

    def __init__(self, rehearse: bool) -> None:
        self.rehearse = rehearse
        self.peers: dict[str, str] = {}
        self.missing: dict[str, str] = {}
        self._case: Case | None = None
        self._sets: list[Any] = []

    def hello(self) -> dict[str, Any]:
        """What the parent is told once."""
        return {"device": self.device(), "peers": self.peers, "missing": self.missing}

    def time(self, case: Case, peer: str, which: str, runs: int) -> dict[str, Any]:
        """Checks one implementation, then times its kernels.

        Returns: "us", the median of the runs' sums; "kernels", the median of each; "errors", the largest
        of each result relative to float64, with "limit", what they may be; and what the side adds.
        """
        if case != self._case:
            self._case, self._sets = None, []  # the old ones' memory first
            self._sets = self.inputs(case)
            self._case = case
        call, facts = self.function(case, peer, which, self._sets[0])
        results = call(*self._sets[0])
        errors = self.errors(case, results, self._sets[0])
        del results
        kernels = self.kernels(call, self._sets, runs)
        return {**facts, **summary(kernels), "errors": errors, "limit": WRONG * self.eps(case)}

    def first(self, peer: str, which: str, runs: int) -> dict[str, Any]:
        """Milliseconds from a function to its first result at a row length that is new each time."""
        found: list[dict[str, float]] = []
        for number in range(runs + 1):  # the first warms up what is common to all lengths
            case = Case("rms_norm", FIRST_ROWS, FIRST_N + 128 * number)
            found.append(self.first_ms(case, peer, which, self.inputs(case)[0]))
        return {step: statistics.median(f[step] for f in found[1:]) for step in found[0]}

    @abstractmethod
    def device(self) -> str:
        """The GPU's name, and the framework's version."""

    @abstractmethod
    def inputs(self, case: Case) -> list[Any]:
        """`N_SETS` sets of (x, weight, dy), or (x, residual, weight, dy, dsum)."""

    @abstractmethod
    def function(
        self, case: Case, peer: str, which: str, operands: Any
    ) -> tuple[Callable[..., Any], dict[str, Any]]:
        """A set -> (y, [sum], [dx, dw]); and what else is to be reported of it.

        Raises:
            NotImplementedError: the implementation has no such op, dtype, or pass.
        """

    @abstractmethod
    def errors(self, case: Case, results: Any, operands: Any) -> list[float]:
        """The largest error of each result: see `time`."""

    @abstractmethod
    def kernels(self, call: Callable[..., Any], sets: Sequence[Any], runs: int) -> Kernels:
        """The kernels of `runs` calls, each of which takes the next set."""

    @abstractmethod
    def first_ms(self, case: Case, peer: str, which: str, operands: Any) -> dict[str, float]:
        """ "total", and the steps that can be told apart, of the first call at a case."""

    @abstractmethod
    def synchronize(self) -> None:
        """Raises what the device has to say."""

    def eps(self, case: Case) -> float:
        return 2.0**-7 if case.dtype == "bfloat16" else 2.0**-23


def summary(kernels: Kernels) -> dict[str, Any]:
    """The median of the runs' sums, and of each kernel."""
    if len({len(run) for run in kernels}) != 1 or not kernels[0]:
        raise RuntimeError(f"expected as many kernels in each run, got {[len(k) for k in kernels]}")
    columns = zip(*kernels, strict=True)
    return {
        "us": statistics.median(sum(us for _, us in run) for run in kernels),
        "kernels": [
            [column[0][0], statistics.median(us for _, us in column)] for column in columns
        ],
    }


def wall_us(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e6
