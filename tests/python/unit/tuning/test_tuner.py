"""A tuning, on a machine that is made up: a clock that turns advance, and times that values change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version

import pytest
from torch_ucc.bench.cases import Case
from torch_ucc.bench.driver import MeasureError, rotated
from torch_ucc.tuning import report
from torch_ucc.tuning.choices import Family
from torch_ucc.tuning.decisions import Gain, Outcome
from torch_ucc.tuning.profile import Values
from torch_ucc.tuning.tuner import FEWEST_TURNS, TURNS, Tuner, Tuning

SMALL, LARGE = Case("all_reduce", 4), Case("all_reduce", 1 << 20)
Speed = Callable[[Values, Case], float]


def family(name: str, cases: Sequence[Case], **variants: Mapping[str, str]) -> Family:
    """Of settings of ours."""
    return Family(
        name,
        {"all": tuple(cases)},
        {each: {"all": {"settings": dict(said)}} for each, said in variants.items()},
    )


PIECES = family("pieces", [LARGE], small={"segment_bytes": "256k"}, big={"segment_bytes": "4m"})
WAITING = family("waiting", [SMALL, LARGE], none={"spin": "0us"})


class Machine:
    """Each turn takes a second. `speed` says how many times faster than usual a case is."""

    def __init__(self, speed: Speed) -> None:
        self.now, self.calls, self._speed = 0.0, 0, speed

    def measure(self, values: Values, cases: Sequence[Case]) -> dict[Case, float]:
        self.now += 1.0
        self.calls += 1
        jitter = 1 + 0.01 * (self.calls % 3)
        return {case: jitter / self._speed(values, case) for case in cases}

    def tune(self, families: Sequence[Family], budget: float = 1000.0, **environment: str) -> Tuning:
        tuner = Tuner(self.measure, 2, budget, lambda _: None, clock=lambda: self.now)
        return tuner.tune(families, environment)


def said(values: Values, name: str) -> str:
    return values.get("settings", {}).get(name, "")


def test_what_is_faster_is_chosen_and_proved() -> None:
    def speed(values: Values, case: Case) -> float:
        return 1.5 if said(values, "segment_bytes") == "4m" and case == LARGE else 1.0

    tuning = Machine(speed).tune([PIECES, WAITING])
    assert tuning.values == {"settings": {"segment_bytes": "4m"}}
    assert [(gain.case, gain.outcome) for gain in tuning.proof] == [
        (LARGE, Outcome.WON),
        (SMALL, Outcome.EVEN),
    ]
    assert tuning.remarks == []
    assert report.notes(tuning)["settings", "segment_bytes"][0].startswith("4m: all_reduce 1 MB 1.")
    assert "of 2 cells, 1 became faster and 0 became slower" in report.summary(tuning)[0]


def test_a_profile_says_which_version_made_it() -> None:
    (first, *_) = report.head(512)
    assert f"`torch-ucc tune` {version('torch-ucc')} wrote this" in first and "after 512 s" in first


def test_on_a_machine_where_nothing_matters_nothing_is_chosen() -> None:
    tuning = Machine(lambda values, case: 1.0).tune([PIECES, WAITING])
    assert tuning == Tuning()
    assert report.summary(tuning) == ["No measured setting is faster than the defaults on these hosts."]


def test_a_gain_that_costs_another_cell_is_not_chosen() -> None:
    def speed(values: Values, case: Case) -> float:
        return {"0us": {SMALL: 0.8, LARGE: 3.0}}.get(said(values, "spin"), {}).get(case, 1.0)

    assert Machine(speed).tune([WAITING]).choices == []


def test_choices_that_lose_together_are_dropped() -> None:
    """Each gains alone; both together lose what only the second decides about, too."""

    def speed(values: Values, case: Case) -> float:
        both = said(values, "spin") and said(values, "segment_bytes")
        if case == SMALL:
            return 0.5 if both else 1.0
        return (1.5 if said(values, "segment_bytes") == "4m" else 1.0) * (
            1.5 if said(values, "spin") else 1.0
        )

    waiting = family("waiting", [LARGE], none={"spin": "0us"})
    other = family("other", [SMALL], none={"yield_for": "1s"})  # has the small cell measured
    tuning = Machine(speed).tune([PIECES, waiting, other])
    assert len(tuning.choices) == 1 and all(gain.outcome is not Outcome.LOST for gain in tuning.proof)
    assert len(tuning.remarks) == 1 and "was dropped" in tuning.remarks[0]


def test_later_families_are_measured_upon_earlier_choices() -> None:
    asked: list[str] = []

    def speed(values: Values, case: Case) -> float:
        asked.append(f"{said(values, 'segment_bytes')} {said(values, 'spin')}".strip())
        return 1.5 if said(values, "segment_bytes") == "4m" else 1.0

    Machine(speed).tune([PIECES, WAITING])
    assert "4m 0us" in asked and "0us" not in asked


def test_what_the_user_set_is_left_alone() -> None:
    machine = Machine(lambda values, case: 2.0 if values else 1.0)
    tuning = machine.tune([PIECES], TORCH_UCC_SEGMENT_BYTES="1m")
    assert machine.calls == 0 and tuning.choices == []
    assert tuning.remarks == ['"pieces" was not tuned, because the user sets at least one of its variables']


def test_the_budget_is_kept_and_what_had_no_time_is_named() -> None:
    machine = Machine(lambda values, case: 1.5 if said(values, "segment_bytes") == "4m" else 1.0)
    tuning = machine.tune([PIECES, WAITING], budget=60.0)
    assert machine.now <= 60.0
    assert tuning.values == {"settings": {"segment_bytes": "4m"}} and tuning.remarks == []
    machine = Machine(lambda values, case: 1.5 if values else 1.0)
    tuning = machine.tune([PIECES, WAITING], budget=30.0)
    assert machine.now <= 33.0 and 'there was no time to tune "waiting"' in tuning.remarks


def test_a_family_that_cannot_be_decided_upon_takes_nothing_of_the_budget() -> None:
    """Of 35 s the first takes 8, so that the second, of which one candidate takes 29, has not even a turn."""
    large = family("large", [SMALL], **{f"c{number}": {"spin": f"{number}ms"} for number in range(8)})
    machine = Machine(lambda values, case: 1.5 if said(values, "yield_for") else 1.0)
    asked: list[str] = []

    def measure(values: Values, cases: Sequence[Case]) -> dict[Case, float]:
        asked.append(said(values, "spin"))
        return machine.measure(values, cases)

    small = family("small", [LARGE], one={"yield_for": "1s"})
    tuning = Tuner(measure, 2, 50.0, lambda _: None, clock=lambda: machine.now).tune(
        [PIECES, large, small], {}
    )
    assert tuning.remarks == ['there was no time to tune "large"'] and not any(asked)
    assert tuning.values == {"settings": {"yield_for": "1s"}}


def test_where_there_is_no_time_for_all_the_most_hopeful_go_on() -> None:
    gain = {f"{number}ms": 1.1 + 0.1 * number for number in range(8)}
    many = family("many", [LARGE], **{f"c{number}": {"spin": f"{number}ms"} for number in range(8)})
    machine = Machine(lambda values, case: gain.get(said(values, "spin"), 1.0))
    tuning = machine.tune([many], budget=70.0)
    assert tuning.values == {"settings": {"spin": "7ms"}} and machine.now <= 70.0
    assert tuning.remarks == ['there was no time to measure all candidates of "many"']


def test_a_choice_that_could_not_be_proved_is_not_kept() -> None:
    """The last turn takes so long that nothing can come after it."""
    machine = Machine(lambda values, case: 1.5 if values else 1.0)
    quick = machine.measure

    def measure(values: Values, cases: Sequence[Case]) -> dict[Case, float]:
        if machine.calls == 4 * TURNS - 1:
            machine.now += 1000.0
        return quick(values, cases)

    tuning = Tuner(measure, 2, 100.0, lambda _: None, clock=lambda: machine.now).tune([PIECES], {})
    assert tuning.choices == [] and "keeps none of them" in tuning.remarks[-1]


def test_a_candidate_that_fails_is_left_out_and_the_default_is_not() -> None:
    machine = Machine(lambda values, case: 1.5 if values else 1.0)

    def measure(values: Values, cases: Sequence[Case]) -> dict[Case, float]:
        if said(values, "segment_bytes") == "4m":
            raise MeasureError("rank 1: broken\nat length")
        return machine.measure(values, cases)

    tuning = Tuner(measure, 2, 1000.0, lambda _: None, clock=lambda: machine.now).tune([PIECES], {})
    assert tuning.values == {"settings": {"segment_bytes": "256k"}}
    assert tuning.remarks == ["the measurement of big (pieces) failed: rank 1: broken"]

    def fail(values: Values, cases: Sequence[Case]) -> dict[Case, float]:
        raise MeasureError("nothing works")

    with pytest.raises(MeasureError):
        Tuner(fail, 2, 1000.0, lambda _: None).tune([PIECES], {})


def test_who_has_no_hope_is_soon_measured_no_more() -> None:
    machine = Machine(lambda values, case: 1.0)
    machine.tune([PIECES])
    assert machine.calls == 2 * 4


def test_each_comes_first_in_its_turn() -> None:
    assert [rotated(["a", "b", "c"], turn)[0] for turn in range(4)] == ["a", "b", "c", "a"]
    assert FEWEST_TURNS <= TURNS


def test_a_summary_names_remarks_and_gains() -> None:
    tuning = Machine(lambda values, case: 1.5 if values else 1.0).tune([PIECES])
    assert isinstance(tuning.proof[0], Gain)
    tuning.remarks.append('there was no time to tune "waiting"')
    lines = report.summary(tuning)
    assert lines[1].startswith("  all_reduce 1 MB 1.") and lines[-1] == 'There was no time to tune "waiting".'
