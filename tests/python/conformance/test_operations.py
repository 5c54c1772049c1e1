"""The whole table: nothing in it is without a case, and what is true of every operation alike."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace

import front
import pytest
import torch
import torch.distributed as dist
from calls import COMPLETIONS, CPU, Failures, Report, assert_all_well
from layouts import resolved, sliceable
from points import Attempt, Case, Point
from reference import PAIRS
from table import CASES, TABLE, at_random, attempt
from torch_ucc._native import extension
from torch_ucc.testing import run_ranks

pytestmark = pytest.mark.multirank


def operations() -> list[str]:
    return list(extension.compiled().operations())


def test_every_operation_has_cases() -> None:
    assert run_ranks(operations, 1) == [sorted(TABLE)]
    assert all(cases for cases in TABLE.values())


def test_no_case_is_there_twice() -> None:
    """Their names seed what is left to chance, and are in every message."""
    assert len({case.name for case in CASES}) == len(CASES)


def drawn(name: str, numels: tuple[int, ...], times: int) -> Iterator[tuple[Case, Point]]:
    """Every case at each size, so many times; the ranks draw alike, and salts that no other name has."""
    chance = random.Random(name)
    salts = itertools.count(1000 * chance.randrange(2**20))
    for numel in numels * times:
        for case in CASES:
            pair = chance.choice(case.pairs)
            yield case, at_random(pair, numel, next(salts), chance, dist.group.WORLD)


def wait_all(works: list[dist.Work], chance: random.Random) -> None:
    for work in works:
        chance.choice(COMPLETIONS)(work)


def in_mode(mode: str, tensors_too: bool) -> Report:
    """Calls within torch.inference_mode() or no_grad(), of tensors that were made there or outside."""
    failures, chance = Failures(), random.Random(dist.get_rank())
    context = getattr(torch, mode)
    for case, point in drawn(mode, (0, 1, 1000, 70_000), 1):
        with context():
            if tensors_too:
                attempt(case, point, (chance.random() < 0.8, chance.choice(COMPLETIONS)), failures)
        if not tensors_too:
            call = case.build(point)
            with context():
                works = call.start(True)
            wait_all(works, chance)
            note(failures, case, point, call)
    return failures.report()


def in_inference_mode() -> Report:
    return in_mode("inference_mode", tensors_too=False)


def tensors_of_inference_mode() -> Report:
    return in_mode("inference_mode", tensors_too=True)


def in_no_grad() -> Report:
    return in_mode("no_grad", tensors_too=False)


def note(failures: Failures, case: Case, point: Point, call: Attempt) -> None:
    for what, wrong in call.wrongs():
        failures.note((what, case.name, *point.label()), wrong)


def garbage(point: Point) -> list[torch.Tensor]:
    """As much memory as the call's tensors took, filled with what no result looks like."""
    numels = [1, point.numel, 2 * point.numel, point.size * point.numel]
    sizes = [numel * point.dtype.itemsize for numel in numels for _ in range(4)]
    return [torch.full((size,), 0x77, dtype=torch.uint8) for size in sizes]


def inputs_dropped() -> Report:
    """The caller lets go of all inputs right after the call, and their memory is used anew."""
    failures, chance = Failures(), random.Random(dist.get_rank())
    for case, point in drawn("inputs dropped", (3, 1000, 50_000), 3):
        call = replace(case.build(point), inputs=[])
        works = call.start(True)
        outputs = Attempt(lambda _: [], call.outputs)
        del call
        noise = garbage(point)
        wait_all(works, chance)
        note(failures, case, point, outputs)
        del noise
    return failures.report()


def all_dropped() -> Report:
    """The caller lets go of everything, the Work too: nobody writes into what is somebody else's now."""
    failures, chance = Failures(), random.Random(0)
    noise: list[list[torch.Tensor]] = []
    for case, point in drawn("all dropped", (3, 1000, 50_000), 2):
        case.build(point).start(True)
        noise.append(garbage(point))
        if len(noise) > 20:
            del noise[chance.randrange(20)]
    dist.barrier()
    for case, point in drawn("after", (1000,), 1):
        attempt(case, point, (True, COMPLETIONS[0]), failures)
    for each in noise:
        failures.note("memory of others", None if all((t == 0x77).all() for t in each) else "written to")
    return failures.report()


