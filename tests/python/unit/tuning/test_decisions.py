"""What a measurement is worth, on made-up samples."""

from __future__ import annotations

import pytest
from torch_ucc.bench.cases import Case
from torch_ucc.bench.figures import Sample, Samples
from torch_ucc.tuning.decisions import DEFAULT, TWIN, Outcome, best, gains, hope, is_kept, mean_gain

SMALL, LARGE = Case("all_reduce", 4), Case("all_reduce", 1 << 20)
QUIET = [1.00, 1.01, 0.99, 1.00, 1.01, 0.99, 1.00, 1.00]
NOISY = [1.00, 1.30, 0.80, 1.10, 0.75, 1.25, 0.95, 1.00]


def samples(case: Case, times: dict[str, list[float]]) -> list[Sample]:
    return [Sample(name, 2, case, turn, each) for name, of in times.items() for turn, each in enumerate(of)]


def against(candidate: list[float], default: list[float] = QUIET, twin: list[float] = QUIET) -> Samples:
    return Samples(samples(SMALL, {DEFAULT: default, TWIN: twin, "it": candidate}))


def outcome(run: Samples) -> Outcome:
    (gain,) = gains(run, 2, "it", [SMALL])
    return gain.outcome


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (against([0.8 * each for each in QUIET]), Outcome.WON),
        (against([1.2 * each for each in QUIET]), Outcome.LOST),
        (against(QUIET), Outcome.EVEN),
        # Sure, but less than the margin.
        (against([0.98] * 8, [1.0] * 8, [1.0] * 8), Outcome.EVEN),
        (against([1.02] * 8, [1.0] * 8, [1.0] * 8), Outcome.EVEN),
        # On a noisy machine the same gain and loss are none.
        (against([0.85] * 8, [1.0] * 8, NOISY), Outcome.EVEN),
        (against([1.15] * 8, [1.0] * 8, NOISY), Outcome.EVEN),
        # A gain in the middle, and a loss in some turns: not sure.
        (against([0.8, 0.8, 1.2, 0.8, 1.2, 0.8, 1.2, 0.8]), Outcome.EVEN),
        # The twin was always slower by as much: something other than the candidate decides.
        (against([1.0] * 8, [1.2] * 8, [1.0] * 8), Outcome.EVEN),
    ],
)
def test_an_outcome(run: Samples, expected: Outcome) -> None:
    assert outcome(run) is expected


def test_a_slow_turn_slows_all_alike() -> None:
    slow = [5.0 if turn == 3 else 1.0 for turn in range(8)]
    assert outcome(against([0.8 * each for each in slow], slow, slow)) is Outcome.WON


def both(small: float, large: float, name: str = "it") -> list[Sample]:
    return [
        sample
        for case, factor in ((SMALL, small), (LARGE, large))
        for sample in samples(case, {name: [factor * each for each in QUIET]})
    ]


BASE = [sample for case in (SMALL, LARGE) for sample in samples(case, {DEFAULT: QUIET, TWIN: QUIET})]


@pytest.mark.parametrize(
    ("small", "large", "kept"),
    [(0.8, 1.0, True), (0.8, 0.8, True), (1.0, 1.0, False), (0.5, 1.2, False), (1.2, 1.2, False)],
)
def test_one_win_is_needed_and_no_loss_forgiven(small: float, large: float, kept: bool) -> None:
    found = gains(Samples(BASE + both(small, large)), 2, "it", [SMALL, LARGE])
    assert len(found) == 2 and is_kept(found) is kept


def test_the_best_of_those_that_are_kept() -> None:
    run = Samples(BASE + both(0.9, 0.9, "some") + both(0.5, 0.8, "more") + both(0.1, 1.5, "loser"))
    chosen = best(run, 2, ["some", "more", "loser"], [SMALL, LARGE])
    assert chosen is not None and chosen[0] == "more"
    assert mean_gain(chosen[1]) == pytest.approx((1 / (0.5 * 0.8)) ** 0.5)
    assert best(run, 2, ["loser"], [SMALL, LARGE]) is None


def test_who_lacks_a_cell_is_not_chosen() -> None:
    run = Samples(BASE + samples(SMALL, {"it": [0.5] * 8}))
    assert best(run, 2, ["it"], [SMALL, LARGE]) is None
    assert best(run, 2, ["it"], [SMALL]) is not None


def test_hope_is_being_faster_somewhere() -> None:
    run = Samples(BASE + both(1.3, 0.9, "some") + both(1.0, 1.3, "none"))
    assert hope(run, 2, "some", [SMALL, LARGE]) == pytest.approx(1 / 0.9, rel=0.05)
    assert hope(run, 2, "some", [SMALL]) == hope(run, 2, "none", [SMALL, LARGE]) == 0
