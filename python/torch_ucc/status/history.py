"""Records every operation of a running job, in a file for each rank of this host.

It reads the memory of the job. So the job needs no setting and no restart, and loses no more than the time
that this program takes of a core. Run it on each host of the job. It ends with the job. `torch-ucc trace`
reads the files.
"""

from __future__ import annotations

import argparse
import contextlib
import struct
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

from torch_ucc.status import job as jobs
from torch_ucc.status import segment
from torch_ucc.status.meter import Meter
from torch_ucc.tracing.records import Dump

SUFFIX = ".history"
_BLOCK = struct.Struct("<4sII")
"""Magic, compressed bytes, and what the block holds."""
_MAGIC = b"tuch"
_FACTS, _SLOTS = 0, 1
_SLOT = 128
SHORTEST_S, LONGEST_S = 0.02, 1.0
"""Between two looks at a process. Meanwhile at most a quarter of its ring should be written."""
METERED_S = 5.0


class Writer:
    """The file of one rank. At most `limit` bytes are kept: the older half is dropped as a whole."""

    def __init__(
        self, reader: segment.Segment, path: Path, limit: int, rank: jobs.Rank, meter: Meter | None
    ) -> None:
        self._reader, self._path, self._limit, self._meter = reader, path, limit, meter
        self._rank, self._context = rank.rank, rank.context
        path.with_suffix(".older" + SUFFIX).unlink(missing_ok=True)  # of another recording
        self._file = path.open("wb")
        self._waiting: set[int] = set()
        self._facts = ""
        self._next = max(1, reader.last - reader.capacity + 1)
        self.lost = 0

    def take(self) -> float:
        """Writes what is new. Returns which part of a quarter of the ring that was."""
        facts = self._reader.journal()
        if facts != self._facts:
            self._facts = facts
            self._write(_FACTS, facts.encode())
        first, waited = self._next, len(self._waiting)
        slots, self._next = self._reader.since(first, self._waiting)
        self.lost += self._next - first + waited - len(slots) - len(self._waiting)
        if slots:
            self._write(_SLOTS, b"".join(slots))
        if self._meter is not None:
            known, records = segment.decode(facts, slots)
            self._meter.see(self._rank, jobs.groups_in(known, self._context), records)
        if self._file.tell() > self._limit // 2:
            self._file.close()
            self._path.replace(self._path.with_suffix(".older" + SUFFIX))
            self._file = self._path.open("wb")
            self._write(_FACTS, facts.encode())
        return (self._next - first) / (self._reader.capacity / 4)

    def close(self) -> None:
        """Also writes the operations that have not ended."""
        if slots := self._reader.slots_of(self._waiting):
            self._write(_SLOTS, b"".join(slots))
        self._file.close()
        self._reader.close()

    def _write(self, kind: int, data: bytes) -> None:
        packed = zlib.compress(data, 1)
        self._file.write(_BLOCK.pack(_MAGIC, len(packed), kind) + packed)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="torch-ucc record", description=__doc__)
    parser.add_argument("folder", type=Path, help="the folder for the files, rank<N>.history")
    parser.add_argument(
        "job", nargs="?", help="the name of a job, or the pid of one of its ranks; needed if several jobs run"
    )
    parser.add_argument(
        "--limit",
        type=int,
        default=256,
        metavar="MB",
        help="size of the files of one rank; default %(default)s",
    )
    parser.add_argument(
        "--prometheus", type=Path, metavar="FILE", help="also write counters to FILE, every 5 s"
    )
    parser.add_argument("--seconds", type=float, help="stop after this time; default: when the job ends")
    asked = parser.parse_args(arguments)
    found = [each for each in jobs.jobs(0, ask_others=False) if not asked.job or each.is_called(asked.job)]
    if len(found) != 1:
        what = "no such job runs on this host" if not found else "several jobs run: name one"
        print(f"torch-ucc record: {what} (torch-ucc status lists them)", file=sys.stderr)
        return 2
    asked.folder.mkdir(parents=True, exist_ok=True)
    lost = record(found[0], asked.folder, asked.limit << 20, asked.seconds, asked.prometheus)
    if lost:
        print(f"{lost} operations were lost: they came faster than they could be read")
    return 0


