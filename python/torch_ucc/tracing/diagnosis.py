"""What went wrong, from the dumps of all ranks: one paragraph, or nothing where all is well.

The first question whose answer is found counts, since what comes after it mostly follows from it: did the
ranks make different calls; do they wait for each other in a circle; does somebody wait for a rank that did
not come; did a message find no partner; did a rank come too late; did anything else fail or not end.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from torch_ucc.tracing.clocks import offsets
from torch_ucc.tracing.issuers import issuer
from torch_ucc.tracing.records import Dump, Record, group_names
from torch_ucc.tracing.text import duration

# Operations to which every rank brings as much as any other.
_EVEN = frozenset(
    {
        "all_gather_into_tensor",
        "all_gather_into_tensor_coalesced",
        "all_reduce",
        "all_reduce_coalesced",
        "broadcast",
        "gather_single",
        "reduce",
        "reduce_scatter",
        "reduce_scatter_tensor",
        "reduce_scatter_tensor_coalesced",
    }
)


@dataclass(frozen=True)
class Case:
    """The dumps, and the clock they share."""

    dumps: dict[int, Dump]
    shift: dict[int, int]

    def at(self, rank: int, ns: int) -> int:
        return ns + self.shift[rank]

    def members(self, group: str) -> list[int]:
        """Global ranks, by rank of the group."""
        for dump in self.dumps.values():
            for each in dump.groups.values():
                if each.name == group:
                    return list(each.ranks)
        return []

    def collectives(self, group: str) -> dict[int, dict[int, Record]]:
        """By rank and seq."""
        return {
            rank: {record.seq: record for record in dump.of_group(group) if record.collective}
            for rank, dump in self.dumps.items()
            if rank in self.members(group)
        }


PATIENCE_NS = 1_000_000_000
"""So long an operation may be under way when a recording of a running job is ended."""


def diagnose(dumps: Sequence[Dump]) -> str:
    """One paragraph; empty if nothing is wrong."""
    if not dumps:
        return ""
    dumps = [_settled(dump) for dump in dumps]
    case = _case(dumps)
    names = group_names(dumps)
    checks: list[Callable[[], Iterator[str]]] = [
        lambda: (found.text for name in names for found in _different_calls(case, name)),
        lambda: _circle(case, names),
        lambda: (found for name in names for found in _absent(case, name)),
        lambda: _messages(case),
        lambda: (found for name in names for found in _late(case, name)),
        lambda: _unexplained(case),
    ]
    return next((found for check in checks for found in check()), "")


@dataclass(frozen=True)
class Difference:
    text: str
    ranks: tuple[int, ...]
    """Those that differ from most others; empty if no call was made by most ranks."""


def different_calls(dumps: Sequence[Dump], groups: Iterable[str]) -> dict[str, Difference]:
    """Of each group, if there is one, the first operation in which the ranks made different calls."""
    case = _case(dumps)
    return {group: found for group in groups for found in _different_calls(case, group)}


def circle(dumps: Sequence[Dump]) -> str:
    """Ranks that wait for each other in a circle; empty if there are none."""
    return next(_circle(_case(dumps), group_names(dumps)), "")


def _settled(dump: Dump) -> Dump:
    """Of a recording that ended before its process: without what had begun a moment before."""
    if dump.reason != "cut":
        return dump
    records = [each for each in dump.records if each.over or dump.steady_ns - each.issued_ns > PATIENCE_NS]
    return replace(dump, records=records)


def _case(dumps: Sequence[Dump]) -> Case:
    return Case({dump.rank: dump for dump in dumps}, offsets(dumps))


# --- did the ranks make different calls? --------------------------------------------------------------------


def _different_calls(case: Case, group: str) -> Iterator[Difference]:
    calls = case.collectives(group)
    for seq in sorted({seq for each in calls.values() for seq in each}):
        at = {rank: each[seq] for rank, each in calls.items() if seq in each}
        for differ, said in _DIFFERENCES:
            kinds = defaultdict(list)
            for rank, record in at.items():
                kinds[differ(record)].append(rank)
            if len(kinds) > 1:
                *few, most = sorted(map(sorted, kinds.values()), key=len)
                text = _difference(case, group, seq, at, [*few, most], said) + _other_order(calls, seq)
                is_most = len(most) > len(few[-1])
                yield Difference(text, tuple(sorted(rank for each in few for rank in each if is_most)))
                return


_DIFFERENCES: list[tuple[Callable[[Record], object], str]] = [
    (lambda record: record.op, "called different operations"),
    (lambda record: record.root, "passed different roots"),
    (lambda record: record.dtype, "passed different dtypes"),
    (lambda record: record.reduce_op, "passed different reduce ops"),
    (lambda record: record.input_elements if record.op in _EVEN else None, "passed different sizes"),
]


def _difference(
    case: Case, group: str, seq: int, at: dict[int, Record], kinds: list[list[int]], said: str
) -> str:
    tellings = [f"{_ranks(ranks)} called {_call(case, ranks[0], at[ranks[0]])}" for ranks in kinds]
    return (
        f"The ranks of group {group!r} {said} at seq {seq}: {'; '.join(tellings)}. "
        f"From this call on, the calls of these ranks do not match.{_failure(case, group)}"
    )


def _other_order(calls: dict[int, dict[int, Record]], seq: int) -> str:
    """Whether the two calls come in the other order on another rank."""
    pairs = {(each[seq].op, each[seq + 1].op) for each in calls.values() if seq in each and seq + 1 in each}
    swapped = any((second, first) in pairs for first, second in pairs if first != second)
    return " The ranks make this call and the next one in different orders." if swapped else ""


# --- do they wait for each other in a circle? ---------------------------------------------------------------


def _circle(case: Case, names: Sequence[str]) -> Iterator[str]:
    """Of ranks, each of which waits in a group for the next, which is in another group."""
    waits: dict[int, dict[int, tuple[str, Record]]] = defaultdict(dict)
    for group in names:
        calls = case.collectives(group)
        for rank, each in calls.items():
            for record in each.values():
                if not record.over or record.result == "timeout":
                    for other in _not_come(case, calls, group, record.seq):
                        waits[rank].setdefault(other, (group, record))
    circle = shortest_circle(waits)
    if circle:
        tellings = []
        for rank, other in zip(circle, [*circle[1:], circle[0]], strict=True):
            group, record = waits[rank][other]
            tellings.append(
                f"rank {rank} is in {_call(case, rank, record)} of group {group!r} and waits for rank {other}"
            )
        yield (
            f"Ranks wait for each other in a circle: {'; '.join(tellings)}. "
            f"These ranks use the groups in different orders."
        )


def shortest_circle(waits: Mapping[int, Iterable[int]]) -> list[int]:
    """Each waits for the next, and the last for the first; empty if there is none."""
    shortest: list[int] = []
    for start in waits:
        paths, seen = deque([[start]]), {start}
        while paths:
            path = paths.popleft()
            others = list(waits.get(path[-1], ()))
            if start in others:
                shortest = min(shortest or path, path, key=len)
                break
            paths.extend([*path, other] for other in others if other not in seen)
            seen.update(others)
    return shortest


def _not_come(case: Case, calls: dict[int, dict[int, Record]], group: str, seq: int) -> list[int]:
    """Members that have a dump, and did not make the call."""
    return [rank for rank in case.members(group) if rank in calls and max(calls[rank], default=0) < seq]


# --- does somebody wait for a rank that did not come? -------------------------------------------------------


def _absent(case: Case, group: str) -> Iterator[str]:
    calls = case.collectives(group)
    waiting = [
        (record.seq, rank)
        for rank, each in calls.items()
        for record in each.values()
        if not record.over or record.state == "failed"
    ]
    if not waiting:
        return
    seq = min(waiting)[0]
    there = [rank for rank, each in calls.items() if seq in each]
    gone = [rank for rank in case.members(group) if rank not in case.dumps]
    missing = _not_come(case, calls, group, seq)
    if not gone and not missing:
        return
    first, record = there[0], calls[there[0]][seq]
    parts = [f"In group {group!r}, {_ranks(there)} called {_call(case, first, record)}."]
    parts += [
        f"Rank {rank} did not call this operation: {_last_seen(case, rank, first, record)}."
        for rank in missing
    ]
    if gone:
        left = (
            "wrote no dump: it died, or it was not asked to write one"
            if len(gone) == 1
            else "wrote no dumps: they died, or they were not asked to write them"
        )
        parts.append(f"{_ranks(gone).capitalize()} {left}.")
    yield " ".join(parts) + _failure(case, group)


def _last_seen(case: Case, rank: int, other: int, record: Record) -> str:
    if not case.dumps[rank].records:
        return f"rank {rank} has called no operation at all"
    last = case.dumps[rank].records[-1]
    name = case.dumps[rank].group_name(last)
    if not last.over:
        return f"rank {rank} is in {_call(case, rank, last)} of group {name!r}, which has not ended"
    before = case.at(other, record.issued_ns) - case.at(rank, last.ended_ns)
    when = f"{duration(abs(before))} {'before' if before >= 0 else 'after'} rank {other} called"
    return f"the last operation of rank {rank}, {_call(case, rank, last)} of group {name!r}, ended {when}"


# --- did a message find no partner? -------------------------------------------------------------------------


def _messages(case: Case) -> Iterator[str]:
    for rank, dump in case.dumps.items():
        for record in dump.records:
            if record.message and (not record.over or record.result == "timeout"):
                yield _lonely(case, rank, record)
                return


def _lonely(case: Case, rank: int, record: Record) -> str:
    group = case.dumps[rank].group_name(record)
    members = case.members(group)
    told = f"Rank {rank} waits in {_call(case, rank, record)} of group {group!r}"
    peer = members[record.peer] if 0 <= record.peer < len(members) else None
    if peer is None:
        return f"{told}, and no rank sent a message with this tag to rank {rank}.{_failure(case, group)}"
    if peer not in case.dumps:
        return (
            f"{told} for rank {peer}, which wrote no dump: rank {peer} died, or it was not asked to write "
            f"one.{_failure(case, group)}"
        )
    wanted = "send" if record.op.startswith("recv") else "recv"
    mine = members.index(rank)
    partners = [
        each
        for each in case.dumps[peer].of_group(group)
        if each.op.startswith(wanted) and each.peer in (mine, -1) and each.state != "completed"
    ]
    if partners:
        found = f"made a different call for this message: {_call(case, peer, partners[0])}"
    else:
        sent = [e for e in case.dumps[peer].of_group(group) if e.op.startswith(wanted) and e.peer == mine]
        other_tag = [each for each in sent if each.tag != record.tag]
        found = (
            f"used another tag: {_call(case, peer, other_tag[-1])}"
            if other_tag
            else f"has not called {wanted} for rank {rank}{_elsewhere(case, peer)}"
        )
    return f"{told} for rank {peer}, but rank {peer} {found}.{_failure(case, group)}"


def _elsewhere(case: Case, rank: int) -> str:
    """What a rank waits for itself, if it does."""
    stuck = [each for each in case.dumps[rank].records if not each.over or each.result == "timeout"]
    if not stuck:
        return ""
    group = case.dumps[rank].group_name(stuck[0])
    return f" and is itself in {_call(case, rank, stuck[0])} of group {group!r}"


# --- did a rank come too late? ------------------------------------------------------------------------------


def _late(case: Case, group: str) -> Iterator[str]:
    """After the timeout of another had passed."""
    calls = case.collectives(group)
    for seq in sorted({seq for each in calls.values() for seq in each}):
        at = {rank: each[seq] for rank, each in calls.items() if seq in each}
        timed_out = {rank: record for rank, record in at.items() if record.result == "timeout"}
        if len(at) < 2 or not timed_out:
            continue
        came = {rank: case.at(rank, record.issued_ns) for rank, record in at.items()}
        last, first = max(came, key=lambda rank: came[rank]), min(timed_out)
        if came[last] >= case.at(first, timed_out[first].ended_ns):
            yield (
                f"Rank {last} was too late for {_call(case, last, at[last])} of group {group!r}: it called "
                f"the operation {duration(came[last] - came[first])} after rank {first}, when the timeout of "
                f"rank {first} had already passed."
            )
        else:
            yield (
                f"All ranks that wrote a dump called {_call(case, first, at[first])} of group {group!r}, but "
                f"the operation timed out. The last of these ranks, rank {last}, called it "
                f"{duration(came[last] - min(came.values()))} after the first one. The network between these "
                f"ranks is stuck or slow.{_failure(case, group)}"
            )
        return


# --- anything else? -----------------------------------------------------------------------------------------


def _unexplained(case: Case) -> Iterator[str]:
    for rank, dump in case.dumps.items():
        for record in dump.records:
            if record.state == "failed":
                group = dump.group_name(record)
                yield (
                    f"Rank {rank} failed in {_call(case, rank, record)} of group {group!r}: {record.result}."
                    f"{_failure(case, group)}"
                )
                return
    stuck = [
        (rank, record) for rank, dump in case.dumps.items() for record in dump.records if not record.over
    ]
    if stuck and all(dump.reason != "trace" for dump in case.dumps.values()):
        rank, record = stuck[0]
        group = case.dumps[rank].group_name(record)
        yield (
            f"All ranks made the same calls, but {_call(case, rank, record)} of group {group!r} had not "
            f"ended on rank {rank} when the dumps were written: the operation is still in progress, or the "
            "network is stuck."
        )


# --- words --------------------------------------------------------------------------------------------------


def _call(case: Case, rank: int, record: Record) -> str:
    site = case.dumps[rank].sites.get(record.site, "")
    where = issuer(site).where
    return f"seq {record.seq} {record.describe()}" + (f" (called from {where})" if where else "")


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"ranks {shown}"


def _failure(case: Case, group: str) -> str:
    """What the first error of the group said."""
    failures = [
        (rank, each.failure)
        for rank, dump in case.dumps.items()
        for each in dump.groups.values()
        if each.name == group and each.failure
    ]
    return f" Rank {failures[0][0]} reported this error: {failures[0][1]}" if failures else ""
