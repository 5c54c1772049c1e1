"""Reads from a recorded job which operations are worth tuning, and estimates what the job would gain."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch_ucc.bench.cases import Case
from torch_ucc.tracing.records import Dump, Record
from torch_ucc.tracing.text import duration
from torch_ucc.tuning.choices import Family
from torch_ucc.tuning.decisions import Gain

NEAR = 8.0
"""A measured size stands for sizes that differ by at most this factor."""

# Operations that the bench measures under another name.
_AS = {
    "all_gather": "all_gather_into_tensor",
    "all_gather_into_tensor_coalesced": "all_gather_into_tensor",
    "all_reduce_coalesced": "all_reduce",
    "all_to_all": "all_to_all_single",
    "recv": "ping_pong",
    "recv_any_source": "ping_pong",
    "reduce_scatter": "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_tensor",
    "send": "ping_pong",
}


_OF_PARTS = ("all_gather_into_tensor", "all_to_all_single", "reduce_scatter_tensor", "gather", "scatter")


@dataclass(frozen=True)
class Workload:
    """The nanoseconds of each operation and size, and of the whole recording: means over the ranks."""

    spent: dict[Case, float]
    span_ns: float

    @property
    def spent_ns(self) -> float:
        return sum(self.spent.values())

    def has(self, case: Case) -> bool:
        """Return whether the job has operations for which the case stands (see NEAR)."""
        return any(_distance(case, own) <= math.log(NEAR) for own in self.spent)

    def saved_ns(self, gains: Iterable[Gain]) -> float:
        """Return the nanoseconds saved if each operation gains as much as the nearest measured case.

        Negative if it becomes slower. An operation without a case that stands for it does not change.
        """
        measured = {gain.case: gain.ratio.median for gain in gains}
        saved = 0.0
        for own, spent in self.spent.items():
            near = min(measured, key=lambda case: _distance(case, own), default=None)
            if near is not None and _distance(near, own) <= math.log(NEAR):
                saved += spent * (1 - 1 / measured[near])
        return saved


def _distance(case: Case, own: Case) -> float:
    if case.op != own.op:
        return math.inf
    return abs(math.log((case.nbytes or 1) / (own.nbytes or 1)))


def of(dumps: Sequence[Dump]) -> Workload:
    """Return the workload of these dumps. Raises ValueError if they have no operation that completed."""
    spent: dict[Case, float] = defaultdict(float)
    span = 0.0
    for dump in dumps:
        ended = [each for each in dump.records if each.state == "completed" and each.route != "none"]
        for record in ended:
            case = _case(record, dump)
            spent[case] += (record.ended_ns - record.issued_ns) / len(dumps)
        if ended:
            first = min(each.issued_ns for each in ended)
            span += (max(each.ended_ns for each in ended) - first) / len(dumps)
    if not spent:
        raise ValueError("the recorded job has no operations that completed")
    return Workload(dict(spent), span)


def _case(record: Record, dump: Dump) -> Case:
    """As the bench counts: the bytes of one part, if each rank has a part."""
    op = _AS.get(record.op, record.op)
    if op == "barrier":
        return Case(op, 0)
    group = dump.groups.get(record.group)
    parts = len(group.ranks) if group and op in _OF_PARTS else 1
    return Case(op, record.bytes // parts)


def narrowed(families: Iterable[Family], workload: Workload) -> list[Family]:
    """Return the families with only the cells that stand for operations of the job."""
    found = []
    for family in families:
        groups = {
            name: own for name, cases in family.groups.items() if (own := tuple(filter(workload.has, cases)))
        }
        variants = {
            name: kept
            for name, of_group in family.variants.items()
            if (kept := {group: values for group, values in of_group.items() if group in groups})
        }
        if groups and variants:
            found.append(Family(family.name, groups, variants))
    return found


def forecast(workload: Workload, gains: Sequence[Gain]) -> str:
    saved = workload.saved_ns(gains)
    share = saved / workload.spent_ns if workload.spent_ns else 0.0
    told = (
        f"On average, a rank of the recorded job spends {duration(workload.spent_ns)} of "
        f"{duration(workload.span_ns)} in operations. This includes the time that it waits for late ranks. "
    )
    if abs(share) < 0.005:
        return told + "The profile would not change this time."
    word = "shorter" if saved > 0 else "longer"
    difference = f"about {duration(abs(saved))} ({abs(share):.0%}) {word}"
    return told + f"With the profile, this time would be {difference}."
