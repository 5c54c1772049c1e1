"""Records every operation of a running job, in a file for each rank of this host.

It reads the memory of the job, so the job needs no setting and no restart. It costs the job no more than the
CPU time that this program uses. Run it on each host of the job. It ends when the job ends. If torchrun
started the job, it ends when torchrun ends, because torchrun may start the ranks again. `torch-ucc trace`
reads the files.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import struct
import sys
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch_ucc.status import job as jobs
from torch_ucc.status import segment
from torch_ucc.status.meter import Meter, PrometheusFile
from torch_ucc.tracing.records import Dump, Group

SUFFIX = ".history"
_BLOCK = struct.Struct("<4sII")
"""Magic, compressed bytes, and what the block holds."""
_MAGIC = b"tuch"
_FACTS, _SLOTS, _CUT = 0, 1, 2
"""_CUT: when the recording ended, if the process went on."""
_TIME = struct.Struct("<q")
_SLOT = 128
SHORTEST_S, LONGEST_S = 0.02, 1.0
"""Between two looks at a process. Meanwhile at most a quarter of its ring should be written."""
REGULARLY_S = 2.0
"""Between two searches for ranks that have started."""
PUBLISHED_S = 5.0
"""Between two times that counts are published."""


@dataclass(frozen=True)
class Process:
    """A process of this host that belongs to a job."""

    pid: int
    path: Path
    """Of its memory."""
    started_by: tuple[int | None, str]
    """Its parent, and the name of its program."""
    contexts: list[dict[str, Any]]

    @property
    def worlds(self) -> set[str]:
        return {each["world"] for each in self.contexts}

    @property
    def rank(self) -> int:
        """In the largest of its contexts."""
        return int(max(self.contexts, key=lambda each: each["size"])["rank"])

    def is_of_torchrun(self) -> bool:
        try:
            return b"TORCHELASTIC_RUN_ID=" in Path(f"/proc/{self.pid}/environ").read_bytes()
        except OSError:
            return False

    def is_called(self, name: str) -> bool:
        return name in {str(self.pid), self.started_by[1], *(world[: jobs.NAME] for world in self.worlds)}


def processes(known: Sequence[int] = ()) -> Iterator[Process]:
    """Those that are not known. One that has no group yet, or cannot be read, is left out."""
    for pid, path in segment.processes():
        if pid in known:
            continue
        with contextlib.suppress(segment.UnreadableError, OSError, ValueError, LookupError, struct.error):
            with segment.Segment(pid, path) as reader:
                facts, _ = segment.decode(reader.journal(), [])
            contexts = [fact for key, fact in facts.items() if key.startswith("context/")]
            program = facts.get("process", {}).get("program", "")
            if contexts:
                yield Process(pid, path, (segment.parent_of(pid), program), contexts)


def by_job(found: Sequence[Process]) -> list[list[Process]]:
    """Processes that share a world are of one job, and all worlds of a process are."""
    made: list[tuple[set[str], list[Process]]] = []
    for process in found:
        worlds, members = process.worlds, [process]
        for other in [each for each in made if each[0] & worlds]:
            made.remove(other)
            worlds, members = worlds | other[0], other[1] + members
        made.append((worlds, members))
    return [members for _, members in made]


class Writer:
    """The file of one process. At most `limit` bytes are kept: the older half is dropped as a whole."""

    def __init__(self, reader: segment.Segment, path: Path, limit: int, meters: Sequence[Meter]) -> None:
        self._reader, self._path, self._limit, self._meters = reader, path, limit, meters
        path.with_suffix(".older" + SUFFIX).unlink(missing_ok=True)  # of another recording
        self._file = path.open("wb")
        self._waiting: set[int] = set()
        self._facts = self._names = ""
        self._contexts: dict[int, tuple[str, int, dict[int, Group]]] = {}
        """World, rank and groups by number. What has been closed stays: its last operations come later."""
        self._next = max(1, self._reader.last - self._reader.capacity + 1)
        self.lost = 0

    @property
    def worlds(self) -> set[str]:
        return {world for world, _, _ in self._contexts.values()}

    def take(self) -> float:
        """Writes what is new. Returns which part of a quarter of the ring that was."""
        facts = self._reader.journal()
        if facts != self._facts:
            self._facts = facts
            self._write(_FACTS, facts.encode())
            self._learn()
        first, waited = self._next, len(self._waiting)
        slots, self._next = self._reader.since(first, self._waiting)
        self.lost += self._next - first + waited - len(slots) - len(self._waiting)
        if slots:
            self._write(_SLOTS, b"".join(slots))
        if self._meters:
            _, records = segment.decode(self._names, slots)
            for meter in self._meters:
                for context in self._contexts.values():
                    meter.see(*context, records)
        if self._file.tell() > self._limit // 2:
            self._file.close()
            self._path.replace(self._path.with_suffix(".older" + SUFFIX))
            self._file = self._path.open("wb")
            self._write(_FACTS, facts.encode())
        return (self._next - first) / (self._reader.capacity / 4)

    def close(self, lives: bool) -> None:
        """Also writes the operations that have not ended. `lives`: whether the process goes on."""
        now_ns = time.monotonic_ns()
        try:
            if slots := self._reader.slots_of(self._waiting):
                self._write(_SLOTS, b"".join(slots))
            if lives:
                self._write(_CUT, _TIME.pack(now_ns))
        finally:
            self._reader.close()
            self._file.close()

    def _learn(self) -> None:
        """The names and contexts in the facts."""
        known, _ = segment.decode(self._facts, [])
        self._names = next((line for line in self._facts.split("\n") if line.startswith("names\t")), "")
        for key, context in known.items():
            if key.startswith("context/"):
                number = context["number"]
                _, _, before = self._contexts.get(number, ("", 0, {}))
                groups = {**before, **jobs.groups_in(known, number)}
                self._contexts[number] = context["world"], context["rank"], groups
                for meter in self._meters:
                    meter.joins(context["world"], context["rank"])

    def _write(self, kind: int, data: bytes) -> None:
        packed = zlib.compress(data, 1)
        self._file.write(_BLOCK.pack(_MAGIC, len(packed), kind) + packed)


class Recorder:
    """Keeps the files of all processes of one job on this host, also of those that start later.

    The first file of each rank is in `folder`. A process that takes the rank of one that has ended gets its
    file in `folder`/2, and so on: each folder holds one start of the job.
    """

    def __init__(self, folder: Path, limit: int, meters: Sequence[Meter] = ()) -> None:
        self._folder, self._limit, self._meters = folder, limit, meters
        self.writers: dict[int, Writer] = {}
        self._start: dict[str, int] = {}
        """Of each world: the start of the job, counted from 1, to which it belongs."""
        self._taken: dict[tuple[int, int], int] = {}
        """By start and rank: the pid."""
        self._starters: set[tuple[int | None, str]] = set()
        self._agents: set[int] = set()
        self._told: list[Meter] = []
        """Those of whose errors the user was told."""
        self.lost = 0

    def add(self, members: Sequence[Process]) -> None:
        """These have started together."""
        worlds = {world for process in members for world in process.worlds}
        known = [self._start[world] for world in worlds if world in self._start]
        start = min(known) if known else 1 + max((each for each, _ in self._taken), default=0)
        for world in worlds:
            self._start.setdefault(world, start)
        for process in members:
            self._begin(process, start)

    def _begin(self, process: Process, start: int) -> None:
        while (start, process.rank) in self._taken:
            start += 1
        try:
            reader = segment.Segment(process.pid, process.path)
        except (segment.UnreadableError, OSError):  # it has ended
            return
        folder = self._folder if start == 1 else self._folder / str(start)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"rank{process.rank}{SUFFIX}"
        self.writers[process.pid] = Writer(reader, path, self._limit, self._meters)
        self._taken[start, process.rank] = process.pid
        self._starters.add(process.started_by)
        parent, _ = process.started_by
        if parent is not None and process.is_of_torchrun():
            self._agents.add(parent)

    def search(self) -> None:
        """Adds processes that have joined the job, and those that its launcher has started since."""
        for (start, _), pid in self._taken.items():
            if pid in self.writers:
                for world in self.writers[pid].worlds:
                    self._start.setdefault(world, start)
        found = [
            process
            for process in processes([*self.writers])
            if process.worlds & self._start.keys() or process.started_by in self._starters
        ]
        for members in by_job(found):
            self.add(members)

    def look(self) -> float:
        """Returns the largest part of a quarter of its ring that any process has written."""
        busiest = 0.0
        for pid, writer in list(self.writers.items()):
            lives = segment.is_alive(pid)  # before the look: the mapping outlives the process
            # If it was stopped while it wrote, the next look will do
            with contextlib.suppress(segment.UnreadableError):
                busiest = max(busiest, writer.take())
            if not lives:
                self._end(pid, lives=False)
        return busiest

    def may_go_on(self) -> bool:
        """Whether a rank lives, or an agent of torchrun that may start the ranks again."""
        return bool(self.writers) or any(segment.is_alive(pid) for pid in self._agents)

    def publish(self) -> None:
        """A meter that cannot publish now, because a disk is full, may be able to do so later."""
        for meter in self._meters:
            try:
                meter.publish()
            except OSError as error:
                if meter not in self._told:
                    print(f"torch-ucc record: cannot write metrics: {error}", file=sys.stderr)
                    self._told.append(meter)

    def close(self) -> None:
        """Ends all files and meters, also if one of them raises an error, and then raises it."""
        with contextlib.ExitStack() as steps:  # the last one first
            for meter in self._meters:
                steps.callback(meter.close)
            for pid in list(self.writers):
                steps.callback(self._end, pid, lives=True)
            self.look()

    def _end(self, pid: int, lives: bool) -> None:
        if writer := self.writers.pop(pid, None):
            self.lost += writer.lost
            writer.close(lives)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="torch-ucc record", description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="the folder for the files rank<N>.history")
    parser.add_argument(
        "job",
        nargs="?",
        help="the name of a job, its program, or the pid of one of its ranks; needed if several jobs run",
    )
    parser.add_argument(
        "--limit",
        type=int,
        default=256,
        metavar="MB",
        help="largest size of the files of one rank; the command then deletes the older half; "
        "default: %(default)s",
    )
    parser.add_argument(
        "--prometheus", type=Path, metavar="FILE", help="also write metrics to FILE, every 5 s"
    )
    parser.add_argument(
        "--opentelemetry",
        action="store_true",
        help="also export metrics with the SDK of OpenTelemetry; its OTEL_ variables say where",
    )
    parser.add_argument(
        "--dashboard", action="store_true", help="only print a dashboard of these metrics, for Grafana"
    )
    parser.add_argument("--seconds", type=float, help="stop after this time; default: run until the job ends")
    asked = parser.parse_args(arguments)
    if asked.dashboard:
        print(Path(__file__).with_name("dashboard.json").read_text(), end="")
        return 0
    if asked.folder is None:
        parser.error("the folder is missing")
    found = [
        members
        for members in by_job(list(processes()))
        if not asked.job or any(each.is_called(asked.job) for each in members)
    ]
    if len(found) != 1:
        what = "no such job runs on this host" if not found else "several jobs run: name one"
        print(f"torch-ucc record: {what} (torch-ucc status lists them)", file=sys.stderr)
        return 2
    if any(asked.folder.rglob(f"*{SUFFIX}")):
        print(f"torch-ucc record: {asked.folder} holds another recording: name a new folder", file=sys.stderr)
        return 2
    try:
        recorder = Recorder(asked.folder, asked.limit << 20, _meters(asked))
        recorder.add(found[0])
    except (ImportError, LookupError, OSError) as error:
        print(f"torch-ucc record: {error}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    ranks = ", ".join(str(each.rank) for each in found[0])
    print(f"torch-ucc record: writes rank {ranks} to {asked.folder}; Ctrl-C ends it", file=sys.stderr)
    try:
        record(recorder, asked.seconds)
    except OSError as error:
        print(f"torch-ucc record: {error}", file=sys.stderr)
        return 1
    if recorder.lost:
        print(f"{recorder.lost} operations were lost: they came faster than they could be read")
    return 0


def _meters(asked: argparse.Namespace) -> list[Meter]:
    """Raises ImportError or LookupError if OpenTelemetry or its exporter is not installed.

    Raises OSError if the file of metrics cannot be written.
    """
    meters: list[Meter] = []
    if asked.prometheus:
        meters.append(PrometheusFile(asked.prometheus))
        meters[0].publish()
    if asked.opentelemetry:
        try:
            from torch_ucc.status import otel
        except ImportError as error:
            raise ImportError(f"{error}: `pip install opentelemetry-sdk`") from error
        meters.append(otel.OpenTelemetry([*otel.readers()]))
    return meters


def record(recorder: Recorder, seconds: float | None = None) -> None:
    """Until the job has ended, Ctrl-C, or so many seconds have passed."""
    pause = SHORTEST_S
    now = searched = published = time.monotonic()
    until = now + seconds if seconds else None
    try:
        while recorder.may_go_on() and (until is None or now < until):
            time.sleep(pause)
            busiest = recorder.look()
            now = time.monotonic()
            if now - searched > REGULARLY_S:
                searched = now
                recorder.search()
            if now - published > PUBLISHED_S:
                published = now
                recorder.publish()
            pause = min(LONGEST_S, max(SHORTEST_S, pause / busiest if busiest else 2 * pause))
    except KeyboardInterrupt:
        pass
    finally:
        recorder.close()


def read(path: Path) -> Dump:
    """What the file of one rank, with its older half, holds. Raises ValueError."""
    older = path.with_suffix(".older" + SUFFIX)
    journal, slots, cut_ns = "", [], 0
    for file in (older, path):
        if file.exists():
            for kind, data in _blocks(file):
                if kind == _FACTS:
                    journal = _joined(journal, data.decode(errors="replace"))
                elif kind == _CUT:
                    (cut_ns,) = _TIME.unpack(data)
                else:
                    slots += [data[i : i + _SLOT] for i in range(0, len(data), _SLOT)]
    facts, records = segment.decode(journal, slots)
    seen_ns = cut_ns or max((max(each.issued_ns, each.ended_ns) for each in records), default=0)
    process = segment.Process(0, "0 (x) X", seen_ns, False, facts, records)
    ranks = [rank for job in jobs.assemble([process]) for rank in job.ranks.values()]
    if not ranks:
        raise ValueError("the file names no job")
    # Its rank may have changed: the one with which it did most, in all contexts where it had that
    main = max(ranks, key=lambda rank: len(rank.records))
    contexts = [each.context for each in ranks if each.rank == main.rank]
    return replace(main, groups=jobs.groups_in(facts, *contexts)).dump("cut" if cut_ns else "history")


def _blocks(file: Path) -> Iterator[tuple[int, bytes]]:
    """A block that was cut off, by a full disk or a kill, ends the file."""
    data = file.read_bytes()
    at = 0
    while at + _BLOCK.size <= len(data):
        magic, size, kind = _BLOCK.unpack_from(data, at)
        if magic != _MAGIC:
            raise ValueError("the file is not a history")
        packed = data[at + _BLOCK.size : at + _BLOCK.size + size]
        if len(packed) < size:
            return
        try:
            yield kind, zlib.decompress(packed)
        except zlib.error as error:
            raise ValueError(f"the file is damaged: {error}") from None
        at += _BLOCK.size + size


def _joined(earlier: str, later: str) -> str:
    """The facts of both: what was removed meanwhile was true before."""
    return earlier + "".join(line + "\n" for line in later.split("\n") if line and not line.endswith("\t"))
