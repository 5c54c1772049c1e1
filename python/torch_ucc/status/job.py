"""The ranks of a job, from what its processes recorded on this host and what other hosts answer."""

from __future__ import annotations

import struct
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch_ucc.status import doors, network, segment
from torch_ucc.status.segment import Process
from torch_ucc.tracing.records import Dump, Group, Record, groups_of

NAME = 8
"""Characters of a world that name the job."""

_STATES = {"R": "runs", "S": "sleeps", "D": "waits for a device", "T": "is stopped", "t": "is being debugged"}


@dataclass
class Rank:
    """One rank of a job."""

    rank: int
    pid: int
    host: str
    process: Process
    context: int
    groups: dict[int, Group]
    """Of this job, by number. Several with one name are told apart as in tracing.records."""
    state: str
    """The letter of /proc."""
    cpu: float | None = None
    """Cores used between two looks; None on other hosts."""

    @property
    def now_ns(self) -> int:
        return self.process.seen_ns

    @cached_property
    def records(self) -> list[Record]:
        return [each for each in self.process.records if each.group in self.groups]

    @cached_property
    def open(self) -> list[Record]:
        """Operations that have not ended, of groups that are open."""
        return [each for each in self.records if not each.over and not self.groups[each.group].closed]

    @cached_property
    def open_elsewhere(self) -> list[tuple[Record, str]]:
        """The same of groups of other jobs that this process is a member of, with their names."""
        names = {each["number"]: each["name"] for each in self.process.under("group/") if not each["closed"]}
        return [
            (each, names[each.group])
            for each in self.process.records
            if not each.over and each.group not in self.groups and each.group in names
        ]

    @cached_property
    def last_collectives(self) -> dict[str, int]:
        """By group: the seq of the last collective that it called, if the ring still holds one."""
        last: dict[str, int] = {}
        for each in self.records:
            if each.collective:
                name = self.groups[each.group].name
                last[name] = max(each.seq, last.get(name, 0))
        return last

    @property
    def has_all(self) -> bool:
        """Whether the ring still holds all that this process ever recorded."""
        return max((each.id for each in self.process.records), default=0) <= segment.CAPACITY

    def doing(self) -> str:
        """Of the process as a whole."""
        cpu = "" if self.cpu is None else f", using {self.cpu:.0%} of a core"
        return _STATES.get(self.state, f"is in state {self.state}") + cpu

    def dump(self, reason: str = "status") -> Dump:
        process = self.process.facts.get("process", {})
        sites = {
            int(key.partition("/")[2]): text for key, text in self.process.facts.items() if key[:5] == "site/"
        }
        return Dump(
            rank=self.rank,
            reason=reason,
            pid=self.pid,
            host=self.host,
            boot_id=process.get("boot_id", self.host),
            steady_ns=self.now_ns,
            wall_ns=process.get("wall_minus_steady_ns", 0) + self.now_ns,
            last_id=0,
            groups=self.groups,
            sites=sites,
            records=self.records,
        )


@dataclass
class Job:
    world: str
    size: int
    hosts: dict[str, list[int]]
    ranks: dict[int, Rank] = field(default_factory=dict)
    gone: dict[int, str] = field(default_factory=dict)
    """Ranks that have ended, and what the others know of it."""
    silent: dict[str, str] = field(default_factory=dict)
    """Hosts that gave no answer, and why."""
    connections: dict[str, list[network.Connection]] = field(default_factory=dict)
    """By host: those over TCP to other hosts, if there are several."""

    @property
    def name(self) -> str:
        return self.world[:NAME]

    def is_called(self, name: str) -> bool:
        return name in {self.name, self.program(), *(str(rank.pid) for rank in self.ranks.values())}

    def program(self) -> str:
        facts = (each.process.facts.get("process") for each in self.ranks.values())
        return next((str(fact["program"]) for fact in facts if fact), "")

    def ways_in(self) -> Iterator[doors.Door]:
        """Where ranks can be asked what their hosts do, as far as that is known. Some come twice."""
        for rank in self.ranks.values():
            for context in rank.process.under("context/"):
                if context["world"] == self.world:
                    for each in context["doors"]:
                        if each["rank"] not in self.gone:
                            yield doors.Door(**each)

    def unseen(self) -> list[int]:
        """Ranks of which nothing is known.

        They are on hosts that were not asked or gave no answer, they have not created a group yet or have
        closed it, or they belong to another user or container.
        """
        return [
            rank
            for ranks in self.hosts.values()
            for rank in ranks
            if rank not in self.ranks and rank not in self.gone
        ]


def jobs(recent: int = 64, ask_others: bool = True, sample_s: float = 0.1) -> list[Job]:
    """Those with a process on this host. A process that cannot be read is left out, with a warning."""
    found = assemble(_here(recent))
    for job in found:
        if ask_others:
            _ask_others(job, recent)
    _measure(found, sample_s)
    return found


