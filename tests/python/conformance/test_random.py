"""Ten thousand calls drawn at random: op, type, reduce op, size, layout, thread, group, way of completion.

The same seed gives every rank the same schedule, and RANDOM_CALLS_SEED chooses it. A schedule numbers the
calls; each belongs to a thread and a group, and the calls on a group start in the order of their numbers
whichever thread makes them. Every rank knows every other one's input, so each checks each of its results.
"""

from __future__ import annotations

import os
import random
import threading
from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
from calls import COMPLETIONS, Failures, all_gather, all_gather_into, all_reduce, assert_all_well, broadcast
from layouts import Layout, contiguous, layouts_of
from reference import DTYPES, PAIRS, REFUSED_PAIRS, Expected, exactly, reduction, sample
from torch_ucc.testing import run_ranks

pytestmark = [pytest.mark.multirank, pytest.mark.slow]

CALLS = 10_000
MAX_BYTES = 4 << 20
GROUPS = ([0, 1, 2], [0, 1], [1, 2])
SEED_VARIABLE = "RANDOM_CALLS_SEED"


@dataclass(frozen=True)
class Step:
    number: int
    thread: int
    group: int
    op: str
    dtype: torch.dtype
    reduce: str
    numel: int
    layout: int
    root: int
    completion: int
    held: bool  # completed later, after other calls of the thread
    refused: bool


def schedule(seed: int, threads: int, calls: int) -> list[Step]:
    draw = random.Random(f"{seed} {threads}")
    steps = []
    for number in range(calls):
        op = draw.choice(("all_reduce", "all_reduce", "broadcast", "all_gather", "all_gather_into"))
        refused = op == "all_reduce" and draw.random() < 0.05
        dtype, reduce = draw.choice(REFUSED_PAIRS if refused else PAIRS)
        if op != "all_reduce":
            dtype = draw.choice(DTYPES)
        # Sizes by their logarithm: as many between 1 and 2 kB as between 1 and 2 MB.
        size = 0 if draw.random() < 0.02 else int(2 ** draw.uniform(0, 22))
        steps.append(
            Step(
                number=number,
                thread=draw.randrange(threads),
                group=draw.randrange(len(GROUPS)),
                op=op,
                dtype=dtype,
                reduce=reduce,
                numel=min(size, MAX_BYTES) // dtype.itemsize if size >= dtype.itemsize else int(size > 0),
                layout=draw.randrange(1000) if draw.random() < 0.5 else 0,
                root=draw.randrange(1000),
                completion=draw.randrange(len(COMPLETIONS)),
                held=draw.random() < 0.3,
                refused=refused,
            )
        )
    return steps


class Turns:
    """Lets the calls on each group start in the order of the schedule."""

    def __init__(self, steps: list[Step]) -> None:
        self._orders = {g: [step.number for step in steps if step.group == g] for g in range(len(GROUPS))}
        self._next = dict.fromkeys(self._orders, 0)
        self._changed = threading.Condition()

    def wait(self, step: Step) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._orders[step.group][self._next[step.group]] == step.number)

    def pass_on(self, step: Step) -> None:
        with self._changed:
            self._next[step.group] += 1
            self._changed.notify_all()


@dataclass(frozen=True)
class Started:
    step: Step
    work: dist.Work
    tensors: list[torch.Tensor]

    def complete(self, failures: Failures) -> None:
        COMPLETIONS[self.step.completion](self.work)
        members = GROUPS[self.step.group]
        for which, tensor in enumerate(self.tensors):
            failures.note(self.step, _expected(self.step, members, which).wrong(tensor))


def _expected(step: Step, members: list[int], which: int) -> Expected:
    if step.op == "all_reduce":
        return reduction(step.dtype, step.reduce, members, step.number, step.numel)
    parts = [sample(step.dtype, rank, step.number, step.numel) for rank in members]
    if step.op == "broadcast":
        return exactly(parts[step.root % len(members)])
    return exactly(parts[which] if step.op == "all_gather" else torch.cat(parts))


def start(step: Step, group: dist.ProcessGroup) -> Started:
    members = GROUPS[step.group]
    layouts = layouts_of(step.dtype, step.numel)
    layout: Layout = layouts[step.layout % len(layouts)]
    mine = layout(sample(step.dtype, dist.get_rank(), step.number, step.numel))
    async_op = step.held or step.completion != 0
    if step.op == "all_reduce":
        return Started(step, all_reduce(mine, step.reduce, group, async_op), [mine])
    if step.op == "broadcast":
        return Started(step, broadcast(mine, step.root % len(members), group, async_op), [mine])
    if step.op == "all_gather":
        outputs = [layout(torch.zeros(step.numel, dtype=step.dtype)) for _ in members]
        return Started(step, all_gather(outputs, mine, group, async_op), outputs)
    output = contiguous(torch.zeros(step.numel * len(members), dtype=step.dtype))
    return Started(step, all_gather_into(output, mine, group, async_op), [output])


def run_thread(steps: list[Step], groups: list[dist.ProcessGroup], turns: Turns, failures: Failures) -> None:
    held: list[Started] = []
    draw = random.Random(steps[0].number if steps else 0)
    for step in steps:
        turns.wait(step)
        try:
            started = start(step, groups[step.group])
            refused = False
        except NotImplementedError as error:
            refused = True
            failures.note(step, None if step.refused else f"refused: {error}")
        finally:
            turns.pass_on(step)
        if refused:
            continue
        if step.refused:
            failures.note(step, "accepted")
        if step.held and len(held) < 8:
            held.append(started)
        else:
            started.complete(failures)
        while held and draw.random() < 0.4:
            held.pop(draw.randrange(len(held))).complete(failures)
    for started in held:
        started.complete(failures)


def random_calls(seed: int, calls: int) -> tuple[int, int, list[str]]:
    groups = [dist.group.WORLD, *(dist.new_group(members) for members in GROUPS[1:])]
    failures = Failures()
    for threads in (1, 2, 3, 4):
        steps = [
            step for step in schedule(seed, threads, calls // 4) if dist.get_rank() in GROUPS[step.group]
        ]
        turns = Turns(steps)
        errors: list[BaseException] = []

        def body(
            which: int, steps: list[Step] = steps, turns: Turns = turns, errors: list[BaseException] = errors
        ) -> None:
            try:
                run_thread([step for step in steps if step.thread == which], groups, turns, failures)
            except BaseException as error:
                errors.append(error)

        workers = [threading.Thread(target=body, args=(which,), daemon=True) for which in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            while worker.is_alive() and not errors:
                worker.join(0.2)
        if errors:
            raise errors[0]
    return failures.report()


def test_random_calls() -> None:
    seed = int(os.environ.get(SEED_VARIABLE, "") or random.SystemRandom().randrange(2**31))
    print(f"{SEED_VARIABLE}={seed}")
    assert_all_well(run_ranks(random_calls, 3, seed, CALLS, timeout=300.0), at_least=CALLS // 2)