def in_flight() -> Report:
    """Many calls of every kind at once, completed in an order that is each rank's own."""
    failures, chance = Failures(), random.Random(dist.get_rank())
    started = []
    for case, point in drawn("in flight", (0, 3, 1000, 20_000), 2):
        call = case.build(point)
        started.append((case, point, call, call.start(True)))
    chance.shuffle(started)
    for case, point, call, works in started:
        wait_all(works, chance)
        note(failures, case, point, call)
    return failures.report()


def in_batches() -> Report:
    """Everything that can be coalesced, mixed, as one."""
    failures, chance = Failures(), random.Random(1)
    group = dist.group.WORLD
    every = drawn("batches", (0, 3, 1000, 20_000), 3)
    mixed = [(case, point) for case, point in every if case.name != "monitored_barrier"]
    chance.shuffle(mixed)
    while mixed:
        group._start_coalescing(CPU)
        batch = [(case, point, case.build(point)) for case, point in mixed[:40]]
        del mixed[:40]
        works = [work for _, _, call in batch for work in call.start(True)]
        group._end_coalescing(CPU).wait()
        for case, point, call in batch:
            note(failures, case, point, call)
        assert all(work.is_completed() and work.is_success() for work in works)
    return failures.report()


OF_EVERY_OPERATION = (
    in_inference_mode,
    tensors_of_inference_mode,
    in_no_grad,
    inputs_dropped,
    all_dropped,
    in_flight,
    in_batches,
)


def try_each() -> dict[str, Report]:
    return {which.__name__: which() for which in OF_EVERY_OPERATION}


@pytest.fixture(scope="module")
def reports() -> list[dict[str, Report]]:
    return run_ranks(try_each, 3, timeout=120.0)


@pytest.mark.parametrize("which", [each.__name__ for each in OF_EVERY_OPERATION])
def test_of_every_operation(reports: list[dict[str, Report]], which: str) -> None:
    assert_all_well([report[which] for report in reports], at_least=len(CASES) * 3)


NOT_OF_THE_FRONT_END = ("recv_any_source",)  # from oneself, which torch.distributed refuses; see test_p2p.py


def shown_by_torch(case: Case, dtype: torch.dtype, reduce: str) -> bool:
    """Whether torch.distributed lets the pair through."""
    if case.pairs == PAIRS and dtype.is_complex:
        return dtype is not torch.complex32 and reduce != "PRODUCT"
    return case.name != "sparse_all_reduce" or not dtype.is_complex


def through_the_front_end() -> Report:
    """As users call it, where torch itself rewrites some tensors."""
    failures, chance, group = Failures(), random.Random(0), dist.group.WORLD
    for case in CASES:
        if case.name in NOT_OF_THE_FRONT_END:
            continue
        messages = case.name in ("send", "recv")
        for salt, pair in enumerate(pair for pair in case.pairs if shown_by_torch(case, *pair)):
            point = at_random(pair, 1000, salt, chance, group)
            layout, out_layout = (sliceable(resolved(each)) for each in (point.layout, point.out_layout))
            point = replace(point, calls=front, layout=layout, out_layout=out_layout)
            if messages:
                point = replace(point, root=1)  # not to oneself
            for async_op in (False, True):
                call = case.build(point)
                works = call.start(async_op)
                for work in works:
                    assert (work is not None) == (async_op or messages), case.name
                    if work is not None:
                        work.wait()
                for what, wrong in call.wrongs():
                    failures.note((what, case.name, *point.label(), async_op), wrong)
    return failures.report()


def test_through_the_front_end() -> None:
    assert_all_well(run_ranks(through_the_front_end, 2), at_least=3000)
