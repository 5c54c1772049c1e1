"""What is wrong with a running job, and who is the cause: a few sentences, or none where all is well."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from torch_ucc.status.job import Job, Rank, shown
from torch_ucc.tracing import diagnosis, timeline
from torch_ucc.tracing.records import Record
from torch_ucc.tracing.text import duration

PATIENCE_NS = 1_000_000_000
"""An operation may take so long before anybody is looked for who keeps it from ending."""
_OFTEN = 0.6
"""A rank or host that is the last in this part of the operations is a straggler, ..."""
_MUCH = 0.2
"""... if the others wait for this part of the time."""
_ENOUGH = 10
"""Operations that must have been seen to say so."""


@dataclass(frozen=True)
class Finding:
    text: str
    ranks: tuple[int, ...] = ()
    """The cause."""


def findings(job: Job) -> list[Finding]:
    """The most important first."""
    found = [*_ended(job), *_failed(job), *_waited_for(job)]
    return found or list(_slow(job))


def _ended(job: Job) -> Iterator[Finding]:
    for rank, what in sorted(job.gone.items()):
        yield Finding(f"{what[0].upper()}{what[1:]}.", (rank,))
    for host in job.silent:
        yield Finding(f"Host {host}. Nothing is known of its ranks.")
    by_host = defaultdict(list)
    for rank in job.missing():
        by_host[job.host_of(rank)].append(rank)
    for host, ranks in by_host.items():
        yield Finding(
            f"{_ranks(ranks)} on host {host} cannot be seen: the process has ended, belongs to another "
            "user, or is in another container.",
            tuple(ranks),
        )


def _failed(job: Job) -> Iterator[Finding]:
    """Each group once, with the first error that any of its ranks had."""
    told = set()
    for rank in job.ranks.values():
        for group in rank.groups.values():
            if group.failure and not group.closed and group.name not in told:
                told.add(group.name)
                yield Finding(f"Group {group.name!r} has failed. Rank {rank.rank} was told: {group.failure}")


def _waited_for(job: Job) -> Iterator[Finding]:
    """Ranks for which others wait and that wait for nobody themselves; else what the diagnosis says."""
    waits: dict[int, dict[int, tuple[str, Record]]] = defaultdict(dict)
    for group in _groups(job):
        last = {rank.rank: _last(rank, group) for rank in job.ranks.values() if _in(rank, group)}
        for rank in job.ranks.values():
            for record in _stuck(rank, group):
                for other in _peers(rank, record):
                    if other in job.ranks and (
                        record.message or (last.get(other) or 0) < record.seq or _is_stopped(job.ranks[other])
                    ):
                        waits[rank.rank].setdefault(other, (group, record))
    awaited = {other for each in waits.values() for other in each}
    causes = [rank for rank in sorted(awaited) if rank not in waits or _is_stopped(job.ranks[rank])]
    for cause in causes:
        waiting = {rank: each[cause] for rank, each in waits.items() if cause in each and rank != cause}
        if waiting:
            yield _cause(job, job.ranks[cause], waiting)
    stuck = any(_stuck(rank, group) for group in _groups(job) for rank in job.ranks.values())
    if not causes and stuck and (told := diagnosis.diagnose([rank.dump() for rank in job.ranks.values()])):
        yield Finding(told)


def _cause(job: Job, cause: Rank, waiting: dict[int, tuple[str, Record]]) -> Finding:
    first = max(waiting, key=lambda rank: job.ranks[rank].now_ns - waiting[rank][1].issued_ns)
    group, record = waiting[first]
    since = duration(job.ranks[first].now_ns - record.issued_ns)
    have = "has" if len(waiting) == 1 else "have"
    they = f"{_ranks(sorted(waiting))} {have} waited for it for {since} in {_call(record, group)}"
    return Finding(
        f"Rank {cause.rank} (host {cause.host}, pid {cause.pid}) {elsewhere(cause)}. {they}.", (cause.rank,)
    )


def elsewhere(rank: Rank) -> str:
    """What a rank does that does not take part in what the others do."""
    if rank.open:
        record = rank.open[0]
        state = "is stopped" if _is_stopped(rank) else "is"
        return f"{state} in {_call(record, rank.groups[record.group].name)}"
    if not rank.records:
        return f"has called nothing yet and {rank.doing()}"
    last = max(rank.records, key=lambda each: each.id)
    since = duration(rank.now_ns - (last.ended_ns or last.issued_ns))
    call = _call(last, rank.groups[last.group].name)
    return f"has been outside of torch-ucc for {since} and {rank.doing()}; its last call was {call}"


def _slow(job: Job) -> Iterator[Finding]:
    """Ranks, or all ranks of a host, that come last to most operations."""
    if len(job.ranks) < 2:
        return
    entries = timeline.merge([rank.dump() for rank in job.ranks.values()])
    members = {group.name: len(group.ranks) for rank in job.ranks.values() for group in rank.groups.values()}
    came = defaultdict(list)
    for entry in entries:
        if entry.record.collective and entry.record.route != "none":
            came[entry.group, entry.record.seq].append(entry)
    whole = [each for (group, _), each in came.items() if len(each) == members.get(group) and len(each) > 1]
    if len(whole) < _ENOUGH:
        return
    span = max(e.end_ns for each in whole for e in each) - min(e.start_ns for each in whole for e in each)
    for of, name in ((lambda rank: job.ranks[rank].host, "host"), (lambda rank: rank, "rank")):
        times: dict[object, int] = defaultdict(int)
        waited: dict[object, int] = defaultdict(int)
        for each in whole:
            last = max(each, key=lambda entry: entry.start_ns)
            others = [e.start_ns for e in each if of(e.rank) != of(last.rank)]
            if others:
                times[of(last.rank)] += 1
                waited[of(last.rank)] += last.start_ns - max(others)
        for who, count in times.items():
            if count >= _OFTEN * len(whole) and waited[who] >= _MUCH * span:
                ranks = tuple(rank for rank in job.ranks if of(rank) == who)
                yield Finding(
                    f"{name.capitalize()} {who} is slow: it came last to {count} of the last {len(whole)} "
                    "operations, "
                    f"and the other ranks waited {duration(waited[who] / count)} for it each time, "
                    f"{waited[who] / span:.0%} of all time.",
                    ranks,
                )
                return


# --- words and small questions ------------------------------------------------------------------------------


def _groups(job: Job) -> list[str]:
    return list(
        dict.fromkeys(g.name for rank in job.ranks.values() for g in rank.groups.values() if not g.closed)
    )


def _in(rank: Rank, group: str) -> bool:
    return any(each.name == group for each in rank.groups.values())


def _last(rank: Rank, group: str) -> int:
    """The seq of the last collective that it called in the group; 0: none."""
    return max(
        (each.seq for each in rank.records if each.collective and rank.groups[each.group].name == group),
        default=0,
    )


def _stuck(rank: Rank, group: str) -> list[Record]:
    return [
        each
        for each in rank.open
        if rank.groups[each.group].name == group
        and each.route != "none"
        and rank.now_ns - each.issued_ns > PATIENCE_NS
    ]


def _peers(rank: Rank, record: Record) -> list[int]:
    """The ranks of the job that an operation needs."""
    ranks = rank.groups[record.group].ranks
    if not record.message:
        return [each for each in ranks if each != rank.rank]
    return [ranks[record.peer]] if 0 <= record.peer < len(ranks) else []


def _is_stopped(rank: Rank) -> bool:
    return rank.state in "Tt"


def _call(record: Record, group: str) -> str:
    return f"seq {record.seq} {record.describe()} of group {group!r}"


def _ranks(ranks: list[int]) -> str:
    return f"{'Rank' if len(ranks) == 1 else 'Ranks'} {shown(ranks)}"