def _here(recent: int) -> Iterator[Process]:
    for pid, path in segment.processes():
        try:
            if process := segment.read(pid, path, recent):
                yield process
        except (segment.UnreadableError, ValueError, LookupError, struct.error) as error:
            print(f"torch-ucc: process {pid} is left out: {error}", file=sys.stderr)


def assemble(processes: Iterable[Process]) -> list[Job]:
    """The jobs of these processes: those that are in one world are one job."""
    found: dict[str, Job] = {}
    for process in processes:
        for context in process.under("context/"):
            add(found, process, context)
    return list(found.values())


def add(found: dict[str, Job], process: Process, context: dict[str, Any]) -> None:
    world = context["world"]
    job = found.get(world)
    if job is None:
        job = found[world] = Job(world, context["size"], _hosts(context["hosts"]))
    host = list(job.hosts)[context["host"]]
    groups = groups_in(process.facts, context["number"])
    job.ranks[context["rank"]] = Rank(
        context["rank"], process.pid, host, process, context["number"], groups, process.state
    )
    for each in process.under(f"gone/context/{context['number']}/"):
        job.gone.setdefault(each["rank"], each["what"])


def groups_in(facts: Mapping[str, Any], *contexts: int) -> dict[int, Group]:
    """The groups of these contexts, by number."""
    rows = [
        {**fact, "ranks": tuple(runs(fact["ranks"]))}
        for key, fact in facts.items()
        if key.startswith("group/") and fact["context"] in contexts
    ]
    return groups_of(sorted(rows, key=lambda each: each["number"]))


def _hosts(rows: Sequence[dict[str, Any]]) -> dict[str, list[int]]:
    """By name; of several hosts with one name, the later ones are called `name (2)`."""
    hosts: dict[str, list[int]] = {}
    for row in rows:
        name, times = row["name"], 1
        while name in hosts:
            times += 1
            name = f"{row['name']} ({times})"
        hosts[name] = list(runs(row["ranks"]))
    return hosts


def runs(text: str) -> Iterator[int]:
    """`0-7,16` and `0-14:2` as numbers."""
    for part in filter(None, text.split(",")):
        span, _, step = part.partition(":")
        first, _, last = span.partition("-")
        yield from range(int(first), int(last or first) + 1, int(step or 1))


def shown(ranks: Iterable[int]) -> str:
    """Numbers as `0-7,16`."""
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and rank == parts[-1][-1] + 1:
            parts[-1].append(rank)
        else:
            parts.append([rank])
    return ",".join(str(each[0]) if len(each) == 1 else f"{each[0]}-{each[-1]}" for each in parts)


def _ask_others(job: Job, recent: int) -> None:
    """Goes from host to host: each host that answers knows the doors of a few further ones."""
    names = list(job.hosts)
    seen = {names.index(each.host) for each in job.ranks.values()}
    if len(names) > 1:
        job.connections = {names[host]: network.here() for host in seen}
    tried: set[doors.Door] = set()
    failed: dict[int, str] = {}
    while waiting := _doors(job, seen, tried):
        tried.update(door for each in waiting.values() for door in each)
        answers = doors.ask(waiting, doors.Question.REPORT, recent)
        for host, answer in answers.items():
            if isinstance(answer, str):
                failed[host] = answer
                continue
            seen.add(host)
            job.connections[names[host]] = network.from_report(answer)
            now: dict[str, Job] = {job.world: job}
            for process in segment.from_report(answer):
                for context in process.under("context/"):
                    if context["world"] == job.world:
                        add(now, process, context)
    job.silent = {names[host]: why for host, why in failed.items() if host not in seen}


def _doors(job: Job, seen: set[int], tried: set[doors.Door]) -> dict[int, list[doors.Door]]:
    """Those that were not tried, of hosts that have not answered, by number of the host."""
    found: dict[int, list[doors.Door]] = defaultdict(list)
    for door in dict.fromkeys(job.ways_in()):
        if door.host not in seen and door not in tried and len(found[door.host]) < doors.AT_ONCE:
            found[door.host].append(door)
    return {host: each for host, each in found.items() if each}


def _measure(found: Sequence[Job], sample_s: float) -> None:
    """Fills in how much of a core each process of this host uses."""

    ranks = [rank for job in found for rank in job.ranks.values() if rank.process.here]
    before = {rank.pid: segment.seconds_used(rank.pid) for rank in ranks}
    began = time.monotonic()
    time.sleep(sample_s)
    for rank in ranks:
        first, second = before[rank.pid], segment.seconds_used(rank.pid)
        if first is not None and second is not None:
            rank.cpu = (second - first) / (time.monotonic() - began)
