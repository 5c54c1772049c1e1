"""What a process of this host recorded, read from its memory.

The recorder of a process (`cpp/trace/flight_recorder.h`) lies in memory that processes of the same user can
map. Reading needs no thread of that process: it may be stopped, in an endless loop, or stuck in a lock.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch_ucc.tracing.records import Record

FORMAT = 1
CAPACITY = 8192
_NAME = "/memfd:torch-ucc-recorder"
_HEAD = struct.Struct("<7Q")
"""key, format, pid, capacity, where the journal is, its size, the last id"""
_SLOTS = 64
"""Where the slots begin."""
_SLOT = struct.Struct("<4QQ3Q4qIIiiIBBH8x")
_JOURNAL = struct.Struct("<2Q")
"""version and size; the text follows"""
_HAPPENED = 1 << 63
_ROUTES = ("none", "memory", "levels", "ucc", "native", "messages", "store")
_RESULTS = (
    "ok",
    "invalid",
    "unsupported",
    "timeout",
    "peer_gone",
    "transport",
    "mismatch",
    "closed",
    "internal",
)
_TRIES = 100


class UnreadableError(Exception):
    """The memory is of another version of torch-ucc, or its writer was stopped in the middle of a write."""


@dataclass
class Process:
    """One process of a job."""

    pid: int
    stat: str
    """Its line of /proc."""
    seen_ns: int
    """When that was read, by the steady clock of its host."""
    here: bool
    """Whether it is on this host."""
    facts: dict[str, Any] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    """Those that have not ended, the last of each group, and recent ones; in the order of their ids."""

    @property
    def state(self) -> str:
        """The letter of /proc."""
        return _fields(self.stat)[0]

    def under(self, prefix: str) -> list[Any]:
        """The facts whose keys begin so."""
        return [fact for key, fact in self.facts.items() if key.startswith(prefix)]


def stat_of(pid: int) -> str | None:
    """The line of /proc; None if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None


def is_alive(pid: int) -> bool:
    stat = stat_of(pid)
    return stat is not None and _fields(stat)[0] not in "ZX"


def parent_of(pid: int) -> int | None:
    """None if there is no such process."""
    stat = stat_of(pid)
    return None if stat is None else int(_fields(stat)[1])


def seconds_used(pid: int) -> float | None:
    """Of all cores, since the process began; None if there is no such process."""
    stat = stat_of(pid)
    if stat is None:
        return None
    fields = _fields(stat)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _fields(stat: str) -> list[str]:
    """What follows the name of the program, which may contain any character: first the state."""
    return stat.rpartition(")")[2].split()


def processes(proc: Path = Path("/proc")) -> Iterator[tuple[int, Path]]:
    """Processes of this user that have a recorder: the pid, and the path by which it can be opened."""
    for folder in proc.glob("[0-9]*"):
        try:
            if os.geteuid() not in (0, folder.stat().st_uid):
                continue
            for each in os.scandir(folder / "fd"):
                if _target(each.path).startswith(_NAME):
                    yield int(folder.name), Path(each.path)
        except OSError:  # it has ended, or is not ours to look at
            continue


def _target(link: str) -> str:
    """Of a link; empty if the process has closed this descriptor meanwhile."""
    try:
        return os.readlink(link)  # noqa: PTH115 (Path is slow)
    except FileNotFoundError:
        return ""


def read(pid: int, path: Path, recent: int) -> Process | None:
    """None for a process that has only inherited the memory of its parent, or that has ended.

    Raises UnreadableError.
    """
    try:
        segment = Segment(pid, path)
    except OSError:
        return None
    with segment:
        stat = stat_of(pid)
        if stat is None:
            return None
        decoded = decode(segment.journal(), segment.slots(recent))
        return Process(pid, stat, time.monotonic_ns(), True, *decoded)


