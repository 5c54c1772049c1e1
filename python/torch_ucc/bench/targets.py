"""The figures the project promises, each judged against what a run measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from torch_ucc.bench.cases import Case
from torch_ucc.bench.figures import Figure, Samples, figure

Waits = dict[
    str, dict[str, list[float]]
]  # peer -> "idle", "late" (shares of a core), "delay" (seconds) -> samples


class Verdict(Enum):
    MET = "met"
    MISSED = "missed"
    NOISY = "too noisy to tell"
    ABSENT = "not measured"


class Unit(Enum):
    RATIO = "ratio"
    SECONDS = "seconds"
    CORE = "share of a core"

    def show(self, value: float) -> str:
        if self is Unit.RATIO:
            return f"{value:.3g}x"
        return f"{value:.2%}" if self is Unit.CORE else f"{value * 1e3:.3f} ms"


@dataclass(frozen=True)
class Judgement:
    name: str
    wanted: str
    measured: Figure | None
    verdict: Verdict
    unit: Unit = Unit.RATIO
    beside: Figure | None = None  # gloo's


def judge(measured: Figure | None, bound: float, *, at_most: bool) -> Verdict:
    """Met or missed only where the whole interval of the median lies on one side of `bound`."""
    if measured is None:
        return Verdict.ABSENT
    if at_most:
        met, missed = measured.high <= bound, measured.low > bound
    else:
        met, missed = measured.low >= bound, measured.high < bound
    return Verdict.MET if met else Verdict.MISSED if missed else Verdict.NOISY


@dataclass(frozen=True)
class RatioTarget:
    """The time of `above` over that of `below`; of several names the fastest counts."""

    ranks: int
    case: Case
    above: tuple[str, ...]
    below: str
    bound: float
    at_most: bool = False


ALL_REDUCE_4, ALL_REDUCE_64M = Case("all_reduce", 4), Case("all_reduce", 64 << 20)
RATIO_TARGETS = (
    RatioTarget(2, ALL_REDUCE_4, ("ucc",), "fake", 2.0, at_most=True),
    RatioTarget(2, ALL_REDUCE_4, ("gloo",), "ucc", 15.0),
    RatioTarget(2, ALL_REDUCE_64M, ("gloo",), "ucc", 2.5),
    RatioTarget(2, ALL_REDUCE_64M, ("openmpi", "mpich"), "ucc", 1.0),
    RatioTarget(4, ALL_REDUCE_4, ("gloo",), "ucc", 40.0),
)


@dataclass(frozen=True)
class WaitTarget:
    what: str
    name: str
    bound: float
    unit: Unit


WAIT_TARGETS = (
    WaitTarget("idle", "a group that idles", 0.005, Unit.CORE),
    WaitTarget("late", "waiting for a late rank", 0.01, Unit.CORE),
    WaitTarget("delay", "from a late arrival to the return", 0.001, Unit.SECONDS),
)


def judge_ratios(samples: Samples, format_case: Callable[[int, Case], str]) -> list[Judgement]:
    judgements = []
    for target in RATIO_TARGETS:
        # Better than "the better of several" only where every one of them was measured.
        complete = all(samples.cell(peer, target.ranks, target.case) for peer in target.above)
        above = samples.fastest(target.above, target.ranks, target.case) if complete else None
        measured = samples.ratio(above, target.below, target.ranks, target.case) if above else None
        sign = "<=" if target.at_most else ">="
        wanted = f"{above or '|'.join(target.above)}/{target.below} {sign} {target.bound:g}"
        verdict = judge(measured, target.bound, at_most=target.at_most)
        judgements.append(Judgement(format_case(target.ranks, target.case), wanted, measured, verdict))
    return judgements


def judge_waits(waits: Waits) -> list[Judgement]:
    judgements = []
    for target in WAIT_TARGETS:
        of_ucc, of_gloo = (waits.get(peer, {}).get(target.what) for peer in ("ucc", "gloo"))
        measured = figure(of_ucc) if of_ucc else None
        verdict = judge(measured, target.bound, at_most=True)
        beside = figure(of_gloo) if of_gloo else None
        wanted = f"<= {target.unit.show(target.bound)}"
        judgements.append(Judgement(target.name, wanted, measured, verdict, target.unit, beside))
    return judgements
