"""One rank of a soak."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
from calls import Failures
from reference import DTYPES, sample

from soak import memory, operations
from soak.part import Part, Started
from soak.schedule import WORLD, Round, Step, rounds

MOST_HELD = 8
SAMPLE_EVERY_S = 0.5
PROGRESS_EVERY_S = 10.0

Groups = dict[int, tuple[dist.ProcessGroup, list[int]]]
"""Those this rank is a member of, with their members."""


@dataclass
class Report:
    """What a rank has to say at the end."""

    checked: int
    wrong: int
    first: list[str]  # in words
    rounds: int
    groups: int
    samples: list[memory.Sample]
    done: Counter[str] = field(default_factory=Counter)  # steps by operation


def run(seed: int, seconds: float, table: list[str], progress: Path, host_of: list[int]) -> Report:
    """Rounds until the time is over for any rank, or any has seen a wrong result. Rank 0 writes progress."""
    Part.host_of = host_of
    rank, size = dist.get_rank(), dist.get_world_size()
    memory.keep_tight()
    for dtype in DTYPES:  # what the oracle keeps of each rank is there from the start
        for each in range(size):
            sample(dtype, each, 0, 1)
    failures, done, samples = Failures(), Counter[str](), []
    groups: Groups = {WORLD: (dist.group.WORLD, list(range(size)))}
    created = 0
    began = said = time.monotonic()
    for round_ in rounds(seed, size, table):
        _change(groups, round_)
        created += len(round_.created)
        _run_round(round_, groups, failures)
        done.update(step.op for thread in round_.threads for step in thread if step.group in groups)
        now = time.monotonic()
        if not samples or now - began - samples[-1].seconds >= SAMPLE_EVERY_S:
            samples.append(memory.Sample(now - began, memory.held(), memory.in_use()))
        if rank == 0 and now - said >= PROGRESS_EVERY_S:
            said = now
            with progress.open("a") as lines:
                lines.write(
                    f"{now - began:6.0f} s  round {round_.number}  {done.total()} calls  "
                    f"{failures.checked} checks, {failures.count} wrong  "
                    f"{created} groups, {len(groups)} alive  {samples[-1].held / 2**20:.1f} MB\n"
                )
        over = torch.tensor([now - began >= seconds or failures.count > 0], dtype=torch.int32)
        dist.all_reduce(over, dist.ReduceOp.MAX)
        if over.item():
            break
    return Report(*failures.report(), round_.number + 1, created, samples, done)


def _change(groups: Groups, round_: Round) -> None:
    for number in round_.destroyed:
        if number in groups:
            dist.destroy_process_group(groups.pop(number)[0])
    for number, members in round_.created.items():
        group = dist.new_group(members)
        if dist.get_rank() in members:
            groups[number] = group, members


def _run_round(round_: Round, groups: Groups, failures: Failures) -> None:
    errors: list[BaseException] = []

    def body(steps: list[Step]) -> None:
        try:
            _run_thread(steps, groups, failures)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=body, args=(steps,), daemon=True) for steps in round_.threads]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive() and not errors:  # the others may wait for what will not come
            thread.join(0.2)
    if errors:
        raise errors[0]


def _run_thread(steps: list[Step], groups: Groups, failures: Failures) -> None:
    held: list[Started] = []
    draw = random.Random(steps[0].number)
    for step in steps:
        if step.group not in groups:
            continue
        started = operations.start(step, *groups[step.group], failures)
        if started is not None and step.held and len(held) < MOST_HELD:
            held.append(started)
        elif started is not None:
            started.complete(failures)
        while held and draw.random() < 0.4:
            held.pop(draw.randrange(len(held))).complete(failures)
    for started in held:
        started.complete(failures)
