"""One process of the training: a rank of one generation after the other."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch_ucc.testing import hosts, stacks

from chaos import leaks, model, operations
from chaos.schedule import KINDS, Order, Plan

STATES = 3
"""Ranks that fail in the same generation differ by one step at most."""

FOREVER = timedelta(hours=24)
PR_SET_PDEATHSIG = 1


@dataclass
class Report:
    """What a rank has to say once it has left a generation."""

    step: int  # of which its parameters are
    digest: str
    seconds: float  # from the error to here
    held: leaks.Held
    error: str | None = None  # that ended the generation
    wrong: list[str] = field(default_factory=list)

    @staticmethod
    def decode(text: str) -> Report:
        values = json.loads(text)
        return Report(**{**values, "held": leaks.Held(**values["held"])})


class CameBackError(Exception):
    """This rank has left the generation of its own accord."""


def plan_key(generation: int) -> str:
    return f"plan {generation}"


def report_key(generation: int, name: str) -> str:
    return f"report {generation} {name}"


def ready_key(name: str) -> str:
    return f"ready {name}"


def main(name: str, store_at: tuple[str, int], first: int, folder: Path, host: int | None) -> None:
    """The whole life of the process, from the first generation that it may be in. `host`: a process of the
    simulated host that it is to be on."""
    if host is not None:
        hosts.continue_at(host)
    output = os.open(folder / f"{name}.output", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    stacks.register(folder / f"{name}.stacks")
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FutureWarning)  # newer torch has other names for some operations
    status = 0
    try:
        store = dist.TCPStore(  # type: ignore[attr-defined]  # public, but its stubs do not export it
            *store_at, is_master=False, timeout=FOREVER
        )
        _live(name, store, first)
    except SystemExit as end:
        status = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.pythonapi.Py_Exit(status)  # with exit handlers and destructors, as at the end of a program


def _live(name: str, store: Any, generation: int) -> None:
    states: dict[int, torch.Tensor] = {}
    failures = 0
    store.set(ready_key(name), "")
    while True:
        values = json.loads(store.get(plan_key(generation)))
        plan = Plan(**{**values, "orders": [Order(**each) for each in values["orders"]]})
        if name in plan.members:
            failures += not plan.harmless()
            report = Generation(generation, name, plan, store, states).run(failures)
            store.set(report_key(generation, name), json.dumps(asdict(report)))
        if plan.last:
            return
        generation += 1


class Generation:
    """A rank's part in one. `states` are its parameters by step, the last few; they outlive it."""

    def __init__(
        self, number: int, name: str, plan: Plan, store: Any, states: dict[int, torch.Tensor]
    ) -> None:
        self._number = number
        self._rank = plan.members.index(name)
        self._size = len(plan.members)
        self._plan = plan
        self._store = dist.PrefixStore(f"generation {number}", store)  # type: ignore[attr-defined]  # as above
        self._states = states
        self._orders = plan.of(self._rank)
        self._timeout = timedelta(seconds=plan.timeout)
        self._wrong: list[str] = []
        self._timers: list[threading.Timer] = []
        self._others: dist.ProcessGroup | None = None
        # Before it can fail, so that nobody waits for it in vain.
        self._store.set(f"states of {self._rank}", json.dumps(sorted(states)))

    def run(self, failures: int) -> Report:
        error = None
        try:
            self._train()
        except CameBackError:
            pass
        except dist.DistError as caught:
            error = f"{type(caught).__name__}: {caught}"
        self._others_go_on()
        began = time.monotonic()
        for order in self._orders[:]:
            if KINDS[order.kind].when == "destroy" or KINDS[order.kind].status is not None:
                self._strike(order)  # its moment is now, or did not come
        if dist.is_initialized():
            aborts = error and (self._number + self._rank) % 4 == 0
            (dist.distributed_c10d._abort_process_group if aborts else dist.destroy_process_group)()
        dist.distributed_c10d._world.group_count = 0  # torch names groups by it, and counts a failed start
        seconds = time.monotonic() - began
        if self._plan.ends(self._rank):
            time.sleep(FOREVER.total_seconds())
        for timer in self._timers:
            timer.join()  # who is to be stopped and woken has been, before the next generation
        step = max(self._states, default=0)
        digest = model.digest(self._states.get(step, model.initial()))
        return Report(step, digest, seconds, leaks.held(failures), error, self._wrong)

    def _train(self) -> None:
        self._moment("init", 0)
        dist.init_process_group(
            "ucc", store=self._store, rank=self._rank, world_size=self._size, timeout=self._timeout
        )
        start = self._agree()
        if others := self._plan.others():
            self._others = dist.new_group(others, timeout=self._timeout)
            dist.barrier()  # nobody dies before all have it
        for index in range(self._plan.steps):
            self._step(start + index, index)

    def _others_go_on(self) -> None:
        """A group without those that ended is as good as before."""
        others = self._plan.others()
        if self._others is None or self._rank not in others:
            return
        tensor = torch.full((1000,), float(self._rank))
        try:
            dist.all_reduce(tensor, group=self._others)
        except dist.DistError as caught:
            self._wrong.append(f"group of {others}, without the dead, on rank {self._rank}: {caught}")
        else:
            if not torch.equal(tensor, torch.full((1000,), float(sum(others)))):
                self._wrong.append(f"all_reduce of {others}, without the dead, on rank {self._rank}")

    def _agree(self) -> int:
        """On the last step whose state all have that have any; those that have none are sent it."""
        keys = [f"states of {rank}" for rank in range(self._size)]
        self._store.wait(keys, self._timeout)
        held = [set(json.loads(self._store.get(key))) for key in keys]
        have = [rank for rank, steps in enumerate(held) if steps]
        step = max(set.intersection(*(held[rank] for rank in have))) if have else 0
        mine = self._states.get(step)
        parameters = model.initial() if mine is None else mine.clone()
        dist.broadcast(parameters, have[0] if have else 0)
        if mine is not None and not torch.equal(mine, parameters):
            self._wrong.append(f"state of step {step} on rank {self._rank}")
        for late in [each for each in self._states if each > step]:
            del self._states[late]
        self._states[step] = parameters
        return step

    def _step(self, step: int, index: int) -> None:
        parameters = self._states[step]
        total = model.gradient(parameters, step, range(self._rank, model.SHARDS, self._size))
        works = [dist.all_reduce(part, async_op=True) for part in total.tensor_split(2)]
        self._moment("step", index)
        ordered = (KINDS[each.kind].operation for each in self._plan.orders if each.step == index)
        if wrong := operations.run(step, self._timeout, next(filter(None, ordered), None)):
            self._wrong.append(wrong)
        for work in works:
            work.wait()
        self._states[step + 1] = model.updated(parameters, total)
        self._states.pop(step + 1 - STATES, None)

    def _moment(self, when: str, index: int) -> None:
        for order in [order for order in self._orders if KINDS[order.kind].when == when]:
            if order.step == index or when == "init":
                self._strike(order)

    def _strike(self, order: Order) -> None:
        self._orders.remove(order)
        if order.kind == "slow":
            time.sleep(order.length)
        elif order.kind == "exited":
            sys.exit(KINDS[order.kind].status)
        elif order.kind == "left at once":
            os._exit(KINDS[order.kind].status or 0)
        elif order.kind == "raised":
            raise RuntimeError("as ordered")
        elif order.kind == "aborted and came back":
            dist.distributed_c10d._abort_process_group()
            raise CameBackError
        elif order.kind == "destroyed and came back":
            dist.destroy_process_group()
            raise CameBackError
        else:  # by a thread, while this one goes on
            which = signal.SIGSTOP if order.kind.startswith("stopped") else signal.SIGKILL
            timer = threading.Timer(order.delay, os.kill, (os.getpid(), which))
            timer.daemon = True
            timer.start()
            self._timers.append(timer)
