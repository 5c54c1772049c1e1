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


FLOOR = "floor"
NOTHING_TO_COPY = 1024  # bytes


class Samples:
    """All samples of a run, looked up by peer, ranks and case.

    FLOOR is one more peer: what UCC or UCX alone and torch's dispatch take together, turn by turn, for the
    same calls, each made as a whole. Who cuts large ones into pieces may be faster. Where ranks outnumber
    cores, and between hosts, it was measured, with a microsecond or two of Python around a call of C, else
    the two are added.
    """

    def __init__(self, samples: Sequence[Sample]) -> None:
        self.all = list(samples)
        self._by_key: dict[tuple[str, int, Case], dict[int, float]] = {}
        for sample in samples:
            of_cell = self._by_key.setdefault((sample.peer, sample.ranks, sample.case), {})
            of_cell[sample.repetition] = sample.seconds
        for (peer, ranks, case), alone in list(self._by_key.items()):
            measured = (FLOOR, ranks, case) in self._by_key
            if peer == "alone" and not measured and (dispatch := self._dispatch(ranks, case.op)):
                both = sorted(alone.keys() & dispatch.keys())
                self._by_key[FLOOR, ranks, case] = {turn: alone[turn] + dispatch[turn] for turn in both}

    def _dispatch(self, ranks: int, op: str) -> dict[int, float] | None:
        """torch's `fake` at the smallest size that it was given, if small: what is larger it copies."""
        cases = [key[2] for key in self._by_key if key[:2] == ("fake", ranks) and key[2].op == op]
        small = [case for case in cases if case.nbytes <= NOTHING_TO_COPY]
        return self._by_key["fake", ranks, min(small)] if small else None

    def cell(self, peer: str, ranks: int, case: Case) -> Figure | None:
        values = self._by_key.get((peer, ranks, case))
        return figure(list(values.values())) if values else None

    def ratio(self, above: str, below: str, ranks: int, case: Case) -> Figure | None:
        """Times of `above` over times of `below`, paired by repetition: what slows the machine slows both."""
        top = self._by_key.get((above, ranks, case), {})
        bottom = self._by_key.get((below, ranks, case), {})
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
