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

MOST = 200_000
"""Operations that a page shows: of more, the longest. A browser shows so many at once, and their page has
about 10 MB."""


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
    """`lanes` has seven numbers for each box: level, kind, seq, start after that of the box before, length,
    how long of that a rank had not come yet, and which rank that was. `kinds` has what many boxes share:
    three parts of the text, between which are the seq and the times, and the op."""
    ops = sorted({entry.record.op for entry in entries})
    ranks = sorted({entry.rank for entry in entries})
    steps = {rank: [each.ends[rank] for each in found] for rank in ranks}
    came = arrivals(entries)
    kinds: dict[tuple[str, str, str, int], int] = {}
    boxes: dict[int, list[int]] = {rank: [] for rank in ranks}
    before = dict.fromkeys(ranks, 0)
    free: dict[int, list[int]] = {rank: [0] for rank in ranks}  # by level: from when on
    for entry in _longest(entries):
        length = max(entry.end_ns - entry.start_ns, 1)
        last_came, last = came.get(entry.key, (0, entry.rank))
        waiting = min(max(last_came - entry.start_ns, 0), length) if last != entry.rank else 0
        kind = kinds.setdefault((*_parts(entry), ops.index(entry.record.op)), len(kinds))
        level = _level(free[entry.rank], entry.start_ns, entry.start_ns + length)
        after = entry.start_ns - before[entry.rank]
        before[entry.rank] = entry.start_ns
        boxes[entry.rank] += [level, kind, entry.record.seq, after, length, waiting, last]
    lanes = [
        {"rank": rank, "levels": len(free[rank]), "steps": steps[rank], "boxes": boxes[rank]}
        for rank in ranks
    ]
    return {"ops": ops, "kinds": list(kinds), "lanes": lanes, "left_out": max(0, len(entries) - MOST)}


def _longest(entries: Sequence[Entry]) -> Sequence[Entry]:
    """No more than the page can show, in the order in which they were called."""
    if len(entries) <= MOST:
        return entries
    by_length = sorted(range(len(entries)), key=lambda i: entries[i].start_ns - entries[i].end_ns)
    return [entries[i] for i in sorted(by_length[:MOST])]


def _level(free: list[int], start: int, end: int) -> int:
    """The first that is free at `start`, taken until `end`."""
    level = next((i for i, since in enumerate(free) if since <= start), len(free))
    free[level:] = [end, *free[level + 1 :]]
    return level


def _parts(entry: Entry) -> tuple[str, str, str]:
    """Of the text of a box."""
    record = entry.record
    issuer = f"by {entry.issuer.what} ({entry.issuer.kind})\n{entry.issuer.where}".rstrip()
    return (
        f"{record.describe()} seq ",
        f" of group {entry.group}, ",
        f"; {text.size(record.bytes)}, {record.route}, {record.state}\n{issuer}",
    )
