"""The supervisor, without a group of its own: starts the ranks, decides who is in a generation, judges."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch.distributed as dist
from torch_ucc._native import leftovers
from torch_ucc.testing import stacks
from torch_ucc.testing.hosts import Hosts, continued

from chaos import leaks, model, rank
from chaos.schedule import KINDS, Plan, Schedule

SLACK_S = 60.0
"""A rank that takes so much longer than the group's timeout allows hangs."""

COLUMNS = ("hangs", "wrong results", "errors without cause", "processes", "segments", "descriptors")


@dataclass
class Totals:
    happened: Counter[str] = field(default_factory=Counter)
    survived: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)  # by type
    problems: dict[str, list[str]] = field(default_factory=lambda: {column: [] for column in COLUMNS})
    generations: int = 0
    steps: int = 0
    slowest: float = 0.0  # seconds from an error until the rank had closed

    def count(self) -> int:
        return sum(map(len, self.problems.values()))


@dataclass
class Member:
    name: str
    process: BaseProcess
    held: list[leaks.Held] = field(default_factory=list)

    @property
    def pid(self) -> int:
        assert self.process.pid is not None, "started"
        return continued(self.process.pid)


class Campaign:
    def __init__(
        self, seed: int, ranks: int, timeout: float, folder: Path, hosts: Hosts | None = None
    ) -> None:
        self.totals = Totals()
        self._ranks, self._timeout, self._folder, self._hosts = ranks, timeout, folder, hosts
        self._schedule = Schedule(seed, ranks)
        self._trajectory = model.Trajectory()
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(
            ["torch", "torch.distributed", "torch._dynamo", "chaos.rank", "torch_ucc.testing.freeze"]
        )
        self._store = (
            hosts.store()
            if hosts
            else dist.TCPStore(  # type: ignore[attr-defined]  # public, but its stubs do not export it
                "127.0.0.1", 0, is_master=True, wait_for_workers=False
            )
        )
        self._alive: dict[str, Member] = {}
        self._ever: list[Member] = []
        self._shared_memory = leaks.shared_memory()

    def run(self, over: Callable[[], bool], progress: Callable[[Plan, list[str]], None]) -> None:
        """Generations until `over`, then one without faults."""
        try:
            while not over():
                fresh = [f"p{len(self._ever) + i}" for i in range(self._ranks - len(self._alive))]
                plan = self._schedule.next(list(self._alive), fresh)
                progress(plan, self._generation(plan))
            fresh = [f"p{len(self._ever) + i}" for i in range(self._ranks - len(self._alive))]
            self._generation(Plan(5, [], [*self._alive, *fresh], last=True))
            self._end()
        finally:
            for member in self._ever:
                if member.process.exitcode is None:
                    stacks.kill([member.pid])
                    member.process.join()

    def _generation(self, plan: Plan) -> list[str]:
        """The errors that its ranks met."""
        before = self.totals.count()
        number = self.totals.generations
        self.totals.generations += 1
        for name in plan.members:
            if name not in self._alive:
                self._start(name, number)
        for name in plan.members:  # so that nobody waits for an interpreter to start
            self._store.wait([rank.ready_key(name)], timedelta(seconds=SLACK_S))
        told = json.dumps({**asdict(plan), "timeout": self._timeout})
        self._store.set(rank.plan_key(number), told)
        reports = self._reports(number, plan)
        for name, report in reports.items():
            self._judge(name, report, plan)
        if reports:
            self.totals.steps = max(report.step for report in reports.values())
        fine = self.totals.count() == before
        for kind in {order.kind for order in plan.orders}:
            self.totals.happened[kind] += 1
            self.totals.survived[kind] += fine
        if not fine:
            self._explain(number, plan, reports)
        return [f"{name}: {report.error}" for name, report in reports.items() if report.error]

    def _start(self, name: str, generation: int) -> None:
        address = (self._hosts.switch if self._hosts else "127.0.0.1", self._store.port)
        host = self._hosts.pid(len(self._ever) % len(self._hosts)) if self._hosts else None
        process = self._context.Process(
            target=rank.main, args=(name, address, generation, self._folder, host), name=name
        )
        process.start()
        self._alive[name] = Member(name, process)
        self._ever.append(self._alive[name])

    def _reports(self, number: int, plan: Plan) -> dict[str, rank.Report]:
        """Of those that are to survive, once the others have ended. `_alive` is then right again."""
        deadline = time.monotonic() + 3 * self._timeout + SLACK_S
        ends = {name: plan.ends(each) for each, name in enumerate(plan.members)}
        stops = [(plan.members[order.victim], order) for order in plan.orders if "stopped" in order.kind]
        lengths = {name: order.length for name, order in stops if KINDS[order.kind].harmless}
        for_good = {name for name, order in stops if not KINDS[order.kind].harmless}
        wake_at: dict[str, float] = {}
        reports: dict[str, rank.Report] = {}
        waiting = set(plan.members)
        while waiting:
            for name in sorted(waiting):
                status = self._alive[name].process.exitcode
                key = rank.report_key(number, name)
                if self._store.check([key]):
                    reports[name] = rank.Report.decode(self._store.get(key).decode())
                    waiting.remove(name)
                elif status is not None:
                    waiting.remove(name)
                    del self._alive[name]
                    if status != ends[name]:
                        self._problem("wrong results", f"{name} ended with status {status}, not {ends[name]}")
                elif name in lengths and name not in for_good and _stopped(self._alive[name].pid):
                    at = wake_at.setdefault(name, time.monotonic() + lengths[name])
                    if time.monotonic() >= at:
                        stacks.kill([self._alive[name].pid], signal.SIGCONT)
                        del wake_at[name]  # it may be stopped again
            if waiting and waiting <= for_good:
                stacks.kill([self._alive[name].pid for name in waiting])
            if waiting and time.monotonic() >= deadline:
                self._hang(number, sorted(waiting))
                return reports
            time.sleep(0.01)
        return reports

    def _judge(self, name: str, report: rank.Report, plan: Plan) -> None:
        self._alive[name].held.append(report.held)
        self.totals.slowest = max(self.totals.slowest, report.seconds)
        for wrong in report.wrong:
            self._problem("wrong results", wrong)
        if report.digest != self._trajectory.digest(report.step):
            self._problem("wrong results", f"parameters of {name} after {report.step} steps")
        if report.error:
            self.totals.errors[report.error.partition(":")[0]] += 1
            if plan.harmless():
                self._problem("errors without cause", f"{name}: {report.error}")

    def _hang(self, number: int, names: list[str]) -> None:
        stuck = {self._alive[name].pid: name for name in names}
        python = stacks.python_stacks({pid: self._folder / f"{name}.stacks" for pid, name in stuck.items()})
        native = stacks.native_stacks(stuck)
        for pid, name in stuck.items():
            self._problem("hangs", f"{name} has not left generation {number}")
            print(f"{python[pid]}\n{native[pid]}", flush=True)
            stacks.kill([pid])
            self._alive.pop(name).process.join()

    def _end(self) -> None:
        deadline = time.monotonic() + SLACK_S
        for member in self._alive.values():
            member.process.join(max(0.0, deadline - time.monotonic()))
            if member.process.exitcode != 0:
                self._problem("processes", f"{member.name} ended with {member.process.exitcode} at last")
        for member in self._ever:
            if member.held and (problem := leaks.grown(member.held)):
                self._problem("descriptors", f"{member.name}: {problem}")
        leftovers.remove(min_age=0.0)  # as the next start does a minute later
        left = leaks.abandoned(leaks.shared_memory() - self._shared_memory)
        for each in [*left, *leaks.segments([member.pid for member in self._ever])]:
            self._problem("segments", each)

    def _problem(self, column: str, what: str) -> None:
        print(f"{column}: {what}", flush=True)
        self.totals.problems[column].append(what)

    def _explain(self, number: int, plan: Plan, reports: dict[str, rank.Report]) -> None:
        print(f"generation {number}: {plan}")
        for name in plan.members:
            print(f"  {name}: {reports.get(name, 'no report')}")
            output = self._folder / f"{name}.output"
            for line in output.read_text(errors="replace").splitlines()[-30:] if output.exists() else ():
                print(f"  [{name}] {line}", flush=True)


def _stopped(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    return False
