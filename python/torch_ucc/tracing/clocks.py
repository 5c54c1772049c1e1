"""One clock for the records of all ranks.

Processes of one boot share a steady clock. Between hosts the operations themselves tell the difference: what
needs every rank's part ends nowhere before the last rank has issued it, which bounds the difference from both
sides, and the tighter the quicker an operation was. Without any, the hosts' wall clocks are believed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from torch_ucc.tracing.records import Dump, Record

# Operations whose end needs a part of every rank.
TOGETHER = frozenset(
    {
        "all_gather",
        "all_gather_into_tensor",
        "all_reduce",
        "all_to_all",
        "all_to_all_single",
        "barrier",
        "reduce_scatter",
        "reduce_scatter_tensor",
    }
)


def offsets(dumps: Sequence[Dump]) -> dict[int, int]:
    """Nanoseconds to add to each rank's times, so that all are on the clock of the first."""
    first = dumps[0]
    together = _together(dumps)
    by_boot = {
        dump.boot_id: 0 if dump.boot_id == first.boot_id else _offset(dump, first, together) for dump in dumps
    }
    return {dump.rank: by_boot[dump.boot_id] for dump in dumps}


def _together(dumps: Sequence[Dump]) -> list[list[tuple[Dump, Record]]]:
    """What each rank recorded of one operation, for all operations that bound the clocks."""
    found = defaultdict(list)
    for dump in dumps:
        for record in dump.records:
            if record.op in TOGETHER and record.state == "completed" and record.route != "none":
                found[dump.group_name(record), record.seq].append((dump, record))
    return list(found.values())


def _offset(dump: Dump, first: Dump, together: list[list[tuple[Dump, Record]]]) -> int:
    low, high = [], []
    for operation in together:
        here = [record for each, record in operation if each.boot_id == dump.boot_id]
        there = [record for each, record in operation if each.boot_id == first.boot_id]
        if here and there:
            low.append(max(each.issued_ns for each in there) - min(each.ended_ns for each in here))
            high.append(min(each.ended_ns for each in there) - max(each.issued_ns for each in here))
    if not low:
        return (dump.wall_ns - dump.steady_ns) - (first.wall_ns - first.steady_ns)
    return (max(low) + min(high)) // 2
