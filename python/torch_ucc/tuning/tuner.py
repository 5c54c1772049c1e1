"""Conducts a tuning: one family after the other, each upon what those before it chose; then all together."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from torch_ucc.bench.cases import Case
from torch_ucc.bench.driver import MeasureError, rotated
from torch_ucc.bench.figures import Sample, Samples
from torch_ucc.tuning.choices import Family, merged
from torch_ucc.tuning.decisions import (
    DEFAULT,
    TWIN,
    Gain,
    Outcome,
    best,
    gains,
    hope,
    mean_gain,
)
from torch_ucc.tuning.profile import Values

TURNS, FEWEST_TURNS = 8, 5
"""A family is given this many turns, and decided upon if time allows at least the fewer."""

SCREENING = 2
"""After so many turns a candidate without hope is measured no more; nor are those with the least, if there is
no time for all."""

FOR_PROOF = 0.3
"""The share of the budget that is kept for measuring all choices together."""

TUNED = "tuned"

Measure = Callable[[Values, Sequence[Case]], dict[Case, float]]
"""Seconds of each case where a profile of these values is applied. Raises MeasureError."""

Notice = Callable[[str], None]


@dataclass(frozen=True)
class Choice:
    """Made for one group of a family: `values` go into the profile for these gains."""

    family: str
    variant: str
    values: Values
    gains: tuple[Gain, ...]

    def wins(self) -> list[Gain]:
        return [gain for gain in self.gains if gain.outcome is Outcome.WON]


@dataclass
class Tuning:
    """What came out. `proof`: of all choices together, in every cell that was measured; none, if there was
    no time or nothing to prove. `remarks`: what was not measured or not kept, and why."""

    choices: list[Choice] = field(default_factory=list)
    proof: list[Gain] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    @property
    def values(self) -> Values:
        return merged(*(choice.values for choice in self.choices))


class OutOfTimeError(Exception):
    """Before there were enough turns."""


class Tuner:
    """`budget` in seconds: nothing is begun that would not end in it if a measurement takes as long as in the
    last turn, be it a turn or a family of which not even one candidate could be decided upon."""

    def __init__(
        self,
        measure: Measure,
        ranks: int,
        budget: float,
        notice: Notice,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._measure, self._ranks, self._notice, self._clock = measure, ranks, notice, clock
        self._end = clock() + budget
        self._choosing_ends = self._end - FOR_PROOF * budget
        self._pace = 0.0  # seconds of a measurement, in the last turn

    def tune(self, families: Sequence[Family], environment: Mapping[str, str]) -> Tuning:
        """`environment`: what it sets is the user's, and not tuned."""
        tuning = Tuning()
        cases: dict[Case, None] = {}
        for family in families:
            if not family.is_open(environment):
                tuning.remarks.append(f"set in the environment, and so not tuned: {family.name}")
                continue
            try:
                tuning.choices += self._choose(family, tuning)
                cases.update(dict.fromkeys(family.cases()))
            except OutOfTimeError:
                tuning.remarks.append(f"no time for: {family.name}")
        self._prove(tuning, list(cases))
        return tuning

    def _choose(self, family: Family, tuning: Tuning) -> list[Choice]:
        base = tuning.values
        wanted: dict[str, tuple[Values, list[Case]]] = {
            DEFAULT: (base, family.cases()),
            **{name: (merged(base, family.values(name)), family.cases(name)) for name in family.variants},
            TWIN: (base, family.cases()),
        }
        samples = self._turns(family.name, wanted, self._choosing_ends, tuning)
        found = []
        for group, cases in family.groups.items():
            candidates = [
                name for name in family.variants if name in wanted and group in family.variants[name]
            ]
            if chosen := best(samples, self._ranks, candidates, cases):
                variant, won = chosen
                found.append(Choice(family.name, variant, family.variants[variant][group], tuple(won)))
        return found

    def _prove(self, tuning: Tuning, cases: list[Case]) -> None:
        """All choices at once, beside the defaults. What turns out to lose somewhere is not kept."""
        untuned: Values = {}
        while tuning.choices:
            wanted = {DEFAULT: (untuned, cases), TUNED: (tuning.values, cases), TWIN: (untuned, cases)}
            try:
                samples = self._turns("all choices together", wanted, self._end, tuning)
            except OutOfTimeError:
                if not tuning.proof or losses(tuning.proof):
                    tuning.remarks.append("no time to measure all choices together, so none is kept")
                    tuning.choices = []
                else:
                    tuning.remarks.append("no time to measure once more without what was dropped")
                return
            tuning.proof = gains(samples, self._ranks, TUNED, cases) if TUNED in wanted else []
            kept, dropped = upheld(tuning.choices, tuning.proof)
            for choice in dropped:
                tuning.remarks.append(f"not upheld among the others: {choice.variant} ({choice.family})")
            if not dropped:
                return
            tuning.choices = kept

    def _turns(
        self,
        what: str,
        wanted: dict[str, tuple[Values, list[Case]]],
        end: float,
        tuning: Tuning,
    ) -> Samples:
        """Measures all of them, in turns. Those that fail or have no hope are taken out of `wanted`."""
        samples: list[Sample] = []
        for turn in range(TURNS):
            if self._clock() + self._pace * needed(turn, len(wanted)) > end:
                if turn < FEWEST_TURNS:
                    raise OutOfTimeError
                break
            began, count = self._clock(), len(wanted)
            for name in rotated(list(wanted), turn):
                if turn < FEWEST_TURNS and self._clock() >= end:
                    raise OutOfTimeError
                self._notice(f"{what}: {name}, turn {turn + 1}")
                values, cases = wanted[name]
                try:
                    seconds = self._measure(values, cases)
                except MeasureError as error:
                    if name in (DEFAULT, TWIN):
                        raise
                    del wanted[name]
                    tuning.remarks.append(f"{name} ({what}) failed: {str(error).splitlines()[0]}")
                    continue
                samples += [Sample(name, self._ranks, case, turn, each) for case, each in seconds.items()]
            self._pace = (self._clock() - began) / count
            if turn + 1 == SCREENING:
                hopes = {
                    name: hope(Samples(samples), self._ranks, name, wanted[name][1])
                    for name in wanted
                    if name not in (DEFAULT, TWIN, TUNED)
                }
                most = self._most(end)
                for name in hopes.keys() - screened(hopes, most):
                    del wanted[name]
                if sum(map(bool, hopes.values())) > most:
                    tuning.remarks.append(f"no time for all of: {what}")
            if wanted.keys() <= {DEFAULT, TWIN}:
                break
        return Samples(samples)

    def _most(self, end: float) -> int:
        """How many candidates there is time for after the screening, beside the default and its twin."""
        if not self._pace:
            return sys.maxsize
        return max(1, int((end - self._clock()) / self._pace / (FEWEST_TURNS - SCREENING)) - 2)


