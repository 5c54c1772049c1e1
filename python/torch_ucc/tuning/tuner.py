"""Runs a tuning: one family after the other, each on top of the earlier choices; then all together."""

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
"""The turns that a family gets, and the fewest turns after which it can be decided."""

SCREENING = 2
"""After so many turns, candidates without `hope` are dropped. If there is no time for all others, those with
the least hope are dropped, too."""

FOR_PROOF = 0.3
"""The share of the budget that is kept for measuring all choices together."""

TUNED = "tuned"

Measure = Callable[[Values, Sequence[Case]], dict[Case, float]]
"""Returns the seconds that each case takes with a profile of these values. Raises MeasureError."""

Notice = Callable[[str], None]


@dataclass(frozen=True)
class Choice:
    """A choice for one group of a family: `values` go into the profile because of these gains."""

    family: str
    variant: str
    values: Values
    gains: tuple[Gain, ...]

    def wins(self) -> list[Gain]:
        return [gain for gain in self.gains if gain.outcome is Outcome.WON]


@dataclass
class Tuning:
    """The result of a tuning.

    `proof` has the gains of all choices together, in every cell that was measured. It is empty if there was
    no time, or no choice. `remarks` say what was not measured or not kept, and why.
    """

    choices: list[Choice] = field(default_factory=list)
    proof: list[Gain] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    @property
    def values(self) -> Values:
        return merged(*(choice.values for choice in self.choices))


class OutOfTimeError(Exception):
    """The time ended before there were enough turns to decide."""


class Tuner:
    """Runs a tuning within `budget` seconds.

    It assumes that a measurement takes as long as in the last turn. It begins a turn or a family only if the
    time is then enough to decide about at least one candidate.
    """

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
        """Return the result. What `environment` sets is not tuned, because the user has chosen it."""
        tuning = Tuning()
        cases: dict[Case, None] = {}
        for family in families:
            if not family.is_open(environment):
                tuning.remarks.append(
                    f'"{family.name}" was not tuned, because the user sets at least one of its variables'
                )
                continue
            try:
                tuning.choices += self._choose(family, tuning)
                cases.update(dict.fromkeys(family.cases()))
            except OutOfTimeError:
                tuning.remarks.append(f'there was no time to tune "{family.name}"')
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
                    tuning.remarks.append(
                        "there was no time to measure all choices together, so the profile keeps none of them"
                    )
                    tuning.choices = []
                else:
                    tuning.remarks.append("there was no time to measure the remaining choices again")
                return
            tuning.proof = gains(samples, self._ranks, TUNED, cases) if TUNED in wanted else []
            kept, dropped = upheld(tuning.choices, tuning.proof)
            for choice in dropped:
                tuning.remarks.append(
                    f"the choice {choice.variant} ({choice.family}) was dropped, because it did not gain "
                    "enough when all choices were measured together"
                )
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
                    why = str(error).splitlines()[0]
                    tuning.remarks.append(f"the measurement of {name} ({what}) failed: {why}")
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
                    tuning.remarks.append(f'there was no time to measure all candidates of "{what}"')
            if wanted.keys() <= {DEFAULT, TWIN}:
                break
        return Samples(samples)

    def _most(self, end: float) -> int:
        """How many candidates there is time for after the screening, beside the default and its twin."""
        if not self._pace:
            return sys.maxsize
        return max(1, int((end - self._clock()) / self._pace / (FEWEST_TURNS - SCREENING)) - 2)


def needed(turn: int, wanted: int) -> int:
    """Return how many more measurements are needed at least to decide, after `turn` turns.

    `wanted` is the number of candidates, with the default and its twin. Before the screening, the function
    assumes that the screening leaves one candidate, the default and its twin. After enough turns to decide,
    the result is that of one more turn.
    """
    if turn < SCREENING:
        return (SCREENING - turn) * wanted + (FEWEST_TURNS - SCREENING) * min(wanted, 3)
    return max(1, FEWEST_TURNS - turn) * wanted


def screened(hopes: Mapping[str, float], most: int) -> set[str]:
    """Return the names of the candidates with the highest hope above 0, at most `most`."""
    return set(sorted(filter(hopes.get, hopes), key=hopes.__getitem__, reverse=True)[:most])


def losses(proof: Sequence[Gain]) -> set[Case]:
    return {gain.case for gain in proof if gain.outcome is Outcome.LOST}


def upheld(choices: Sequence[Choice], proof: Sequence[Gain]) -> tuple[list[Choice], list[Choice]]:
    """Return the choices to keep and the choices to drop, after all were measured together.

    A choice is dropped if one of its cells loses, or if none of its cells wins again. If only cells lose that
    belong to no choice, the choice with the least mean gain is dropped.
    """
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
