"""The figures the project promises, each judged against what a run measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol

from torch_ucc.bench.cases import BUSY_CASES, COLLECTIVES, Case, format_case, format_size
from torch_ucc.bench.figures import Figure, Samples, figure

Occasions = dict[str, dict[str, list[float]]]  # peer -> name of a figure -> samples


class Verdict(Enum):
    MET = "met"
    MISSED = "missed"
    BELOW_FLOOR = "missed, by the floor too"
    NOISY = "too noisy to tell"
    ABSENT = "not measured"


class Unit(Enum):
    RATIO = "ratio"
    SECONDS = "seconds"
    NANOSECONDS = "nanoseconds"
    CORE = "share of a core"
    SHARE = "share"
    COST = "share of the time"

    def show(self, value: float) -> str:
        if self is Unit.RATIO:
            return f"{value:.3g}x"
        if self is Unit.SECONDS:
            return f"{value * 1e6:.2f} us" if abs(value) < 1e-4 else f"{value * 1e3:.3f} ms"
        if self is Unit.NANOSECONDS:
            return f"{value * 1e9:.0f} ns"
        return f"{value:.2%}" if self in (Unit.CORE, Unit.COST) else f"{value:.0%}"


@dataclass(frozen=True)
class Judgement:
    name: str
    wanted: str
    measured: Figure | None
    verdict: Verdict
    unit: Unit = Unit.RATIO
    beside: Figure | None = None  # gloo's
    floor: Figure | None = None  # the same of what there is to reach: see Samples


def judge(measured: Figure | None, bound: float, *, at_most: bool) -> Verdict:
    """Met or missed only where the whole interval of the median lies on one side of `bound`. One sample does
    not say how sure it is."""
    if measured is None:
        return Verdict.ABSENT
    if measured.samples == 1:
        return Verdict.NOISY
    if at_most:
        met, missed = measured.high <= bound, measured.low > bound
    else:
        met, missed = measured.low >= bound, measured.high < bound
    return Verdict.MET if met else Verdict.MISSED if missed else Verdict.NOISY


def judge_beside(measured: Figure | None, floor: Figure | None, bound: float, *, at_most: bool) -> Verdict:
    """A miss is one of another kind where the floor misses as well, though it is the better of both."""
    verdict = judge(measured, bound, at_most=at_most)
    if verdict is not Verdict.MISSED or measured is None or floor is None:
        return verdict
    is_better = floor.median <= measured.median if at_most else floor.median >= measured.median
    misses = judge(floor, bound, at_most=at_most) is Verdict.MISSED
    return Verdict.BELOW_FLOOR if is_better and misses else verdict


class Target(Protocol):
    def judge(self, samples: Samples) -> Judgement: ...


@dataclass(frozen=True)
class RatioTarget:
    """The time of `above` over that of `below`; of several names the fastest counts."""

    ranks: int
    case: Case
    above: tuple[str, ...]
    below: str
    bound: float
    at_most: bool = False

    def judge(self, samples: Samples) -> Judgement:
        # Better than "the better of several" only where every one of them was measured.
        complete = all(samples.cell(peer, self.ranks, self.case) for peer in self.above)
        above = samples.fastest(self.above, self.ranks, self.case) if complete else None
        measured = samples.ratio(above, self.below, self.ranks, self.case) if above else None
        sign = "<=" if self.at_most else ">="
        wanted = f"{above or '|'.join(self.above)}/{self.below} {sign} {self.bound:g}"
        reached = samples.floor(self.ranks, self.case)
        top, bottom = (reached if end == "ucc" else end for end in (above or "", self.below))
        floor = samples.ratio(top, bottom, self.ranks, self.case)
        verdict = judge_beside(measured, floor, self.bound, at_most=self.at_most)
        return Judgement(format_cell(self.ranks, self.case), wanted, measured, verdict, floor=floor)


SEVERITY = (Verdict.MISSED, Verdict.NOISY, Verdict.BELOW_FLOOR, Verdict.MET)


@dataclass(frozen=True)
class EveryCellTarget:
    """The time of `above`, of several the fastest, over that of `below`, in `share` of the cells of these
    sizes, ops and dtypes. No ops or no dtypes stand for all.

    That share is the better one, by medians. The verdict is the severest of any of its cells, and what is
    shown the worst cell of that verdict: one that is sure to miss counts before one that may, and that before
    one that the floor misses as well.
    """

    ranks: int
    above: tuple[str, ...]
    bound: float
    smallest: int = 0
    largest: int = 1 << 40
    ops: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    share: float = 1.0
    below: str = "ucc"

    def judge(self, samples: Samples) -> Judgement:
        of_ranks = [sample for sample in samples.all if sample.ranks == self.ranks]
        # One of several that was not measured at all might have been the faster.
        complete = {*self.above} <= {sample.peer for sample in of_ranks}
        found: list[tuple[Case, str, Figure]] = []
        for case in dict.fromkeys(sample.case for sample in of_ranks) if complete else ():
            asked = self.smallest <= case.nbytes <= self.largest and (not self.ops or case.op in self.ops)
            asked = asked and (not self.dtypes or case.dtype in self.dtypes)
            above = samples.fastest(self.above, self.ranks, case) if asked else None
            if above and (ratio := samples.ratio(above, self.below, self.ranks, case)):
                found.append((case, above, ratio))
        found.sort(key=lambda cell: cell[2].median)
        left_out = int((1 - self.share) * len(found) + 1e-9)
        wanted = f"{'|'.join(self.above)}/{self.below} >= {self.bound:g}"
        wanted += f" in {len(found) - left_out} of {len(found)} cells" if found else " in every cell"
        cells = []
        for case, above, ratio in found[left_out:]:
            reached = samples.floor(self.ranks, case) if self.below == "ucc" else ""
            floor = samples.ratio(above, reached, self.ranks, case)
            verdict = judge_beside(ratio, floor, self.bound, at_most=False)
            cells.append(Judgement(format_cell(self.ranks, case), wanted, ratio, verdict, floor=floor))
        if not cells:
            return Judgement(f"every operation, {self.ranks} ranks", wanted, None, Verdict.ABSENT)
        return severest(cells)


def severest(cells: Sequence[Judgement]) -> Judgement:
    """The first of those with the severest verdict. The caller has sorted them, the worst first."""
    return min(cells, key=lambda cell: SEVERITY.index(cell.verdict))


def worst(cells: Iterable[Judgement], absent: Judgement) -> Judgement:
    """The highest of those with the severest verdict, or `absent` if none of them was measured."""
    found = [(cell.measured.median, cell) for cell in cells if cell.measured]
    found.sort(key=lambda pair: pair[0], reverse=True)
    return severest([cell for _, cell in found]) if found else absent


def measured_cases(samples: Samples, ranks: int) -> list[Case]:
    return list(dict.fromkeys(sample.case for sample in samples.all if sample.ranks == ranks))


@dataclass(frozen=True)
class OverheadTarget:
    """Our time less `floors` times that of torch's own dispatch, in seconds.

    The bound is the larger of `bound` and `of_openmpi` times what Open MPI takes.
    """

    case: Case
    bound: float
    floors: int = 1
    of_openmpi: float = 0.0
    ranks: int = 2

    def judge(self, samples: Samples) -> Judgement:
        measured = samples.difference("ucc", "fake", self.ranks, self.case, self.floors)
        openmpi = samples.cell("openmpi", self.ranks, self.case)
        bound = max(self.bound, self.of_openmpi * openmpi.median) if openmpi else self.bound
        fake = "fake" if self.floors == 1 else f"{self.floors} fake"
        wanted = f"ucc - {fake} <= {Unit.SECONDS.show(bound)}"
        reached = samples.floor(self.ranks, self.case)
        floor = samples.difference(reached, "fake", self.ranks, self.case, self.floors)
        verdict = judge_beside(measured, floor, bound, at_most=True)
        name = format_cell(self.ranks, self.case)
        return Judgement(name, wanted, measured, verdict, Unit.SECONDS, floor=floor)


@dataclass(frozen=True)
class EveryOverheadTarget:
    """An OverheadTarget for every measured case of these ops, of float32 and up to `largest`. The worst cell
    is shown, as by EveryCellTarget."""

    ranks: int
    ops: tuple[str, ...]
    bound: float
    largest: int

    def judge(self, samples: Samples) -> Judgement:
        name = f"every collective up to {format_size(self.largest)}, {self.ranks} ranks"
        wanted = f"ucc - fake <= {Unit.SECONDS.show(self.bound)}"
        cells = (
            OverheadTarget(case, self.bound, ranks=self.ranks).judge(samples)
            for case in measured_cases(samples, self.ranks)
            if case.op in self.ops and case.nbytes <= self.largest and case.dtype == "float32"
        )
        return worst(cells, Judgement(name, wanted, None, Verdict.ABSENT, Unit.SECONDS))


@dataclass(frozen=True)
class DtypeTarget:
    """Our time with `dtype` over that with float32, for as many bytes, in every cell that has both. The worst
    cell is shown, as by EveryCellTarget."""

    ranks: int
    dtype: str
    bound: float

    def judge(self, samples: Samples) -> Judgement:
        wanted = f"ucc/ucc of float32 <= {self.bound:g}"
        cells = []
        for case in measured_cases(samples, self.ranks):
            as_float32 = replace(case, dtype="float32")
            if case.dtype == self.dtype:
                ratio = samples.ratio("ucc", "ucc", self.ranks, case, as_float32)
                verdict = judge(ratio, self.bound, at_most=True)
                cells.append(Judgement(format_cell(self.ranks, case), wanted, ratio, verdict))
        return worst(cells, Judgement(f"{self.dtype}, {self.ranks} ranks", wanted, None, Verdict.ABSENT))


def format_cell(ranks: int, case: Case) -> str:
    return f"{format_case(case)}, {ranks} ranks"


ALL_REDUCE_4, ALL_REDUCE_64M = Case("all_reduce", 4), Case("all_reduce", 64 << 20)
PLAIN_TARGETS: tuple[Target, ...] = (
    RatioTarget(2, ALL_REDUCE_4, ("ucc",), "fake", 2.0, at_most=True),
    RatioTarget(2, ALL_REDUCE_4, ("gloo",), "ucc", 15.0),
    RatioTarget(2, ALL_REDUCE_64M, ("gloo",), "ucc", 2.5),
    RatioTarget(2, ALL_REDUCE_64M, ("openmpi", "mpich"), "ucc", 1.0),
    RatioTarget(4, ALL_REDUCE_4, ("gloo",), "ucc", 40.0),
)


KB, MB = 1 << 10, 1 << 20
BULK = ("all_reduce", "reduce_scatter_tensor", "all_gather_into_tensor", "all_to_all_single")
MPIS = ("openmpi", "mpich")
REPORT_TARGETS: tuple[Target, ...] = (
    *(
        OverheadTarget(Case(op, 0 if op == "barrier" else 4), 1.2e-6, of_openmpi=1.5)
        for op in ("all_reduce", "broadcast", "all_gather_into_tensor", "barrier")
    ),
    EveryCellTarget(2, ("gloo",), 1.0),
    EveryCellTarget(2, ("gloo",), 1.5, share=0.95),
    EveryCellTarget(2, ("gloo",), 20.0, largest=KB),
    EveryCellTarget(2, MPIS, 1.5, smallest=64 * MB, largest=64 * MB, ops=BULK),
    EveryCellTarget(2, MPIS, 1.0, smallest=MB, ops=BULK),
    RatioTarget(4, ALL_REDUCE_4, ("ucc",), "openmpi", 1.3, at_most=True),
    EveryCellTarget(4, ("gloo",), 1.0),
    RatioTarget(8, ALL_REDUCE_4, ("gloo",), "ucc", 40.0),
    OverheadTarget(Case("ping_pong", 4), 1.5e-6, floors=2),
    EveryCellTarget(2, ("ucxx",), 1.0, smallest=MB, ops=("ping_pong", "both_ways")),
)


# Targets of collectives on one host. An ordinary run judges those that it measured, and a report judges all.
ALL_MPIS = (*MPIS, "intel-mpi")
HOST_TARGETS: tuple[Target, ...] = (
    EveryOverheadTarget(2, COLLECTIVES, 0.8e-6, largest=KB),
    RatioTarget(2, ALL_REDUCE_64M, ALL_MPIS, "ucc", 2.3),
    RatioTarget(2, Case("reduce_scatter_tensor", 64 * MB), ALL_MPIS, "ucc", 2.3),
    RatioTarget(2, Case("all_reduce", 64 * KB), ALL_MPIS, "ucc", 1.7),
    RatioTarget(2, Case("all_reduce", MB), ALL_MPIS, "ucc", 1.3),
    DtypeTarget(2, "bfloat16", 1.4),
    DtypeTarget(2, "float16", 1.4),
    EveryCellTarget(2, ("gloo",), 1.0, ops=("all_reduce",), dtypes=("bfloat16",)),
    OverheadTarget(ALL_REDUCE_4, 6e-6, ranks=4),
    OverheadTarget(ALL_REDUCE_4, 15e-6, ranks=8),
)


# Of ranks on different hosts, TCP between them.
BETWEEN_TARGETS: tuple[Target, ...] = (
    EveryCellTarget(2, ("gloo", "openmpi"), 1.0, smallest=KB),
    EveryCellTarget(2, ("gloo", "openmpi"), 1 / 1.2, largest=KB - 1),
)


# Of ranks that share their cores with busy processes.
BUSY_TARGETS: tuple[Target, ...] = tuple(
    RatioTarget(2, Case(op, nbytes), ("gloo",), "ucc", 1.0) for op, nbytes in BUSY_CASES
)


def judge_there(target: Target, samples: Samples, where: str) -> Judgement:
    """The verdict on `samples`, all of which were measured `where`; its name says so."""
    found = target.judge(samples)
    return replace(found, name=found.name + where)


PROFILED, AS_FAST = "ucc+profile", 0.95  # by a profile that a tuning wrote; a twentieth is no difference


def never_slower_tuned(ranks: int) -> Target:
    return EveryCellTarget(ranks, ("ucc",), AS_FAST, below=PROFILED)


def judge_tuned_training(occasions: Occasions) -> list[Judgement]:
    """Of a DDP step, if one by a profile was measured."""
    plain, tuned = (occasions.get(peer, {}).get("averaging", []) for peer in ("ucc", PROFILED))
    pairs = [ours / theirs for ours, theirs in zip(plain, tuned, strict=False)]
    if not pairs:
        return []
    measured = figure(pairs)
    verdict = judge(measured, AS_FAST, at_most=False)
    return [Judgement("a DDP step by the profile", f"ucc/{PROFILED} >= {AS_FAST:g}", measured, verdict)]


class Beside(Enum):
    """What a figure of ours is set against."""

    NOTHING = "nothing"
    GLOO = "gloo's is subtracted"
    BELOW_GLOO = "gloo's over ours"


@dataclass(frozen=True)
class OccasionTarget:
    """`what`: the figure's name in what the occasion's ranks wrote, and their number if it is not 2."""

    what: str
    name: str
    bound: float
    unit: Unit
    beside: Beside = Beside.NOTHING
    at_most: bool = True


OCCASION_TARGETS = (
    OccasionTarget("idle", "a group that idles", 0.005, Unit.CORE),
    OccasionTarget("late", "waiting for a late rank", 0.01, Unit.CORE),
    OccasionTarget("delay", "from a late arrival to the return", 0.001, Unit.SECONDS),
    OccasionTarget("idle, 8 groups", "8 groups that idle", 0.005, Unit.CORE),
    OccasionTarget("late, 8 groups", "the same wait with 8 groups", 0.01, Unit.CORE),
    OccasionTarget("delay, 8 groups", "the same return with 8 groups", 0.001, Unit.SECONDS),
    OccasionTarget("hidden", "16 MB all_reduce hidden", 0.8, Unit.SHARE, at_most=False),
    OccasionTarget(
        "communication", "communication of a DDP step", 2.5, Unit.RATIO, Beside.BELOW_GLOO, at_most=False
    ),
    OccasionTarget(
        "averaging", "the same with DDP's copies", 2.5, Unit.RATIO, Beside.BELOW_GLOO, at_most=False
    ),
    OccasionTarget("start", "first group and all_reduce", 0.15, Unit.SECONDS, Beside.GLOO),
    OccasionTarget("start, 8 ranks", "the same of 8 ranks", 0.15, Unit.SECONDS, Beside.GLOO),
    OccasionTarget("group", "a further group", 0.001, Unit.SECONDS),
    OccasionTarget("group, 8 ranks", "a further group of 8 ranks", 0.001, Unit.SECONDS),
    OccasionTarget("recording", "the flight recorder, an operation", 1e-7, Unit.NANOSECONDS),
    OccasionTarget("recorded", "torch-ucc record, a DDP step", 0.02, Unit.COST),
)


def judge_occasions(occasions: Occasions, *, every: bool = False) -> list[Judgement]:
    """Of those that were measured, or of every one."""
    judgements = []
    for target in OCCASION_TARGETS:
        ours, gloos, alone = (occasions.get(peer, {}).get(target.what) for peer in ("ucc", "gloo", "alone"))
        if ours is None and gloos is None and not every:
            continue
        measured, floor = (
            figure(values) if (values := set_beside(target.beside, of_one or [], gloos or [])) else None
            for of_one in (ours, alone)
        )
        verdict = judge_beside(measured, floor, target.bound, at_most=target.at_most)
        beside = figure(gloos) if gloos and target.beside is Beside.NOTHING else None
        sign = {Beside.NOTHING: "", Beside.GLOO: "ucc-gloo ", Beside.BELOW_GLOO: "gloo/ucc "}[target.beside]
        wanted = f"{sign}{'<=' if target.at_most else '>='} {target.unit.show(target.bound)}"
        judgements.append(Judgement(target.name, wanted, measured, verdict, target.unit, beside, floor))
    return judgements


def set_beside(beside: Beside, ours: list[float], gloos: list[float]) -> list[float]:
    if beside is Beside.NOTHING:
        return ours
    pairs = zip(ours, gloos, strict=False)  # of turns that both had
    return [gloo / our if beside is Beside.BELOW_GLOO else our - gloo for our, gloo in pairs]