def needed(turn: int, wanted: int) -> int:
    """How many measurements it takes at least to decide, or to go on, after so many turns of so many: before
    the screening as if it left one candidate, the default and its twin."""
    if turn < SCREENING:
        return (SCREENING - turn) * wanted + (FEWEST_TURNS - SCREENING) * min(wanted, 3)
    return max(1, FEWEST_TURNS - turn) * wanted


def screened(hopes: Mapping[str, float], most: int) -> set[str]:
    """Those with hope, and of them at most so many."""
    return set(sorted(filter(hopes.get, hopes), key=hopes.__getitem__, reverse=True)[:most])


def losses(proof: Sequence[Gain]) -> set[Case]:
    return {gain.case for gain in proof if gain.outcome is Outcome.LOST}


def upheld(choices: Sequence[Choice], proof: Sequence[Gain]) -> tuple[list[Choice], list[Choice]]:
    """Those to keep, and those to drop: whose cells lose when all are measured together, or none of whose
    cells wins again. For a cell that loses and that nobody decided about, who gained least is dropped."""
    lost = losses(proof)
    won = {gain.case for gain in proof if gain.outcome is Outcome.WON}
    keep, drop = list[Choice](), list[Choice]()
    for choice in choices:
        cells = {gain.case for gain in choice.gains}
        (keep if cells & won and not cells & lost else drop).append(choice)
    if lost and not drop:
        least = min(choices, key=lambda choice: mean_gain(choice.gains))
        keep.remove(least)
        drop.append(least)
    return keep, drop
