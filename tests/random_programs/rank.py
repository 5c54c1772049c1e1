"""One rank that runs programs, and holds each against what it should leave behind."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch_ucc._torch import all_gather_single, reduce_scatter_single

from random_programs.program import BASES, DTYPES, Draw, Program, Step
from random_programs.reference import MINE, Reference, limited, split, value

LIMIT = timedelta(seconds=60)
SOON = timedelta(seconds=1)
CPU = torch.device("cpu")
REFUSALS = (ValueError, TypeError, NotImplementedError, RuntimeError)


class DifferenceError(Exception):
    """Something is not as the reference has it."""


@dataclass
class Flying:
    work: Any
    step: Step
    keep: list[torch.Tensor] = field(default_factory=list)


def reduce_op(name: str) -> Any:
    return getattr(dist.ReduceOp, name)


class Player:
    """One thread of a program, on one rank."""

    def __init__(self, program: Program, number: int, key: str, groups: list[Any]) -> None:
        self.program, self.key, self.groups = program, f"{key}/{number}", groups
        self.rank = dist.get_rank()
        self.reference = Reference(program, number)
        dtype = DTYPES[program.dtype]
        self.bases = [value(self.rank, base, number, program.base_numel, dtype) for base in range(BASES)]
        self.flying: list[Flying] = []
        self.draw = random.Random(f"{key} {number} {self.rank}")
        self.store = dist.distributed_c10d._get_default_store()
        self.steps = program.threads[number].steps
        self.at = -1

    def play(self) -> None:
        for at, step in enumerate(self.steps):
            self.at = at
            if step.op in ("wait", "fill", "limit"):
                self.local(step)
            elif self.rank in self.program.groups[step.group]:
                self.call(step)
            self.reference.step(step)
            if step.op == "wait":
                self.compare(set(range(BASES)))
            elif not step.is_async and self.rank in self.program.groups[step.group]:
                self.compare(step.bases)
        self.compare(set(range(BASES)))

    def local(self, step: Step) -> None:
        if step.op == "wait":
            self.draw.shuffle(self.flying)
            for each in self.flying:
                if hasattr(each.work, "is_completed") and self.draw.random() < 0.1:
                    while not each.work.is_completed():
                        time.sleep(0.0001)
                each.work.wait()
            self.flying = []
            return
        index = step.views[0].base
        base = self.bases[index]
        base.copy_(
            limited(base)
            if step.op == "limit"
            else value(self.rank, index, step.tag, base.numel(), base.dtype)
        )

    def compare(self, bases: set[int]) -> None:
        for index in bases - {base for each in self.flying for base in each.step.bases}:
            got, expected = self.bases[index], self.reference.bases[self.rank][index]
            if not torch.equal(got, expected):
                wrong = (got != expected).nonzero().flatten()
                at = wrong[:4].tolist()
                raise DifferenceError(
                    f"base {index}: {len(wrong)} of {got.numel()} elements differ, at {at} there is "
                    f"{got[at].tolist()}, expected {expected[at].tolist()}"
                )

    def call(self, step: Step) -> None:
        group, members = self.groups[step.group], self.program.groups[step.group]
        if step.op == "late":
            return self.late(step, group, members)
        if step.op.startswith("refused"):
            return self.refused(step, group)
        tensors = [view.of(self.bases) for view in step.views]
        makers: dict[str, Callable[..., Any]] = {
            name: getattr(self, name) for name in dir(self) if name.startswith("do_")
        }
        works = makers["do_" + step.op](step, tensors, group, members)
        if step.is_async:
            some = works if isinstance(works, list) else [works]
            self.flying += [Flying(work, step, tensors) for work in some if work is not None]
        return None

    def do_all_reduce(self, step: Step, tensors: list[torch.Tensor], group: Any, members: Any) -> Any:
        return dist.all_reduce(tensors[0], reduce_op(step.reduce), group, step.is_async)

    def do_reduce(self, step: Step, tensors: list[torch.Tensor], group: Any, members: Any) -> Any:
        return dist.reduce(tensors[0], members[step.root], reduce_op(step.reduce), group, step.is_async)

    def do_broadcast(self, step: Step, tensors: list[torch.Tensor], group: Any, members: Any) -> Any:
        return dist.broadcast(tensors[0], members[step.root], group, step.is_async)

    def do_all_gather(self, step: Step, tensors: list[torch.Tensor], group: Any, members: Any) -> Any:
        return dist.all_gather(tensors[:-1], tensors[-1], group, step.is_async)

    def do_all_gather_into_tensor(
        self, step: Step, tensors: list[torch.Tensor], group: Any, members: Any
    ) -> Any:
        return all_gather_single(tensors[0], tensors[1], group, step.is_async)

    def do_gather(self, step: Step, tensors: list[torch.Tensor], group: Any, members: Any) -> Any:
        outputs = tensors[:-1] if members[step.root] == self.rank else None
        return dist.gather(tensors[-1], outputs, members[step.root], group, step.is_async)

    def do_scatter(self, step: Step, tensors: list[torch.Tensor], group: Any, members: Any) -> Any:
        sources = tensors[1:] if members[step.root] == self.rank else None
        return dist.scatter(tensors[0], sources, members[step.root], group, step.is_async)

    def do_reduce_scatter(self, step: Step, tensors: list[torch.Tensor], group: Any, members: Any) -> Any:
        return dist.reduce_scatter(tensors[0], tensors[1:], reduce_op(step.reduce), group, step.is_async)

    def do_reduce_scatter_tensor(
        self, step: Step, tensors: list[torch.Tensor], group: Any, members: Any
    ) -> Any:
        return reduce_scatter_single(tensors[0], tensors[1], reduce_op(step.reduce), group, step.is_async)

    def do_all_to_all(self, step: Step, tensors: list[torch.Tensor], group: Any, members: Any) -> Any:
        half = len(tensors) // 2
        return dist.all_to_all(tensors[:half], tensors[half:], group, step.is_async)

    def do_all_to_all_single(self, step: Step, tensors: list[torch.Tensor], group: Any, members: Any) -> Any:
        return dist.all_to_all_single(tensors[0], tensors[1], group=group, async_op=step.is_async)

    def do_uneven(self, step: Step, tensors: list[torch.Tensor], group: Any, members: Any) -> Any:
        size, me = len(members), members.index(self.rank)
        numel = step.views[1].numel
        sends = [split(numel, me, to, size) for to in range(size)]
        receives = [split(numel, sender, me, size) for sender in range(size)]
        output, source = tensors[0][: sum(receives)], tensors[1][: sum(sends)]
        return dist.all_to_all_single(output, source, receives, sends, group, step.is_async)

    def do_barrier(self, step: Step, tensors: list[torch.Tensor], group: Any, members: Any) -> Any:
        work = dist.barrier(group, step.is_async)
        if not step.is_async and not any(each.step.op in ("message", "ring") for each in self.flying):
            here = [each for each in self.flying if each.step.group == step.group]
            waiting = self.flying
            self.flying = [each for each in waiting if each not in here]
            self.compare({base for each in here for base in each.step.bases})
            self.flying = waiting
        return work

    def do_message(self, step: Step, tensors: list[torch.Tensor], group: Any, members: Any) -> Any:
        sender, receiver = members[step.root], members[step.peer]
        if self.rank == sender:
            if step.is_async:
                return dist.isend(tensors[1], receiver, group, step.tag)
            dist.send(tensors[1], receiver, group, step.tag)
        elif self.rank == receiver:
            source = None if step.how else sender
            if step.is_async:
                return dist.irecv(tensors[0], source, group, step.tag)
            dist.recv(tensors[0], source, group, step.tag)
        return None

    def do_ring(self, step: Step, tensors: list[torch.Tensor], group: Any, members: Any) -> Any:
        me, size = members.index(self.rank), len(members)
        calls = [
            dist.P2POp(dist.isend, tensors[1], members[(me + 1) % size], group, step.tag),
            dist.P2POp(dist.irecv, tensors[0], members[me - 1], group, step.tag),
        ]
        self.draw.shuffle(calls)
        works = dist.batch_isend_irecv(calls)
        if not step.is_async:
            for work in works:
                work.wait()
        return works

    def do_together(self, step: Step, tensors: list[torch.Tensor], group: Any, members: Any) -> Any:
        return dist.all_reduce_coalesced(tensors, reduce_op(step.reduce), group, step.is_async)

    def do_coalesced(self, step: Step, tensors: list[torch.Tensor], group: Any, members: Any) -> Any:
        with dist._coalescing_manager(group, async_ops=step.is_async) as batch:
            for tensor in tensors:
                dist.all_reduce(tensor, reduce_op(step.reduce), group)
        return batch if step.is_async else None

    def do_mixed(self, step: Step, tensors: list[torch.Tensor], group: Any, members: Any) -> Any:
        with dist._coalescing_manager(group, CPU, async_ops=step.is_async) as batch:
            for tensor in tensors:
                dist.all_reduce(tensor, reduce_op(step.reduce), group, async_op=step.is_async)
        return batch if step.is_async else None

    def refused(self, step: Step, group: Any) -> None:
        (tensor,) = (view.of(self.bases) for view in step.views)
        kind = step.how

        def call() -> None:
            if kind == "sizes":
                all_gather_single(torch.ones(tensor.numel() * 5 + 1, dtype=tensor.dtype), tensor, group)
            elif kind == "negative":
                dist.all_reduce(torch.ones(tensor.numel(), dtype=torch.complex64).conj().imag, group=group)
            else:
                flat = torch.ones(4, dtype=tensor.dtype)
                dist.all_to_all_single(
                    flat,
                    flat.clone(),
                    [9] * dist.get_world_size(group),
                    [1] * dist.get_world_size(group),
                    group,
                )

        try:
            if step.op == "refused":
                call()
            else:
                with dist._coalescing_manager(group, CPU):
                    dist.all_reduce(tensor, group=group)
                    call()
        except dist.DistBackendError as error:
            raise DifferenceError(f"refused with {error}") from error
        except REFUSALS:
            return
        raise DifferenceError("what is wrong was not refused")

    def late(self, step: Step, group: Any, members: tuple[int, ...]) -> None:
        """All but one call, and get the error of their timeout. Then the last one calls."""
        op, then = step.how.split()
        me, late, view = members.index(self.rank), step.peer, step.views[0]
        key = f"{self.key}/{self.at}"
        if me == late:
            while self.store.add(key, 0) < len(members) - 1:
                time.sleep(0.01)
            with contextlib.suppress(dist.DistBackendError):
                self.once(op, group, members, late, view.of(self.bases))
            self.bases[view.base] = torch.full_like(self.bases[view.base], MINE)
            return
        try:
            self.once(op, group, members, late, view.of(self.bases))
        except dist.DistBackendError:
            pass
        else:
            if op != "message":
                raise DifferenceError(f"{op} succeeded without rank {members[late]}")
        base = self.bases[view.base]
        if then == "freed":
            base.untyped_storage().resize_(0)
            self.bases[view.base] = torch.full((base.numel(),), MINE).to(base.dtype)
        else:
            base.fill_(MINE)
        self.store.add(key, 1)

    def once(self, op: str, group: Any, members: tuple[int, ...], late: int, tensor: torch.Tensor) -> None:
        me = members.index(self.rank)
        if op == "all_reduce":
            dist.all_reduce(tensor, group=group)
        elif op == "broadcast":
            dist.broadcast(tensor, members[late], group)
        elif op == "reduce_scatter_tensor":
            size = len(members)
            reduce_scatter_single(tensor, tensor.reshape(-1).repeat(size), group=group)
        elif me == late:
            dist.send(tensor, members[late - 1], group)
        elif me == (late - 1) % len(members):
            dist.recv(tensor, members[late], group)


def play(program: Program, key: str) -> str:
    """What differs from the reference, on this rank; empty if nothing does."""
    rank = dist.get_rank()
    groups = [
        dist.new_group(list(ranks), timeout=SOON if number in program.short else LIMIT)
        for number, ranks in enumerate(program.groups)
    ]
    found: list[str] = []

    def one(number: int) -> None:
        player = Player(program, number, key, groups)
        try:
            player.play()
        except BaseException as error:
            step = player.steps[player.at] if player.at >= 0 else None
            lines = traceback.format_exc().splitlines()
            text = str(error) if isinstance(error, DifferenceError) else "\n".join(lines[-8:])
            found.append(f"rank {rank}, thread {number}, step {player.at} ({step}): {text}")

    threads = [threading.Thread(target=one, args=(number,)) for number in range(len(program.threads))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if not found:
        for number, ranks in enumerate(program.groups):
            if rank in ranks:
                dist.destroy_process_group(groups[number])
    return "\n".join(found)


def draw(seed: int, number: int, ranks: int, plain: bool) -> Program:
    return Draw(f"{seed} {number}", ranks, plain=plain).program()


def report(folder: str, number: int, found: str = "", is_ending: bool = False) -> None:
    """What this rank runs, for `last_of` in __main__, and what it found."""
    about = {"number": number, "is_ending": is_ending, "found": found, "at": time.time()}
    (Path(folder) / f"rank{os.environ['RANK']}.json").write_text(json.dumps(about))


def run(seed: int, first: int, seconds: float, most: int, plain: bool, folder: str) -> tuple[int, bool]:
    """Programs from the number `first` on; how many were run, and whether the last was right, too."""
    rank, store, began = dist.get_rank(), dist.distributed_c10d._get_default_store(), time.monotonic()
    size = dist.get_world_size()
    faulthandler.dump_traceback_later(seconds + 150, file=sys.stderr)
    for count in range(most):
        if rank == 0:
            go_on = time.monotonic() - began < seconds
            store.set(f"programs/{count}", "1" if go_on else "0")
        if store.get(f"programs/{count}") == b"0":
            return count, True
        report(folder, first + count)
        found = play(draw(seed, first + count, size, plain), f"programs/{first + count}")
        if found:
            report(folder, first + count, found)
            return count, False
    return most, True


def repeat(program: Program, times: int, folder: str) -> None:
    for count in range(times):
        found = play(program, f"again/{count}")
        if found:
            report(folder, count, found)
            return
