"""A trace as text."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from torch_ucc._style import table
from torch_ucc.tracing.iterations import Iteration
from torch_ucc.tracing.timeline import Entry, Lateness, Use, lateness, uses

SHOWN = 10
"""Iterations that have a row. If there are more, the longest ones have one."""


def report(entries: Sequence[Entry], lost: int = 0, iterations: Sequence[Iteration] = ()) -> str:
    """Who called what, where the time of each iteration went, and who kept whom waiting.

    `lost`: operations that the traces miss.
    """
    ranks = {entry.rank for entry in entries}
    if not entries:
        return "nothing was recorded"
    span = max(entry.end_ns for entry in entries) - entries[0].start_ns
    groups = len({entry.group for entry in entries})
    in_groups = f"in {groups} group{'s' * (groups > 1)}"
    head = f"{len(entries)} operations of {len(ranks)} ranks {in_groups}, over {duration(span)}"
    if lost:
        head += f"; {lost} more were lost, because they came faster than the trace could read them"
    return "\n\n".join(
        [
            head,
            table(_USES, [_use(each) for each in uses(entries)]),
            *_iterations(iterations),
            *_late(lateness(entries)),
        ]
    )


def duration(ns: float) -> str:
    for unit, size in (("s", 1e9), ("ms", 1e6)):
        if ns >= size:
            return f"{ns / size:.2f} {unit}"
    return f"{ns / 1e3:.1f} us"


def size(count: float) -> str:
    for unit in ("B", "KB", "MB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GB"


_USES = ("issued by", "from", "operation", "dtype", "ranks", "calls", "bytes", "total", "longest", "path")


def _use(use: Use) -> tuple[str, ...]:
    return (
        use.issuer.what,
        use.issuer.kind,
        use.op,
        use.dtype,
        str(use.ranks),
        str(use.calls),
        size(use.bytes),
        duration(use.total_ns),
        duration(use.longest_ns),
        use.route,
    )


_TIMES = ("whole_ns", "compute_ns", "moving_ns", "waiting_ns")
_ITERATIONS = ("iteration", "time", "compute", "exposed communication", "waiting", "for the slowest")


def _iterations(found: Sequence[Iteration]) -> list[str]:
    """Means over the ranks, and the rank for which the others waited most, with the longest that one did."""
    if not found:
        return []
    rows = []
    if len(found) > 1:
        middle = [statistics.median(each.mean(what) for each in found) for what in _TIMES]
        rows.append(("median", *map(duration, middle), ""))
    longest = sorted(found, key=lambda each: -each.mean("whole_ns"))[:SHOWN]
    for each in sorted(longest, key=lambda each: each.number):
        slowest = f"rank {each.slowest[0]}, {duration(each.slowest[1])}" if each.slowest else "none"
        rows.append((str(each.number), *(duration(each.mean(what)) for what in _TIMES), slowest))
    head = f"{len(found)} iteration{'s' if len(found) > 1 else ''}" + (
        f", the {SHOWN} longest of them" if len(found) > SHOWN else ""
    )
    return [f"{head}:\n{table(_ITERATIONS, rows)}"]


def _late(rows: Sequence[Lateness]) -> list[str]:
    if len(rows) < 2:
        return []
    told = [(f"rank {row.rank}", f"{row.times} of {row.operations}", duration(row.waited_ns)) for row in rows]
    return [table(("came last", "times", "the others waited"), told)]
