"""A trace in the format of chrome://tracing and Perfetto."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch_ucc.tracing.timeline import Entry


def convert(entries: Sequence[Entry]) -> dict[str, Any]:
    """A process a rank, a thread a group; async slices, since operations of one group overlap."""
    groups = {name: number for number, name in enumerate(dict.fromkeys(entry.group for entry in entries), 1)}
    named = [
        _named("process_name", f"rank {rank}", pid=rank) for rank in sorted({entry.rank for entry in entries})
    ]
    named += [
        {
            "ph": "M",
            "name": "thread_name",
            "pid": rank,
            "tid": groups[group],
            "args": {"name": f"group {group}"},
        }
        for rank, group in sorted({(entry.rank, entry.group) for entry in entries})
    ]
    return {"traceEvents": [*named, *(each for entry in entries for each in _slice(entry, groups))]}


def _named(kind: str, name: str, **whose: int) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "args": {"name": name}, **whose}


def _slice(entry: Entry, groups: dict[str, int]) -> list[dict[str, Any]]:
    record = entry.record
    common = {
        "name": record.op,
        "cat": entry.group,
        "id": f"{entry.rank}/{record.id}",
        "pid": entry.rank,
        "tid": groups[entry.group],
    }
    told = {
        "seq": record.seq,
        "what": record.describe(),
        "bytes": record.bytes,
        "path": record.route,
        "state": record.state,
        "issued by": f"{entry.issuer.what} ({entry.issuer.kind})",
        "from": entry.issuer.where,
    }
    return [
        {**common, "ph": "b", "ts": entry.start_ns / 1e3, "args": told},
        {**common, "ph": "e", "ts": entry.end_ns / 1e3},
    ]