class Segment:
    """The memory of a recorder, mapped. Close it, or use it as a context."""

    def __init__(self, pid: int, path: Path) -> None:
        """Raises OSError if it cannot be opened, or is not that process's own, and UnreadableError."""
        self.pid = pid
        with path.open("rb") as file:
            self._memory = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        _, version, owner, self._capacity, self._journal_at, _, _ = _HEAD.unpack_from(self._memory)
        if version != FORMAT:
            self.close()
            raise UnreadableError(f"process {pid} runs a torch-ucc whose recorder has format {version}")
        status = Path(f"/proc/{pid}/status").read_text()
        inner = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[-1]
        if int(inner) != owner:
            self.close()
            raise OSError(f"process {pid} has only inherited the memory")

    def __enter__(self) -> Segment:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._memory.close()

    @property
    def last(self) -> int:
        """The id of the operation that was called last."""
        *_, number = _HEAD.unpack_from(self._memory)
        return int(number)

    @property
    def capacity(self) -> int:
        return int(self._capacity)

    def journal(self) -> str:
        for _ in range(_TRIES):
            version, size = _JOURNAL.unpack_from(self._memory, self._journal_at)
            at = self._journal_at + _JOURNAL.size
            text = self._memory[at : at + size]
            if version % 2 == 0 and _JOURNAL.unpack_from(self._memory, self._journal_at)[0] == version:
                return text.decode(errors="replace")
            time.sleep(0.001)
        raise UnreadableError(f"process {self.pid} was stopped while it wrote down its groups")

    def slots(self, recent: int) -> list[bytes]:
        """Of operations that have not ended, of the last ones of each group, and of so many recent ones."""
        last, words = self.last, _SLOT.size // 8
        with memoryview(self._memory) as view, view[_SLOTS : self._journal_at].cast("Q") as live:
            before = live[0::words].tolist()
            ended = live[3::words].tolist()
            wanted = [
                index
                for index in range(self._capacity)
                if before[index] and before[index] % 2 == 0
                if not ended[index] & _HAPPENED or last - before[index] // 2 < recent
            ]
            wanted += _last_of_groups(live[12::words].tolist(), live[14::words].tolist(), before)
            return self._copies(view, live, wanted, before)

    def since(self, first: int, waiting: set[int]) -> tuple[list[bytes], int]:
        """The slots of operations that have ended, of those from id `first` on and those in `waiting`.

        Also returns the id to go on from. `waiting` becomes the set of those that have not ended. One that
        would soon be overwritten is no longer waited for: its slot is returned as it is.
        """
        last, words = self.last, _SLOT.size // 8
        numbers = [*sorted(waiting), *range(max(first, last - self._capacity + 1), last + 1)]
        waiting.clear()
        after = last + 1
        with memoryview(self._memory) as view, view[_SLOTS : self._journal_at].cast("Q") as live:
            indices, before = [], {}
            for number in numbers:
                index = number % self._capacity
                version = live[index * words]
                if version // 2 > number:
                    continue  # overwritten
                if version != 2 * number:
                    after = number  # it has its number, and is still to be written
                    break
                if not live[index * words + 3] & _HAPPENED and last - number < self._capacity // 2:
                    waiting.add(number)
                    continue
                indices.append(index)
                before[index] = version
            return self._copies(view, live, indices, before), after

    def slots_of(self, ids: Iterable[int]) -> list[bytes]:
        """Those that the ring still holds, as they are."""
        with memoryview(self._memory) as view, view[_SLOTS : self._journal_at].cast("Q") as live:
            versions = {number % self._capacity: 2 * number for number in ids}
            return self._copies(view, live, list(versions), versions)

    def _copies(
        self,
        view: memoryview,
        live: memoryview,
        indices: Iterable[int],
        before: Mapping[int, int] | list[int],
    ) -> list[bytes]:
        """Those of the slots that were not written meanwhile."""
        found = {}
        for index in indices:
            copy = bytes(view[_SLOTS + index * _SLOT.size : _SLOTS + (index + 1) * _SLOT.size])
            version = live[index * _SLOT.size // 8]
            if version == before[index] and version % 2 == 0:
                found[index] = copy
        return list(found.values())


def parts_of(report: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The first line and the rest of each part of what a rank answered (cpp/backend/job_facts.h)."""
    at = 0
    while at < len(report):
        (size,) = struct.unpack_from("<Q", report, at)
        line, _, rest = report[at + 8 : at + 8 + size].partition(b"\n")
        at += 8 + size
        yield line, rest


def from_report(report: bytes) -> Iterator[Process]:
    """The processes of another host."""
    for line, extract in parts_of(report):
        now, _, stat = line.partition(b" ")
        if not stat or len(extract) < 8:
            continue  # it has ended
        (length,) = struct.unpack_from("<Q", extract)
        journal = extract[8 : 8 + length].decode(errors="replace")
        slots = extract[8 + length :]
        raw = [slots[i : i + _SLOT.size] for i in range(0, len(slots), _SLOT.size)]
        yield Process(
            int(stat.split()[0]), stat.decode(errors="replace"), int(now), False, *decode(journal, raw)
        )


def _last_of_groups(groups: list[int], tags: list[int], versions: list[int]) -> list[int]:
    """The slots of the last collective and the last message of each group."""
    latest: dict[tuple[int, int], int] = {}
    for index, version in enumerate(versions):
        key = groups[index] & 0xFFFFFFFF, tags[index] >> 32 & 0xFF
        if version and version > versions[latest.get(key, index)] - (key not in latest):
            latest[key] = index
    return list(latest.values())


def decode(journal: str, slots: list[bytes]) -> tuple[dict[str, Any], list[Record]]:
    """The facts of a journal, and the records in slots, in the order of their ids."""
    facts: dict[str, Any] = {}
    for line in journal.split("\n"):
        key, _, value = line.partition("\t")
        if value:
            facts[key] = json.loads(value)
        else:
            facts.pop(key, None)
    names = facts.pop("names", {})
    return facts, sorted((_record(slot, names) for slot in slots), key=lambda each: each.id)


def _record(slot: bytes, names: dict[str, str]) -> Record:
    (
        version,
        posted,
        awaited,
        ended,
        seq,
        op,
        dtype,
        reduce_op,
        input_elements,
        output_elements,
        count,
        issued_ns,
        group,
        site,
        peer,
        root,
        tag,
        message,
        route,
        _,
    ) = _SLOT.unpack(slot)
    result = _RESULTS[ended & 15] if ended & _HAPPENED and ended & 15 < len(_RESULTS) else "ok"
    if ended & _HAPPENED:
        state = "completed" if result == "ok" else "failed"
    else:
        state = "posted" if posted & _HAPPENED else "issued"
    return Record(
        id=version // 2,
        group=group,
        seq=seq,
        op=names.get(str(op), "?"),
        message=bool(message),
        dtype=names.get(str(dtype), ""),
        reduce_op=names.get(str(reduce_op), ""),
        input_elements=input_elements,
        output_elements=output_elements,
        bytes=count,
        root=root,
        peer=peer,
        tag=tag,
        route=_ROUTES[route] if route < len(_ROUTES) else "?",
        state=state,
        result=result,
        issued_ns=issued_ns,
        posted_ns=_time(posted),
        ended_ns=_time(ended),
        site=site,
        awaited_ns=_time(awaited),
    )


def _time(word: int) -> int:
    return (word & ~_HAPPENED) >> 4 if word & _HAPPENED else 0
