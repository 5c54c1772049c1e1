"""When a rank called its operations and when it waited for them: what is needed to call them again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

from torch_ucc.tracing.records import Dump, Record


@dataclass(frozen=True)
class Step:
    record: Record
    waits: bool
    """Whether the rank waits for the operation, which it called before; otherwise it calls the operation."""
    blocks: bool
    """Of a call: the rank waits at once, as in a call that is not asynchronous."""
    gap_ns: int
    """Of a call: how long the rank did something else since its last step."""


def shared(dumps: Sequence[Dump]) -> dict[int, set[int]]:
    """By rank: the ids of operations that ended well on all ranks which they need.

    A recording may begin and end at another operation on each rank.
    """
    of_call: dict[tuple[str, bool, int], list[tuple[int, int]]] = defaultdict(list)
    sent: dict[tuple[str, int, int, int], list[int]] = defaultdict(list)
    received: dict[tuple[str, int, int, int], list[int]] = defaultdict(list)
    from_any: dict[tuple[str, int, int], list[int]] = defaultdict(list)
    members: dict[str, int] = {}
    for dump in dumps:
        for record in dump.records:
            group = dump.groups.get(record.group)
            if group is None or record.state != "completed" or record.route == "none":
                continue
            members[group.name] = len(group.ranks)
            if not record.message:
                of_call[group.name, record.route == "store", record.seq].append((dump.rank, record.id))
            elif record.peer < 0:
                from_any[group.name, dump.rank, record.tag].append(record.id)
            elif record.op == "send":
                sent[group.name, dump.rank, group.ranks[record.peer], record.tag].append(record.id)
            else:
                received[group.name, group.ranks[record.peer], dump.rank, record.tag].append(record.id)
    kept: dict[int, set[int]] = {dump.rank: set() for dump in dumps}
    for (name, _, _), calls in of_call.items():
        if len(calls) == members[name]:
            for rank, number in calls:
                kept[rank].add(number)
    left: dict[tuple[str, int, int], list[tuple[int, int]]] = defaultdict(list)
    for (name, sender, receiver, tag), outgoing in sent.items():
        incoming = received.get((name, sender, receiver, tag), [])
        pairs = min(len(outgoing), len(incoming))
        kept[sender].update(outgoing[:pairs])
        kept[receiver].update(incoming[:pairs])
        left[name, receiver, tag] += [(sender, number) for number in outgoing[pairs:]]
    for (name, receiver, tag), incoming in from_any.items():
        # Otherwise it cannot be known which of them belong together
        if len(left[name, receiver, tag]) == len(incoming):
            kept[receiver].update(incoming)
            for sender, number in left[name, receiver, tag]:
                kept[sender].add(number)
    return kept


def steps(dump: Dump, only: Container[int] | None = None) -> Iterator[Step]:
    """In the order of time. Operations that send nothing are left out. `only`: the ids of those that count.

    The recorder does not know when the program needed a result if it waited for a future. Such an operation
    is waited for where the first call comes that was made after its end.
    """
    calls = [each for each in dump.records if each.route != "none" and (only is None or each.id in only)]
    open_: list[Record] = []
    free_ns = calls[0].issued_ns if calls else 0
    for i, record in enumerate(calls):
        for other in [each for each in open_ if 0 < each.ended_ns <= record.issued_ns]:
            open_.remove(other)
            free_ns = max(free_ns, other.ended_ns)
            yield Step(other, waits=True, blocks=False, gap_ns=0)
        is_last = i + 1 == len(calls)
        # A message that a rank waits for at once could keep it from the message that its peer waits for
        blocks = (
            not record.message
            and not is_last
            and 0 < record.ended_ns <= calls[i + 1].issued_ns
            and _waited_at_once(record)
        )
        yield Step(record, waits=False, blocks=blocks, gap_ns=max(0, record.issued_ns - free_ns))
        free_ns = record.ended_ns if blocks else record.issued_ns
        if not blocks:
            open_.append(record)
    for record in open_:
        yield Step(record, waits=True, blocks=False, gap_ns=0)


def _waited_at_once(record: Record) -> bool:
    """Whether wait() began before anything else can have happened, or the operation ended within its call."""
    whole = record.ended_ns - record.issued_ns
    return record.awaited_ns == 0 or record.awaited_ns - record.issued_ns < max(whole // 4, 20_000)
