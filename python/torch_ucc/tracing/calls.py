"""When a rank called its operations and when it waited for them: what is needed to call them again."""

from __future__ import annotations

from collections.abc import Iterator
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


def steps(dump: Dump) -> Iterator[Step]:
    """In the order of time. Operations that send nothing are left out.

    The recorder does not know when the program needed a result if it waited for a future. Such an operation
    is waited for where the first call comes that was made after its end.
    """
    calls = [each for each in dump.records if each.route != "none"]
    open_: list[Record] = []
    free_ns = calls[0].issued_ns if calls else 0
    for i, record in enumerate(calls):
        for other in [each for each in open_ if 0 < each.ended_ns <= record.issued_ns]:
            open_.remove(other)
            free_ns = max(free_ns, other.ended_ns)
            yield Step(other, waits=True, blocks=False, gap_ns=0)
        blocks = (
            i + 1 < len(calls) and 0 < record.ended_ns <= calls[i + 1].issued_ns and _waited_at_once(record)
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
