"""Dumps in the format of PyTorch's own flight recorder, for its analyser `torchfrtrace`.

The analyser pairs the operations of a group by their numbers, under the names of NCCL's process group and of
backends that ours is not among: it is told that they are gloo's. What it cannot pair as recorded is put in
words that it knows, for which the dumps of all ranks are looked at together:

- Messages are numbered apart for each pair of ranks, and it pairs them in groups of two: each pair gets one.
- Of parts that differ in size, as in an uneven all_gather, each rank tells its own: it is told all of them.
"""

from __future__ import annotations

import pickle
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch_ucc.tracing.records import Dump, Record

VERSION = "2.10"

Numel = Callable[[Record], int]
Sizes = list[list[int]]


def _input(record: Record) -> int:
    return record.input_elements


def _output(record: Record) -> int:
    return record.output_elements


NAMES = {
    "all_gather_coalesced": "ALLGATHER_coalesced",
    "all_gather_into_tensor": "_all_gather_base",
    "all_reduce_coalesced": "allreduce_coalesced",
    "all_to_all_single": "all_to_all",
    "reduce_scatter_tensor": "_reduce_scatter_base",
    "sparse_all_reduce": "all_reduce",
}
"""What the analyser calls an operation, where it has another name for it."""

_PARTS: dict[str, tuple[str, Numel, Numel]] = {
    "all_gather": ("all_gather_v", _input, _output),
    "gather": ("gather", _input, _output),
    "reduce_scatter": ("reduce_scatter_v", _output, _input),
    "scatter": ("scatter", _output, _input),
}
"""Operations whose parts may differ: their name then, the side of a rank's part, and that of all parts."""

_STATES = {"issued": "scheduled", "posted": "started", "completed": "completed", "failed": "started"}
_FRAME = re.compile(r"(.*):(\d+) (.*)")


@dataclass
class Converted:
    """What each rank's file holds, and how many messages are in none of them."""

    files: dict[int, dict[str, Any]]
    left_out: int


def convert(dumps: Sequence[Dump]) -> Converted:
    messages = _Messages(dumps)
    uneven = _uneven(dumps)
    first = _first_seen_by_all(dumps)

    def told_of(dump: Dump, record: Record) -> _Told | None:
        name = dump.group_name(record)
        if record.message:
            return messages.numbered.get((dump.rank, record.id))
        if not record.collective or record.group not in dump.groups or record.seq < first[name]:
            return None
        plain = _Told(name, record.seq, NAMES.get(record.op, record.op))
        return uneven.get((name, record.seq, record.op), plain)

    files = {}
    for dump in dumps:
        told = [(record, told_of(dump, record)) for record in dump.records]
        entries = [(record, each) for record, each in told if each]
        groups = {group.name: group.ranks for group in dump.groups.values()} | messages.groups[dump.rank]
        files[dump.rank] = {
            "version": VERSION,
            "pg_config": {
                name: {"name": name, "desc": "undefined", "ranks": str(list(ranks))}
                for name, ranks in groups.items()
            },
            "pg_status": {},
            "entries": [_entry(dump, record, each, number) for number, (record, each) in enumerate(entries)],
        }
    return Converted(files, messages.left_out)


def save(dumps: Sequence[Dump], folder: Path | str) -> int:
    """Writes one file a rank, which `python -m torch.distributed.flight_recorder.fr_trace FOLDER` reads.

    Returns how many messages are left out, since nobody can say what they belong to: those from any source,
    those that could be for such a receive, and those between ranks whose first calls are not recorded.
    """
    converted = convert(dumps)
    Path(folder).mkdir(parents=True, exist_ok=True)
    for rank, file in converted.files.items():
        (Path(folder) / f"rank_{rank}").write_bytes(pickle.dumps(file))
    return converted.left_out


@dataclass
class _Told:
    """How the analyser is told of a record: in which group, as which number, by which name and sizes."""

    group: str
    number: int
    name: str
    sizes: tuple[Sizes, Sizes] | None = None
    """Of input and output; none: as recorded."""
    is_message: bool = False


