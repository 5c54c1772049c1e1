"""Every operation on an accelerator: right data, in the order of the streams, in its own memory."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import accelerators
import pytest
import torch
import torch.distributed as dist
from calls import COMPLETIONS, CPU, Failures, Report, assert_all_well
from layouts import resolved
from points import Attempt, Case, Point
from table import CASES, at_random, attempt
from torch_ucc.testing import run_ranks

pytestmark = pytest.mark.multirank

STAGED = tuple(case for case in CASES if case.name != "monitored_barrier")


def points(name: str, numels: tuple[int, ...], pairs: int) -> Iterator[tuple[Case, Point]]:
    """Every case at each size, with so many of its dtypes and reduce ops; the ranks draw alike."""
    chance = random.Random(name)
    salts = itertools.count(1000 * chance.randrange(2**20))
    device = accelerators.device()
    for case, numel in itertools.product(STAGED, numels):
        for pair in chance.sample(case.pairs, min(pairs, len(case.pairs))):
            point = at_random(pair, numel, next(salts), chance, dist.group.WORLD)
            layouts = resolved(point.layout), resolved(point.out_layout)
            yield case, replace(point, layout=layouts[0], out_layout=layouts[1], device=device)


def note(failures: Failures, case: Case, point: Point, call: Attempt) -> None:
    for what, wrong in call.wrongs():
        failures.note((what, case.name, *point.label()), wrong)


def complete(works: list[dist.Work], chance: random.Random) -> None:
    for work in works:
        chance.choice(COMPLETIONS)(work)


def every_case() -> Report:
    failures, chance = Failures(), random.Random(dist.get_rank())
    for case, point in points("every case", (0, 1, 3, 1000, 70_000), 6):
        attempt(case, point, (chance.random() < 0.7, chance.choice(COMPLETIONS)), failures)
    return failures.report()


def on_many_streams() -> Report:
    """Each call on a stream of its own choice, and read on another that only waits for the Work."""
    failures, chance = Failures(), random.Random(dist.get_rank())
    streams = [accelerators.new_stream() for _ in range(3)]
    for case, point in points("many streams", (3, 5000), 2):
        with chance.choice(streams):
            call = case.build(point)
            works = call.start(True)
        with chance.choice(streams):
            complete(works, chance)
            note(failures, case, point, call)
    return failures.report()


def in_flight() -> Report:
    """Many at once, completed in an order that is each rank's own."""
    failures, chance = Failures(), random.Random(dist.get_rank())
    started = []
    for case, point in points("in flight", (0, 1000), 2):
        call = case.build(point)
        started.append((case, point, call, call.start(True)))
    chance.shuffle(started)
    for case, point, call, works in started:
        complete(works, chance)
        note(failures, case, point, call)
    return failures.report()


def in_batches() -> Report:
    """Everything that can be coalesced, mixed, as one, with calls on the host among them."""
    failures, chance = Failures(), random.Random(1)
    mixed = list(points("batches", (0, 3, 1000), 2))
    chance.shuffle(mixed)
    group = dist.group.WORLD
    while mixed:
        group._start_coalescing(CPU)
        batch = []
        for case, point in mixed[:30]:
            point = replace(point, device="cpu") if chance.random() < 0.3 else point
            batch.append((case, point, case.build(point)))
        del mixed[:30]
        works = [work for _, _, call in batch for work in call.start(True)]
        group._end_coalescing(CPU).wait()
        for case, point, call in batch:
            note(failures, case, point, call)
        assert all(work.is_success() for work in works)
    return failures.report()


def inputs_dropped() -> Report:
    """The caller lets go of all inputs right after the call, and their memory is used anew."""
    failures, chance = Failures(), random.Random(dist.get_rank())
    for case, point in points("inputs dropped", (1000, 20_000), 2):
        call = replace(case.build(point), inputs=[])
        works = call.start(True)
        outputs = Attempt(lambda _: [], call.outputs)
        del call
        noise = [torch.empty(point.numel, dtype=point.dtype, device=point.device).fill_(1) for _ in range(4)]
        complete(works, chance)
        note(failures, case, point, outputs)
        del noise
    return failures.report()


def all_dropped() -> Report:
    """The caller lets go of everything, the Work too: nobody writes into what is somebody else's now."""
    failures = Failures()
    noise: list[torch.Tensor] = []
    for case, point in points("all dropped", (1000, 20_000), 2):
        case.build(point).start(True)
        numels = (point.numel, point.numel * point.size) * 2
        noise += [torch.empty(numel, dtype=torch.float32, device=point.device).fill_(7) for numel in numels]
        del noise[:-40]
    dist.barrier()
    for case, point in points("after", (1000,), 1):
        attempt(case, point, (True, COMPLETIONS[0]), failures)
    for tensor in noise:
        failures.note("memory of others", None if bool((tensor.cpu() == 7).all()) else "written to")
    return failures.report()


WAYS: tuple[Callable[[], Report], ...] = (
    every_case,
    on_many_streams,
    in_flight,
    in_batches,
    inputs_dropped,
    all_dropped,
)


def try_each() -> dict[str, tuple[Report, int]]:
    return {way.__name__: (way(), accelerators.memory_faults()) for way in WAYS}


SIZES = [*((ranks, "1m") for ranks in accelerators.RANKS), (3, "1k")]


@pytest.fixture(scope="module", params=SIZES, ids="{0[0]} ranks, pieces of {0[1]}".format)
def reports(request: pytest.FixtureRequest) -> list[dict[str, tuple[Report, int]]]:
    ranks, piece = request.param
    return run_ranks(try_each, ranks, timeout=300.0, env={"TORCH_UCC_SEGMENT_BYTES": piece})


@pytest.mark.parametrize("way", [way.__name__ for way in WAYS])
def test_every_operation(reports: list[dict[str, tuple[Report, int]]], way: str) -> None:
    assert_all_well([report[way][0] for report in reports], at_least=len(STAGED))
    assert [report[way][1] for report in reports] == [0] * len(reports), "freed memory was written to"
