"""What the forward kernel, its formula and its derivatives are specialised for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """Attributes:
    eps: added to the mean of squares.
    weight_offset: added to the weight, in the dtype of the computation; derivatives need no other.
    round_before_weight: whether `x * rstd` is rounded to x's dtype before it meets the weight.
    """

    eps: float
    weight_offset: float = 0.0
    round_before_weight: bool = False
