"""From samples to figures: medians, how sure they are, and ratios of neighbours in time."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from torch_ucc.bench.cases import Case


@dataclass(frozen=True)
class Sample:
    """What one run of one peer gave for one case."""

    peer: str
    ranks: int
    case: Case
    repetition: int
    seconds: float
    hosts: int = 1
    busy: int = 0  # processes that computed on the same cores meanwhile


@dataclass(frozen=True)
class Figure:
    """A median, and the interval that holds the true one with about 95 % confidence; of up to 7 samples
    all, which is 94 % for 5 and 75 % for 3."""

    median: float
    low: float
    high: float
    samples: int

    @property
    def spread(self) -> float:
        """Half the interval, relative to the median."""
        return (self.high - self.low) / 2 / abs(self.median) if self.median else 0.0


def figure(values: Sequence[float]) -> Figure:
    """Distribution-free: the order statistics 1.96 standard deviations of Binomial(n, 1/2) off the middle."""
    ordered = sorted(values)
    skip = max(0, math.floor(len(ordered) / 2 - 0.98 * math.sqrt(len(ordered))))
    return Figure(statistics.median(ordered), ordered[skip], ordered[-1 - skip], len(ordered))


def behind_dispatch(peer: str) -> str:
    """The name of the samples in which torch's dispatch precedes each call of a peer in C."""
    return f"{peer}+fake"


# What UCC, UCX or loops over shared memory take after torch's dispatch, for the same calls, each made as a
# whole. A library that cuts large ones into pieces may be faster. The loops and the dispatch by themselves
# take less: torch's then finds its caches warm.
FLOORS = tuple(map(behind_dispatch, ("alone", "floor")))


class Samples:
    """All samples of a run, looked up by peer, ranks and case."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self.all = list(samples)
        self._by_key: dict[tuple[str, int, Case], dict[int, float]] = {}
        for sample in samples:
            of_cell = self._by_key.setdefault((sample.peer, sample.ranks, sample.case), {})
            of_cell[sample.repetition] = sample.seconds

    def cell(self, peer: str, ranks: int, case: Case) -> Figure | None:
        values = self._by_key.get((peer, ranks, case))
        return figure(list(values.values())) if values else None

    def ratio(
        self, above: str, below: str, ranks: int, case: Case, below_case: Case | None = None
    ) -> Figure | None:
        """Times of `above` over times of `below`, paired by repetition: what slows the machine slows both.

        Both are times of `case`, unless `below_case` is another one.
        """
        top = self._by_key.get((above, ranks, case), {})
        bottom = self._by_key.get((below, ranks, below_case or case), {})
        pairs = [top[repetition] / bottom[repetition] for repetition in sorted(top.keys() & bottom.keys())]
        return figure(pairs) if pairs else None

    def difference(self, more: str, less: str, ranks: int, case: Case, times: int = 1) -> Figure | None:
        """Times of `more` less so many times those of `less`, paired by repetition."""
        minuends = self._by_key.get((more, ranks, case), {})
        subtrahends = self._by_key.get((less, ranks, case), {})
        both = sorted(minuends.keys() & subtrahends.keys())
        return figure([minuends[turn] - times * subtrahends[turn] for turn in both]) if both else None

    def fastest(self, peers: Sequence[str], ranks: int, case: Case) -> str | None:
        cells = {peer: cell for peer in peers if (cell := self.cell(peer, ranks, case))}
        return min(cells, key=lambda peer: cells[peer].median) if cells else None

    def floor(self, ranks: int, case: Case) -> str:
        """The fastest of FLOORS, or the first if none was measured."""
        return self.fastest(FLOORS, ranks, case) or FLOORS[0]