class _Messages:
    """The messages that have a partner by their order, each under the number that it shares with it."""

    def __init__(self, dumps: Sequence[Dump]) -> None:
        self.numbered: dict[tuple[int, int], _Told] = {}
        """By rank and id of the record."""
        self.groups: dict[int, dict[str, tuple[int, ...]]] = defaultdict(dict)
        """The groups of two that each rank is in, with their ranks."""
        self.left_out = 0
        whole = {dump.rank for dump in dumps if not dump.records or dump.records[0].id == 1}
        from_anybody = {
            (dump.group_name(each), dump.rank, each.tag)
            for dump in dumps
            for each in dump.records
            if each.op == "recv_any_source"
        }
        numbers: dict[str, dict[tuple[int, int, int, int], int]] = defaultdict(dict)
        times: dict[tuple[str, str, int, int, int], int] = defaultdict(int)
        for dump in dumps:
            for record in dump.records:
                if not record.message or record.group not in dump.groups:
                    continue
                ranks = dump.groups[record.group].ranks
                group = dump.group_name(record)
                peer = ranks[record.peer] if 0 <= record.peer < len(ranks) else dump.rank
                source, to = (dump.rank, peer) if record.op == "send" else (peer, dump.rank)
                if source == to or (group, to, record.tag) in from_anybody or not {source, to} <= whole:
                    self.left_out += 1
                    continue
                time = times[group, record.op, source, to, record.tag]
                times[group, record.op, source, to, record.tag] += 1
                pair = (min(source, to), max(source, to))
                name = f"{group}: messages of ranks {pair[0]} and {pair[1]}"
                number = numbers[name].setdefault((source, to, record.tag, time), len(numbers[name]) + 1)
                arrow = ("->" if record.op == "send" else "<-").join(
                    str(pair.index(rank)) for rank in (dump.rank, peer)
                )
                self.numbered[dump.rank, record.id] = _Told(
                    name, number, f"{record.op} {arrow}", is_message=True
                )
                for rank in pair:
                    self.groups[rank][name] = pair


@dataclass
class _Parts:
    """Of one operation over all ranks that called it."""

    of_rank: dict[int, int] = field(default_factory=dict)
    totals: set[int] = field(default_factory=set)


def _uneven(dumps: Sequence[Dump]) -> dict[tuple[str, int, str], _Told]:
    """By group, seq and op: those whose parts differ, and add up to what those that have them all expect.

    Where they do not add up they stay as recorded, which the analyser calls a mismatch. Parts of ranks that
    did not call, or left no dump, may be what is missing.
    """
    found: dict[tuple[str, int, str], _Parts] = defaultdict(_Parts)
    members = {group.name: group.ranks for dump in dumps for group in dump.groups.values()}
    for dump in dumps:
        for record in dump.records:
            if record.op in _PARTS and record.group in dump.groups:
                _, part, total = _PARTS[record.op]
                name = dump.group_name(record)
                of = found[name, record.seq, record.op]
                of.of_rank[dump.rank] = part(record)
                if record.root < 0 or members[name][record.root] == dump.rank:  # else it has its part alone
                    of.totals.add(total(record))
    told = {}
    for (name, seq, op), parts in found.items():
        ranks = [rank for rank in members[name] if rank in parts.of_rank]
        known = sum(parts.of_rank.values())
        add_up = len(parts.totals) <= 1 and all(
            known == total or (known < total and len(ranks) < len(members[name])) for total in parts.totals
        )
        if len(set(parts.of_rank.values())) > 1 and add_up:
            whole = sum(parts.totals) or known
            sizes: tuple[Sizes, Sizes] = ([[parts.of_rank[rank]] for rank in ranks], [[whole]])
            called, part, _ = _PARTS[op]
            told[name, seq, op] = _Told(name, seq, called, sizes if part is _input else (sizes[1], sizes[0]))
    return told


def _first_seen_by_all(dumps: Sequence[Dump]) -> dict[str, int]:
    """By group: the seq from which on all members still have their records.

    The analyser drops what came before by ids, which count alike on all ranks in NCCL's recorder only.
    """
    first: dict[str, int] = defaultdict(int)
    for dump in dumps:
        seen: dict[str, int] = {}
        for record in dump.records:
            if record.collective:
                seen.setdefault(dump.group_name(record), record.seq)
        for name, seq in seen.items():
            first[name] = max(first[name], seq)
    return first


def _entry(dump: Dump, record: Record, told: _Told, number: int) -> dict[str, Any]:
    to_wall = dump.wall_ns - dump.steady_ns
    inputs, outputs = told.sizes or ([[record.input_elements]], [[record.output_elements]])
    return {
        "record_id": number,
        "pg_id": record.group,
        "process_group": (told.group, "undefined"),
        "collective_seq_id": told.number,
        "p2p_seq_id": told.number if told.is_message else 0,
        "op_id": record.id,
        "profiling_name": f"gloo:{told.name}",
        "time_created_ns": record.issued_ns + to_wall,
        "time_discovered_started_ns": record.posted_ns + to_wall if record.posted_ns else None,
        "time_discovered_completed_ns": record.ended_ns + to_wall if record.ended_ns else None,
        "duration_ms": (record.ended_ns - record.issued_ns) / 1e6 if record.ended_ns else None,
        "input_sizes": inputs,
        "input_dtypes": [record.dtype],
        "output_sizes": outputs,
        "output_dtypes": [record.dtype],
        "state": _STATES[record.state],
        "retired": record.over,
        "is_p2p": told.is_message,
        "timeout_ms": 0,
        "frames": _frames(dump.sites.get(record.site, "")),
    }


def _frames(site: str) -> list[dict[str, str]]:
    found = (_FRAME.fullmatch(line) for line in site.splitlines())
    return [{"filename": frame[1], "line": frame[2], "name": frame[3]} for frame in found if frame]