def record(
    job: jobs.Job, folder: Path, limit: int, seconds: float | None = None, prometheus: Path | None = None
) -> int:
    """Until the ranks of this host have ended, or Ctrl-C. Returns how many operations were lost."""
    paths = dict(segment.processes())
    writers = {}
    meter = Meter(rank.rank for rank in job.ranks.values() if rank.process.here) if prometheus else None
    told = time.monotonic()
    for rank in job.ranks.values():
        if rank.process.here and rank.pid in paths:
            reader = segment.Segment(rank.pid, paths[rank.pid])
            writers[rank.pid] = Writer(reader, folder / f"rank{rank.rank}{SUFFIX}", limit, rank, meter)
    pause, lost = SHORTEST_S, 0
    until = time.monotonic() + seconds if seconds else None
    try:
        while writers and (until is None or time.monotonic() < until):
            time.sleep(pause)
            busiest = 0.0
            for pid, writer in list(writers.items()):
                lives = segment.is_alive(pid)  # before the look: the mapping outlives the process
                # If it was stopped while it wrote, the next look will do
                with contextlib.suppress(segment.UnreadableError):
                    busiest = max(busiest, writer.take())
                if not lives:
                    lost += writer.lost
                    writer.close()
                    del writers[pid]
            if meter is not None and prometheus is not None and time.monotonic() - told > METERED_S:
                told = time.monotonic()
                meter.write(prometheus)
            pause = min(LONGEST_S, max(SHORTEST_S, pause / busiest if busiest else 2 * pause))
    except KeyboardInterrupt:
        pass
    finally:
        for writer in writers.values():
            with contextlib.suppress(segment.UnreadableError):
                writer.take()
            lost += writer.lost
            writer.close()
        if meter is not None and prometheus is not None:
            meter.write(prometheus)
    return lost


def read(path: Path) -> Dump:
    """What the file of one rank, with its older half, holds. Raises ValueError."""
    older = path.with_suffix(".older" + SUFFIX)
    journal, slots = "", []
    for file in (older, path):
        if file.exists():
            for kind, data in _blocks(file):
                if kind == _FACTS:
                    journal = _joined(journal, data.decode(errors="replace"))
                else:
                    slots += [data[i : i + _SLOT] for i in range(0, len(data), _SLOT)]
    facts, records = segment.decode(journal, slots)
    seen_ns = max((max(each.issued_ns, each.ended_ns) for each in records), default=0)
    process = segment.Process(0, "0 (x) X", seen_ns, False, facts, records)
    found = jobs.assemble([process])
    if not found:
        raise ValueError("it names no job")
    # A process may have been in several jobs: the one in which it did most
    ranks = [rank for job in found for rank in job.ranks.values()]
    return max(ranks, key=lambda rank: len(rank.records)).dump("trace")


def _blocks(file: Path) -> Iterator[tuple[int, bytes]]:
    """A block that was cut off, by a full disk or a kill, ends the file."""
    data = file.read_bytes()
    at = 0
    while at + _BLOCK.size <= len(data):
        magic, size, kind = _BLOCK.unpack_from(data, at)
        if magic != _MAGIC:
            raise ValueError("it is no history")
        packed = data[at + _BLOCK.size : at + _BLOCK.size + size]
        if len(packed) < size:
            return
        try:
            yield kind, zlib.decompress(packed)
        except zlib.error as error:
            raise ValueError(f"it is damaged: {error}") from None
        at += _BLOCK.size + size


def _joined(earlier: str, later: str) -> str:
    """The facts of both: what was removed meanwhile was true before."""
    return earlier + "".join(line + "\n" for line in later.split("\n") if line and not line.endswith("\t"))
