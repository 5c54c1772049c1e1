"""Where the time of each iteration went: computing, moving data, or waiting for a rank that had not come yet.

An iteration ends where the program's optimizer has made its step, or called mark_step(). Within it, a rank is
held up while it posts an operation and while it waits for one. Who waited is recorded, with one exception:
DDP's reducer waits for futures. It does so when it has called its last bucket, and so it is taken that an
operation of a backward pass, which nobody else waited for, was waited for from the last call of its pass on.

Of the time for which a rank is held up, it waits for another rank until the last one that the operation needs
has called it; what is left is the moving of data. All else is compute, or whatever the program does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch_ucc.tracing.clocks import TOGETHER
from torch_ucc.tracing.records import Dump
from torch_ucc.tracing.timeline import Entry, shifts

Arrivals = dict[tuple[int, int], tuple[int, int]]
"""By key of an entry: when the last rank that it needs called its operation, and which rank that is."""

_FROM_ROOT = frozenset({"broadcast", "scatter"})
_TO_ROOT = frozenset({"gather", "gather_single", "reduce"})


@dataclass
class Share:
    """Of one rank in one iteration, in nanoseconds."""

    rank: int
    whole_ns: int
    moving_ns: int = 0
    waited_for: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """By rank."""

    @property
    def waiting_ns(self) -> int:
        return sum(self.waited_for.values())

    @property
    def compute_ns(self) -> int:
        return self.whole_ns - self.moving_ns - self.waiting_ns


@dataclass(frozen=True)
class Iteration:
    number: int
    """From 1. The first holds whatever came before it in the trace."""
    shares: list[Share]
    ends: dict[int, int]
    """By rank, in nanoseconds since the first operation of any."""

    @property
    def slowest(self) -> tuple[int, int] | None:
        """The rank for which the others waited most in sum, and the longest that one of them did."""
        waited: dict[int, list[int]] = defaultdict(list)
        for share in self.shares:
            for rank, ns in share.waited_for.items():
                waited[rank].append(ns)
        if not waited:
            return None
        rank = max(waited, key=lambda each: sum(waited[each]))
        return rank, max(waited[rank])

    def mean(self, what: str) -> float:
        """Over the ranks, of a property of their shares."""
        values: list[int] = [getattr(share, what) for share in self.shares]
        return sum(values) / len(values)


def iterations(dumps: Sequence[Dump], entries: Sequence[Entry]) -> list[Iteration]:
    """Those that all ranks have ended; none where no rank marked any. `entries`: the dumps, merged."""
    shift = shifts(dumps)
    steps = {dump.rank: [ns + shift[dump.rank] for ns in dump.steps] for dump in dumps}
    count = min((len(each) for each in steps.values()), default=0) - 1
    came = arrivals(entries)
    of_rank: dict[int, list[Entry]] = defaultdict(list)
    for entry in entries:
        of_rank[entry.rank].append(entry)
    held = {rank: _held_up(of_rank[rank], came) for rank in steps}
    return [
        Iteration(
            number,
            [_share(rank, held[rank], each[number - 1], each[number]) for rank, each in steps.items()],
            {rank: each[number] for rank, each in steps.items()},
        )
        for number in range(1, count + 1)
    ]


@dataclass(frozen=True)
class _Held:
    """A rank is held up by an operation: until `came_ns` because `last` has not called it."""

    start_ns: int
    came_ns: int
    last: int
    end_ns: int


def _share(rank: int, held: Sequence[_Held], start: int, end: int) -> Share:
    """Of several operations that hold it up at once, one that lacks a rank makes that waiting."""
    share = Share(rank, end - start)
    held_until = waited_until = start
    for each in held:
        if each.start_ns >= end:
            break
        over = min(each.end_ns, end)
        share.moving_ns += max(over - max(each.start_ns, held_until), 0)
        held_until = max(held_until, over)
        waited = min(each.came_ns, over) - max(each.start_ns, waited_until)
        if waited > 0:
            share.waited_for[each.last] += waited
            waited_until = min(each.came_ns, over)
    share.moving_ns -= share.waiting_ns
    return share


def _held_up(mine: Sequence[Entry], came: Arrivals) -> list[_Held]:
    """In order of their starts. Operations that did not end count up to the end of the trace."""
    found = []
    for entry, waited_from in zip(mine, _waited_from(mine), strict=True):
        posted = entry.start_ns + max(entry.record.posted_ns - entry.record.issued_ns, 0)
        found.append(_Held(entry.start_ns, entry.start_ns, entry.rank, posted))
        if waited_from is not None:
            known = came.get(entry.key, (waited_from, entry.rank))
            found.append(_Held(waited_from, *known, entry.end_ns))
    return sorted(found, key=lambda each: each.start_ns)


def _waited_from(mine: Sequence[Entry]) -> list[int | None]:
    """Since when each was waited for; None: not that anybody knows."""
    found: list[int | None] = []
    last_call = 0  # of the backward pass that is gone through, from its end
    next_is_backward = False
    for entry in reversed(mine):
        backward = entry.issuer.backward
        if backward and not next_is_backward:
            last_call = entry.start_ns
        next_is_backward = backward
        if entry.record.awaited_ns:
            found.append(entry.start_ns + entry.record.awaited_ns - entry.record.issued_ns)
        else:
            found.append(last_call if backward else None)
    return found[::-1]


def arrivals(entries: Sequence[Entry]) -> Arrivals:
    """Of collectives: what their ranks bring to each other is known."""
    operations = defaultdict(list)
    for entry in entries:
        if entry.record.collective and entry.record.route != "none":
            operations[entry.group, entry.record.seq].append(entry)
    found = {}
    for each in operations.values():
        last = max(each, key=lambda entry: entry.start_ns)
        root = next((entry for entry in each if entry.rank == entry.root), None)
        for entry in each:
            if entry.record.op in TOGETHER or (entry.record.op in _TO_ROOT and entry is root):
                found[entry.key] = (last.start_ns, last.rank)
            elif entry.record.op in _FROM_ROOT and root is not None:
                found[entry.key] = (root.start_ns, root.rank)
    return found
