"""Decides from samples whether a candidate is faster than the default. All functions are pure.

Each candidate is measured in turns with the default. A twin of the default, which has the same values, is
measured, too. The noise of a cell comes from the ratio between default and twin: it is half the interval of
this ratio, relative to its median, or the distance of the median from 1, if that is larger. It is at least
`MARGIN`. A candidate wins a cell if its whole interval is faster and its median gain is above the noise. It
loses a cell if its median loss is above the noise. It is kept if it wins a cell and loses none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from torch_ucc.bench.cases import Case, format_size
from torch_ucc.bench.figures import Figure, Samples

DEFAULT, TWIN = "default", "default again"
"""Their names in the samples."""

MARGIN = 0.03
"""A smaller relative difference never counts."""


class Outcome(Enum):
    WON = "faster"
    LOST = "slower"
    EVEN = "no difference"


@dataclass(frozen=True)
class Gain:
    """The result for one cell: `ratio` is the time with the default divided by that with the candidate."""

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
    """Return a gain for each cell in which candidate, default and twin were measured."""
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
    """Return the candidate with the largest mean gain, and its gains; None if no candidate is kept.

    Only candidates that were measured in all these cells count.
    """
    kept = {
        candidate: found
        for candidate in candidates
        if len(found := gains(samples, ranks, candidate, cases)) == len(cases) and is_kept(found)
    }
    return max(kept.items(), key=lambda pair: mean_gain(pair[1])) if kept else None


def mean_gain(found: Sequence[Gain]) -> float:
    """Return the geometric mean; 1.0 for no gains."""
    return math.exp(sum(math.log(gain.ratio.median) for gain in found) / len(found)) if found else 1.0


def hope(samples: Samples, ranks: int, candidate: str, cases: Iterable[Case]) -> float:
    """Return the highest median gain of the candidate in any cell; 0 if it is not above `MARGIN`."""
    ratios = (samples.ratio(DEFAULT, candidate, ranks, case) for case in cases)
    highest = max((ratio.median for ratio in ratios if ratio is not None), default=0.0)
    return highest if highest > 1 + MARGIN else 0.0
