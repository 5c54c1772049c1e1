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
import torch.distributed as dist
from calls import COMPLETIONS, Failures, Report, assert_all_well
from points import Attempt, Case
from reference import PAIRS, REFUSED_PAIRS
from table import CASES, Pair, at_random
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
    case: Case
    pair: Pair
    numel: int
    point_seed: int  # of all else that the call varies in
    completion: int
    async_op: bool
    held: bool  # completed later, after other calls of the thread
    refused: bool

    def __str__(self) -> str:
        return (
            f"{self.number} {self.case.name} {self.pair} {self.numel} thread {self.thread} group {self.group}"
        )


def schedule(seed: int, threads: int, calls: int) -> list[Step]:
    draw = random.Random(f"{seed} {threads}")
    steps = []
    for number in range(calls):
        case = draw.choice(CASES)
        refused = case.pairs == PAIRS and draw.random() < 0.05
        pair = draw.choice(REFUSED_PAIRS if refused else case.pairs)
        # Sizes by their logarithm: as many between 1 and 2 kB as between 1 and 2 MB.
        size = 0 if draw.random() < 0.02 else int(2 ** draw.uniform(0, 22))
        itemsize = pair[0].itemsize
        held = draw.random() < 0.3
        completion = draw.randrange(len(COMPLETIONS))
        steps.append(
            Step(
                number=number,
                thread=draw.randrange(threads),
                group=draw.randrange(len(GROUPS)),
                case=case,
                pair=pair,
                numel=min(size, MAX_BYTES) // itemsize if size >= itemsize else int(size > 0),
                point_seed=draw.randrange(2**31),
                completion=completion,
                async_op=held or completion != 0,
                held=held,
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
    call: Attempt
    works: list[dist.Work | None]

    def complete(self, failures: Failures) -> None:
        for work in self.works:
            if work is not None:  # else the call has waited
                COMPLETIONS[self.step.completion](work)
        for what, wrong in self.call.wrongs():
            failures.note((what, self.step), wrong)


def start(step: Step, group: dist.ProcessGroup) -> Started:
    chance = random.Random(step.point_seed)
    point = at_random(step.pair, step.numel, step.number, chance, group, GROUPS[step.group])
    call = step.case.build(point)
    return Started(step, call, call.start(step.async_op))


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


def random_calls(seed: int, calls: int) -> Report:
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
