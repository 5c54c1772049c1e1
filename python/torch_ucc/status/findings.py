"""What is wrong with a running job, and who is the cause: a few sentences, or none where all is well.

A job goes on while it is looked at. So a rank is named only for an operation that takes long, that the rank
has not called, and that cannot end without it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from torch_ucc.status import network
from torch_ucc.status.job import Job, Rank, shown
from torch_ucc.tracing import diagnosis, timeline
from torch_ucc.tracing.clocks import TOGETHER
from torch_ucc.tracing.records import Dump, Group, Record
from torch_ucc.tracing.text import duration

PATIENCE_NS = 1_000_000_000
"""A rank may wait so long before anybody is looked for who keeps the operation from ending."""
LONG_NS = 10_000_000_000
"""An operation may take so long although all of its ranks have called it."""
_IDLE = 0.2
"""A process that uses less of a core may be waiting for the future of an operation."""
_OFTEN = 0.6
"""A rank or host that is the last in this part of the operations is a straggler, ..."""
_MUCH = 0.2
"""... if the others wait for this part of the time."""
_NETWORK_LOOKS = 5
"""Further looks before a network is called slow: a rate is low for a moment if a process got no core."""
_ENOUGH = 10
"""Operations that must have been seen to say so."""


@dataclass(frozen=True)
class Finding:
    text: str
    ranks: tuple[int, ...] = ()
    """The cause."""
    looks: int = 1
    """How many further looks must find the cause before it is named."""


_Stuck = tuple[Rank, Record, list[int]]
"""An operation for which a rank has waited long, and the ranks that keep it from ending."""


@dataclass(frozen=True)
class _Wait:
    """A rank is in an operation of a group, which cannot end without another rank."""

    group: str
    record: Record
    ns: int
    """Since it waits or, if nobody is seen to wait, since it called the operation."""

    @property
    def is_seen(self) -> bool:
        return self.record.awaited_ns != 0


def findings(job: Job) -> list[Finding]:
    """The most important first."""
    stuck = list(_stuck(job))
    different = _different(job, stuck)
    found = [*_ended(job), *different.values(), *_failed(job, different)]
    if not different:
        found += _waited_for(job, stuck)
    return found or [*_long(job, stuck), *([*_slow_network(job, stuck)] or _slow(job))]


def confirmed(first: list[Finding], second: list[Finding]) -> list[Finding]:
    """The findings of a further look, without accusations that were not made before."""
    accused = {each.ranks for each in first}
    return [each for each in second if not each.ranks or each.ranks in accused]


def _ended(job: Job) -> Iterator[Finding]:
    for rank, what in sorted(job.gone.items()):
        yield Finding(f"{what[0].upper()}{what[1:]}.", (rank,))
    for host, why in job.silent.items():
        yield Finding(f"Host {host} does not answer ({why}). Nothing is known of its ranks.")


def _different(job: Job, stuck: Sequence[_Stuck]) -> dict[str, Finding]:
    """Groups that failed or wait long, in which the ranks made different calls."""
    failed = {each.name for rank in job.ranks.values() for each in rank.groups.values() if _has_failed(each)}
    waiting = {rank.groups[record.group].name for rank, record, _ in stuck}
    if not failed | waiting:
        return {}
    dumps = [rank.dump() for rank in job.ranks.values()]
    found = diagnosis.different_calls(dumps, sorted(failed | waiting))
    return {group: Finding(each.text, each.ranks) for group, each in found.items()}


def _failed(job: Job, told_already: Iterable[str]) -> Iterator[Finding]:
    """Each group once, with the first error that any of its ranks had."""
    told = set(told_already)
    for rank in job.ranks.values():
        for group in rank.groups.values():
            if _has_failed(group) and group.name not in told:
                told.add(group.name)
                yield Finding(
                    f"Group {group.name!r} has failed. Rank {rank.rank} reported this error: {group.failure}"
                )


def _waited_for(job: Job, stuck: Sequence[_Stuck]) -> Iterator[Finding]:
    """Ranks for which others wait and that wait for nobody themselves; else what else is known."""
    waits: dict[int, dict[int, _Wait]] = defaultdict(dict)
    for rank, record, late in stuck:
        since = record.awaited_ns or record.issued_ns
        for other in late:
            wait = _Wait(rank.groups[record.group].name, record, rank.now_ns - since)
            waits[rank.rank].setdefault(other, wait)
    awaited = {other for each in waits.values() for other in each}
    causes = [rank for rank in sorted(awaited) if rank not in waits or _is_stopped(job.ranks[rank])]
    for cause in causes:
        waiting = {rank: each[cause] for rank, each in waits.items() if cause in each and rank != cause}
        if waiting:
            yield _cause(job.ranks[cause], waiting)
    if waits and not causes:
        circle = diagnosis.shortest_circle(waits)
        told = diagnosis.circle([_settled(rank) for rank in job.ranks.values()])
        yield Finding(told or _circle(circle, waits), tuple(sorted(circle)))


def _circle(circle: Sequence[int], waits: dict[int, dict[int, _Wait]]) -> str:
    """Say for each rank of a circle in which operation it waits for the next one."""
    told = []
    for rank, other in zip(circle, [*circle[1:], circle[0]], strict=True):
        wait = waits[rank][other]
        call = _call(wait.record, wait.group)
        if wait.is_seen:
            told.append(f"Rank {rank} has waited for rank {other} for {duration(wait.ns)} in {call}.")
        else:
            told.append(f"Rank {rank} needs rank {other} in {call}.")
    wait_for = "wait for each other" if len(circle) > 1 else "waits for itself"
    return f"{_ranks(sorted(circle))} {wait_for}. {' '.join(told)}"


def _stuck(job: Job) -> Iterator[_Stuck]:
    for rank in job.ranks.values():
        for record in filter(lambda each: is_stuck(rank, each), rank.open):
            group = rank.groups[record.group]
            yield rank, record, [o for o in _needed(rank, record) if _keeps_waiting(job, o, group, record)]


def _long(job: Job, stuck: Sequence[_Stuck]) -> Iterator[Finding]:
    """An operation that takes long although nobody is known to keep it from ending."""
    for rank, record, late in stuck:
        since = rank.now_ns - record.issued_ns
        if late or record.message or since <= LONG_NS:
            continue
        call, took = _call(record, rank.groups[record.group].name), duration(since)
        if others := _not_seen_to_call(job, rank, record):
            have = "has" if len(others) == 1 else "have"
            yield Finding(
                f"Rank {rank.rank} has been in {call} for {took}. Nothing shows that "
                f"{_ranks(others).lower()} {have} called it."
            )
        else:
            yield Finding(
                f"All ranks have called {call}, and the operation has taken {took} so far: it moves much "
                "data, or the network is slow or stuck."
            )
        return


def _not_seen_to_call(job: Job, rank: Rank, record: Record) -> list[int]:
    """Ranks of the group of a collective that have not called it, as far as is known."""
    group = rank.groups[record.group]
    return [
        each
        for each in sorted(group.ranks)
        if each not in job.ranks or job.ranks[each].last_collectives.get(group.name, -1) < record.seq
    ]


def _all_have_called(job: Job, rank: Rank, record: Record) -> bool:
    """Whether that is known. Of a message from any rank it is not."""
    if not record.message:
        return not _not_seen_to_call(job, rank, record)
    needed, group = _needed(rank, record), rank.groups[record.group]
    return any(each in job.ranks and not _keeps_waiting(job, each, group, record) for each in needed)


def _keeps_waiting(job: Job, other: int, group: Group, record: Record) -> bool:
    """Whether rank `other` has not called what `record` needs, or is stopped. False if that is not known.

    `group` is the group of `record`, as its rank knows it.
    """
    if other not in job.ranks:
        return False
    rank = job.ranks[other]
    if _is_stopped(rank):
        return True
    if record.message:
        open_there = (
            each for each in rank.open if each.message and rank.groups[each.group].name == group.name
        )
        return not any(_may_match(record, each, group.rank) for each in open_there)
    last = rank.last_collectives.get(group.name)
    return last < record.seq if last is not None else rank.has_all


def _may_match(message: Record, other: Record, rank: int) -> bool:
    """Whether `other`, a message of the peer, may be the partner of a message of this rank of the group."""
    receives = [each.op.startswith("recv") for each in (message, other)]
    sends = [each.op.startswith("send") for each in (message, other)]
    return not all(receives) and not all(sends) and other.peer in (-1, rank)


def _settled(rank: Rank) -> Dump:
    """Without operations that may end in the next moment."""
    records = [each for each in rank.records if each.over or is_stuck(rank, each)]
    return replace(rank.dump(), records=records)


def _cause(cause: Rank, waiting: dict[int, _Wait]) -> Finding:
    longest = max(waiting.values(), key=lambda wait: wait.ns)
    same = [
        rank
        for rank, wait in waiting.items()
        if (wait.group, wait.record.seq, wait.record.op)
        == (longest.group, longest.record.seq, longest.record.op)
    ]
    since, call, who = duration(longest.ns), _call(longest.record, longest.group), _ranks(sorted(same))
    have = "has" if len(same) == 1 else "have"
    if longest.is_seen:
        they = f"{who} {have} waited for rank {cause.rank} for {since} in {call}"
    else:
        they = f"{who} called {call} {since} ago. This operation cannot end without rank {cause.rank}"
    if more := sorted(waiting.keys() - same):
        need = "needs" if len(more) == 1 else "need"
        they += f"; {_ranks(more).lower()} {need} rank {cause.rank} in other operations"
    return Finding(
        f"Rank {cause.rank} (host {cause.host}, pid {cause.pid}) {elsewhere(cause)}. {they}.", (cause.rank,)
    )


def elsewhere(rank: Rank) -> str:
    """What a rank does that does not take part in what the others do."""
    state = "is stopped in" if _is_stopped(rank) else "is in"
    for record in rank.open:
        if is_stuck(rank, record) or _is_stopped(rank):
            return f"{state} {_call(record, rank.groups[record.group].name)}"
    for record, name in rank.open_elsewhere:
        return f"{state} {_call(record, name)}, which the tables of this job do not show"
    if not rank.records:
        return f"has called nothing yet and {rank.doing()}"
    last = max(rank.records, key=lambda each: each.id)
    call = _call(last, rank.groups[last.group].name)
    if not last.over:
        return f"{rank.doing()}; its last call is {call}, which has not ended"
    since = duration(rank.now_ns - last.ended_ns)
    return f"has been outside of torch-ucc for {since} and {rank.doing()}; its last call was {call}"


@dataclass(frozen=True)
class _Seen:
    """Recent operations that all of their ranks need, with what each rank did."""

    operations: list[list[timeline.Entry]]
    span_ns: int

    @property
    def moving(self) -> float:
        """The part of the time in which all ranks of an operation had called it and none had its result."""
        spans = [min(e.end_ns for e in each) - max(e.start_ns for e in each) for each in self.operations]
        return min(1.0, sum(max(0, each) for each in spans) / self.span_ns)


def _seen(job: Job) -> _Seen | None:
    """None if too few were seen."""
    entries = timeline.merge([rank.dump() for rank in job.ranks.values()])
    members = {group.name: len(group.ranks) for rank in job.ranks.values() for group in rank.groups.values()}
    came = defaultdict(list)
    for entry in entries:
        if entry.record.op in TOGETHER and entry.record.route != "none":
            came[entry.group, entry.record.seq].append(entry)
    whole = [each for (group, _), each in came.items() if len(each) == members.get(group) and len(each) > 1]
    if len(whole) < _ENOUGH:
        return None
    times = [(e.start_ns, e.end_ns) for each in whole for e in each]
    return _Seen(whole, max(end for _, end in times) - min(start for start, _ in times))


def _slow(job: Job) -> Iterator[Finding]:
    """Ranks, or all ranks of a host, that come last to most operations that need all ranks.

    Nothing is said of a job that has called nothing for longer than these operations took.
    """
    seen = _seen(job)
    if seen is None or _pause_ns(job) > max(seen.span_ns, PATIENCE_NS):
        return
    number = len(seen.operations)
    for of, name in ((lambda rank: job.ranks[rank].host, "host"), (lambda rank: rank, "rank")):
        times: dict[object, int] = defaultdict(int)
        waited: dict[object, int] = defaultdict(int)
        for each in seen.operations:
            last = max(each, key=lambda entry: entry.start_ns)
            others = [e for e in each if of(e.rank) != of(last.rank)]
            if others:
                times[of(last.rank)] += 1
                waited[of(last.rank)] += last.start_ns - max(e.start_ns for e in others)
        for who, count in times.items():
            if count >= _OFTEN * number and waited[who] >= _MUCH * seen.span_ns:
                ranks = tuple(rank for rank in job.ranks if of(rank) == who)
                late = "it was" if name == "rank" else "one of its ranks was"
                yield Finding(
                    f"{name.capitalize()} {who} is slow: {late} the last to call {count} of the last "
                    f"{number} operations, on average {duration(waited[who] / count)} after the other "
                    f"{name}s. These delays add up to {waited[who] / seen.span_ns:.0%} of the time.",
                    ranks,
                )
                return


def _slow_network(job: Job, stuck: Sequence[_Stuck]) -> Iterator[Finding]:
    """A host whose network is slow, if the job spends much time in moving data."""
    named = network.slow_host(job.connections)
    if named is None:
        return
    seen = _seen(job)
    if seen is not None and seen.moving >= _MUCH:
        share = f"The ranks spend {seen.moving:.0%} of the time in operations that all ranks have called."
    elif any(_all_have_called(job, rank, record) for rank, record, _ in stuck):
        share = "The ranks are in operations that all ranks have called."
    else:
        return
    host, why = named
    ranks = tuple(rank for rank in job.ranks if job.ranks[rank].host == host)
    yield Finding(f"The network of host {host} is slow: {why}. {share}", ranks, _NETWORK_LOOKS)


# --- words and small questions ------------------------------------------------------------------------------


def is_stuck(rank: Rank, record: Record) -> bool:
    """Whether the rank seems to wait for an operation, and has for long.

    The recorder sees wait(), but not a wait for a future. So a collective counts as well if its process uses
    hardly any core. A receive may be posted long before the program needs it, and one thread may wait for
    messages while another calls operations.
    """
    if record.over or record.route in ("none", "store"):
        return False
    if record.message and any(each.issued_ns > record.awaited_ns for each in rank.records):
        return False
    if record.awaited_ns:
        return rank.now_ns - record.awaited_ns > PATIENCE_NS
    is_idle = _is_stopped(rank) or (rank.state != "R" and (rank.cpu is None or rank.cpu < _IDLE))
    return not record.message and is_idle and rank.now_ns - record.issued_ns > PATIENCE_NS


def _needed(rank: Rank, record: Record) -> list[int]:
    """The ranks of the job without which an operation cannot end on this rank."""
    group = rank.groups[record.group]
    if record.message:
        return [group.ranks[record.peer]] if 0 <= record.peer < len(group.ranks) else []
    if record.op in ("broadcast", "scatter"):
        is_root = record.root == group.rank
        return [] if is_root or not 0 <= record.root < len(group.ranks) else [group.ranks[record.root]]
    if record.op in ("gather", "gather_single", "reduce") and record.root != group.rank:
        return []
    return [each for each in group.ranks if each != rank.rank]


def _pause_ns(job: Job) -> int:
    """How long no rank has been in a collective, or has had the result of anything."""
    return min(
        0 if any(e.collective for e in rank.open) else rank.now_ns - max(e.ended_ns for e in rank.records)
        for rank in job.ranks.values()
        if rank.records
    )


def _has_failed(group: Group) -> bool:
    return bool(group.failure) and not group.closed


def _is_stopped(rank: Rank) -> bool:
    return rank.state in "Tt"


def _call(record: Record, group: str) -> str:
    return f"seq {record.seq} {record.describe()} of group {group!r}"


def _ranks(ranks: list[int]) -> str:
    return f"{'Rank' if len(ranks) == 1 else 'Ranks'} {shown(ranks)}"
