"""What a measurement is worth: pure functions of samples.

The rule. Each candidate is measured in turns with the default, and so is a twin of the default, which differs
from it in nothing. A cell's noise is half the range that the ratio of the two took, at least `MARGIN`. A
candidate wins a cell if it was faster in its whole interval and its median gain is above the noise; it loses
a cell if its median loss is. It is kept if it wins a cell and loses none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from torch_ucc.bench.cases import Case, format_size
from torch_ucc.bench.figures import Figure, Samples

DEFAULT, TWIN = "default", "default again"
"""As what they are in the samples."""

MARGIN = 0.03
"""Less than so much is no difference, however sure."""


class Outcome(Enum):
    WON = "faster"
    LOST = "slower"
    EVEN = "no difference"


@dataclass(frozen=True)
class Gain:
    """In one cell: `ratio` is the default's time over the candidate's."""

    case: Case
    ratio: Figure
    noise: float

    @property
    def outcome(self) -> Outcome:
        if self.ratio.low > 1 and self.ratio.median > 1 + self.noise:
            return Outcome.WON
        return Outcome.LOST if self.ratio.median < 1 / (1 + self.noise) else Outcome.EVEN

    def __str__(self) -> str:
        size = f" {format_size(self.case.nbytes)}" if self.case.nbytes else ""
        between = f"{self.ratio.low:.2f} to {self.ratio.high:.2f}, noise {self.noise:.0%}"
        return f"{self.case.op}{size} {self.ratio.median:.2f}x ({between})"


def gains(samples: Samples, ranks: int, candidate: str, cases: Iterable[Case]) -> list[Gain]:
    """Of the cells in which candidate, default and twin were measured."""
    found = []
    for case in cases:
        ratio = samples.ratio(DEFAULT, candidate, ranks, case)
        twin = samples.ratio(DEFAULT, TWIN, ranks, case)
        if ratio and twin:
            found.append(Gain(case, ratio, max(MARGIN, twin.spread, abs(twin.median - 1))))
    return found


def is_kept(found: Sequence[Gain]) -> bool:
    outcomes = {gain.outcome for gain in found}
    return Outcome.WON in outcomes and Outcome.LOST not in outcomes


def best(
    samples: Samples, ranks: int, candidates: Iterable[str], cases: Sequence[Case]
) -> tuple[str, list[Gain]] | None:
    """Of the candidates that are kept for these cells, all measured, the one that gains most on average."""
    kept = {
        candidate: found
        for candidate in candidates
        if len(found := gains(samples, ranks, candidate, cases)) == len(cases) and is_kept(found)
    }
    return max(kept.items(), key=lambda pair: mean_gain(pair[1])) if kept else None


def mean_gain(found: Sequence[Gain]) -> float:
    """Geometric."""
    return math.exp(sum(math.log(gain.ratio.median) for gain in found) / len(found)) if found else 1.0


def hope(samples: Samples, ranks: int, candidate: str, cases: Iterable[Case]) -> float:
    """What more turns may be worth, after a few: its gain where it was fastest; 0 if that is none at all."""
    ratios = (samples.ratio(DEFAULT, candidate, ranks, case) for case in cases)
    highest = max((ratio.median for ratio in ratios if ratio is not None), default=0.0)
    return highest if highest > 1 + MARGIN else 0.0
