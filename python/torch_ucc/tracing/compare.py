"""Two runs of a program side by side: which operations take longer, and how much that is in all."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from torch_ucc._style import table
from torch_ucc.tracing.records import Dump
from torch_ucc.tracing.text import duration, size


@dataclass(frozen=True)
class Change:
    """Operations that are alike, in both runs. Times are medians of one call, of all ranks."""

    op: str
    dtype: str
    bytes: int
    ranks: int
    calls: tuple[int, int]
    ns: tuple[float, float]

    @property
    def more_ns(self) -> float:
        """How much longer all calls of the second run take than as many of the first would have."""
        return (self.ns[1] - self.ns[0]) * self.calls[1]


def changes(first: Sequence[Dump], second: Sequence[Dump]) -> list[Change]:
    """Those that both runs have; the largest loss first."""
    one, other = _times(first), _times(second)
    found = [
        Change(
            *key,
            (len(one[key]), len(other[key])),
            (statistics.median(one[key]), statistics.median(other[key])),
        )
        for key in one.keys() & other.keys()
    ]
    return sorted(found, key=lambda change: (-change.more_ns, change.op, change.bytes))


def _times(dumps: Sequence[Dump]) -> dict[tuple[str, str, int, int], list[int]]:
    times = defaultdict(list)
    for dump in dumps:
        for record in dump.records:
            if record.state == "completed" and record.route != "none" and record.group in dump.groups:
                key = record.op, record.dtype, record.bytes, len(dump.groups[record.group].ranks)
                times[key].append(record.ended_ns - record.issued_ns)
    return dict(times)


def report(first: Sequence[Dump], second: Sequence[Dump]) -> str:
    one, other = _times(first), _times(second)
    rows = [
        (
            change.op,
            change.dtype,
            size(change.bytes),
            str(change.ranks),
            f"{change.calls[0]}, {change.calls[1]}",
            duration(change.ns[0]),
            duration(change.ns[1]),
            f"{change.ns[1] / change.ns[0]:.2f}x" if change.ns[0] else "",
            f"{'+' if change.more_ns >= 0 else '-'}{duration(abs(change.more_ns))}",
        )
        for change in changes(first, second)
    ]
    head = ("operation", "dtype", "size", "ranks", "calls", "first", "second", "ratio", "change in total")
    parts = [table(head, rows)] if rows else ["The two runs have no operation in common."]
    for name, mine, theirs in (("first", one, other), ("second", other, one)):
        if only := sorted(mine.keys() - theirs.keys()):
            told = ", ".join(f"{op}({dtype}, {size(count)})" for op, dtype, count, _ in only[:8])
            parts.append(f"Only in the {name} run: {told}{', ...' if len(only) > 8 else ''}")
    return "\n\n".join(parts)
