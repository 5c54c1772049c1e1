"""A trace as one HTML page that needs nothing else: a timeline of all ranks, and the report below it."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch_ucc._style import plain
from torch_ucc.tracing import text
from torch_ucc.tracing.iterations import Iteration, arrivals
from torch_ucc.tracing.timeline import Entry


def render(entries: Sequence[Entry], lost: int = 0, found: Sequence[Iteration] = ()) -> str:
    # Within a script element nothing is markup but "<", as in "</script>" or "<!--".
    told = {
        "@DATA@": json.dumps(data(entries, found)).replace("<", "\\u003c"),
        "@REPORT@": html.escape(plain(text.report(entries, lost, found))),
    }
    page = Path(__file__).with_name("page.html").read_text()
    # In one pass: what is told may hold one of these words.
    return re.sub("|".join(told), lambda word: told[word[0]], page)


def data(entries: Sequence[Entry], found: Sequence[Iteration]) -> dict[str, Any]:
    ops = sorted({entry.record.op for entry in entries})
    ranks = sorted({entry.rank for entry in entries})
    steps = {rank: [each.ends[rank] for each in found] for rank in ranks}
    came = arrivals(entries)
    boxes = []
    free: dict[int, list[int]] = {rank: [0] for rank in ranks}  # by level: from when on
    for entry in entries:
        length = max(entry.end_ns - entry.start_ns, 1)
        last_came, last = came.get(entry.key, (0, entry.rank))
        waiting = min(max(last_came - entry.start_ns, 0), length) if last != entry.rank else 0
        told = _tip(entry, waiting, last)
        level = _level(free[entry.rank], entry.start_ns, entry.start_ns + length)
        boxes.append([entry.rank, level, ops.index(entry.record.op), entry.start_ns, length, waiting, told])
    lanes = [{"rank": rank, "levels": len(free[rank]), "steps": steps[rank]} for rank in ranks]
    return {"ops": ops, "lanes": lanes, "boxes": boxes}


def _level(free: list[int], start: int, end: int) -> int:
    """The first that is free at `start`, taken until `end`."""
    level = next((i for i, since in enumerate(free) if since <= start), len(free))
    free[level:] = [end, *free[level + 1 :]]
    return level


def _tip(entry: Entry, waiting: int, last: int) -> str:
    record = entry.record
    waited = f", {text.duration(waiting)} of it until rank {last} came" if waiting else ""
    return (
        f"{record.describe()} seq {record.seq} of group {entry.group}\n"
        f"{text.duration(entry.end_ns - entry.start_ns)}{waited}; {text.size(record.bytes)}, "
        f"{record.route}, {record.state}\n"
        f"by {entry.issuer.what} ({entry.issuer.kind})\n{entry.issuer.where}"
    ).rstrip()
