"""The operations of all ranks on one clock, and what follows from seeing them side by side."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from torch_ucc.tracing.clocks import TOGETHER, offsets
from torch_ucc.tracing.issuers import Issuer, issuer
from torch_ucc.tracing.records import Dump, Record


@dataclass(frozen=True)
class Entry:
    """One operation of one rank. Times are nanoseconds since the first operation of any rank."""

    rank: int
    group: str
    record: Record
    issuer: Issuer
    start_ns: int
    end_ns: int
    """Of one that is not over: the end of the trace."""
    root: int = -1
    """Its rank in the job."""

    @property
    def key(self) -> tuple[int, int]:
        """No other's."""
        return self.rank, self.record.id


@dataclass(frozen=True)
class Use:
    """What one issuer did, over all ranks."""

    issuer: Issuer
    op: str
    dtype: str
    route: str
    ranks: int
    calls: int
    bytes: int
    total_ns: int
    longest_ns: int


@dataclass(frozen=True)
class Lateness:
    """How often a rank was the last to come to an operation that needs all, and what that cost the others."""

    rank: int
    times: int
    operations: int
    waited_ns: int


def shifts(dumps: Sequence[Dump]) -> dict[int, int]:
    """Nanoseconds to add to each rank's times: all are then since the first operation of any rank."""
    if not dumps:
        return {}
    offset = offsets(dumps)
    began = min((d.records[0].issued_ns + offset[d.rank] for d in dumps if d.records), default=0)
    return {rank: each - began for rank, each in offset.items()}


def merge(dumps: Sequence[Dump]) -> list[Entry]:
    """In order of their starts."""
    shift_of = shifts(dumps)
    entries = []
    for dump in dumps:
        shift = shift_of[dump.rank]
        issuers = {number: issuer(text) for number, text in dump.sites.items()}
        for record in dump.records:
            end = record.ended_ns or dump.steady_ns
            entries.append(
                Entry(
                    dump.rank,
                    dump.group_name(record),
                    record,
                    issuers.get(record.site) or issuer(""),
                    record.issued_ns + shift,
                    end + shift,
                    _root(dump, record),
                )
            )
    return sorted(entries, key=lambda entry: entry.start_ns)


def _root(dump: Dump, record: Record) -> int:
    group = dump.groups.get(record.group)
    return group.ranks[record.root] if group and record.root >= 0 else -1


def uses(entries: Sequence[Entry]) -> list[Use]:
    """Who called what, the longest in sum first."""
    found = defaultdict(list)
    for entry in entries:
        record = entry.record
        found[entry.issuer.kind, entry.issuer.what, record.op, record.dtype, record.route].append(entry)
    rows = []
    for (_, _, op, dtype, route), each in found.items():
        times = [entry.end_ns - entry.start_ns for entry in each]
        rows.append(
            Use(
                each[0].issuer,
                op,
                dtype,
                route,
                ranks=len({entry.rank for entry in each}),
                calls=len(each),
                bytes=sum(entry.record.bytes for entry in each),
                total_ns=sum(times),
                longest_ns=max(times),
            )
        )
    return sorted(rows, key=lambda row: -row.total_ns)


def lateness(entries: Sequence[Entry]) -> list[Lateness]:
    """By rank, the one that cost the others most first. Only operations that all ranks were seen in count."""
    operations = defaultdict(list)
    for entry in entries:
        if entry.record.op in TOGETHER and entry.record.route != "none":
            operations[entry.group, entry.record.seq].append(entry)
    times: dict[int, int] = defaultdict(int)
    waited: dict[int, int] = defaultdict(int)
    took_part: dict[int, int] = defaultdict(int)
    for each in operations.values():
        last = max(each, key=lambda entry: entry.start_ns)
        for entry in each:
            took_part[entry.rank] += 1
        if len(each) > 1:
            times[last.rank] += 1
            waited[last.rank] += sum(last.start_ns - entry.start_ns for entry in each)
    rows = [Lateness(rank, times[rank], took_part[rank], waited[rank]) for rank in took_part]
    return sorted(rows, key=lambda row: (-row.waited_ns, row.rank))
