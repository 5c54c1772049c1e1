"""Where the time of each iteration went: traces made by hand, whose answers are known, and real ones."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch_ucc
from test_diagnosis import Rank
from torch import nn
from torch_ucc.testing import run_ranks
from torch_ucc.tracing import records, text, timeline
from torch_ucc.tracing.iterations import Iteration, Share, iterations
from torch_ucc.tracing.records import Dump

WORLD = "world"


def ranks(count: int) -> list[Rank]:
    return [Rank(rank, {WORLD: tuple(range(count))}) for rank in range(count)]


def of(dumps: list[Dump]) -> list[Iteration]:
    return iterations(dumps, timeline.merge(dumps))


def split(share: Share) -> tuple[int, int, dict[int, int]]:
    """Compute, moving, waiting."""
    assert share.compute_ns + share.moving_ns + share.waiting_ns == share.whole_ns
    return share.compute_ns, share.moving_ns, dict(share.waited_for)


def test_who_waits_for_a_late_rank() -> None:
    early, late = ranks(2)
    early.call("all_reduce", after=10_000, takes=6000, awaited_after=100).step()
    late.call("all_reduce", after=14_000, takes=2000, awaited_after=0).step()
    (found,) = of([early.dump(), late.dump()])
    assert [split(share) for share in found.shares] == [(10_100, 2000, {1: 3900}), (14_000, 2000, {})]
    assert found.slowest == (1, 3900) and found.mean("whole_ns") == 16_000


def bucket(rank: Rank, at: int, end: int) -> None:
    rank.now = at
    rank.call("all_reduce", after=0, takes=end - at, backward=True)


def test_communication_that_hides_behind_a_backward_pass_is_not_exposed() -> None:
    """Two buckets, whose futures the reducer waits for when it has called both."""
    both = ranks(2)
    for rank, second in zip(both, (5000, 8000), strict=True):
        bucket(rank, 2000, 6000)
        bucket(rank, second, 12_000)
        rank.now = 13_000
        rank.step()
    (found,) = of([rank.dump() for rank in both])
    assert [split(share) for share in found.shares] == [
        (5000, 4000, {1: 3000}),  # the first bucket still moves while it waits for the second
        (8000, 4000, {}),
    ]


def test_what_nobody_waits_for_is_not_exposed() -> None:
    both = ranks(2)
    for rank in both:
        rank.call("all_reduce", takes=5000).step()
    (found,) = of([rank.dump() for rank in both])
    assert [split(share) for share in found.shares] == [(6000, 0, {})] * 2


def test_others_wait_for_the_root_of_a_broadcast_and_it_for_nobody() -> None:
    both = ranks(3)
    for rank, after in zip(both, (1000, 4000, 2000), strict=True):
        rank.call("broadcast", root=1, after=after, takes=6000 - after, awaited_after=0).step()
    (found,) = of([rank.dump() for rank in both])
    assert [split(share)[2] for share in found.shares] == [{1: 3000}, {}, {1: 2000}]


def test_only_the_root_waits_in_a_gather() -> None:
    both = ranks(2)
    both[0].call("gather", root=0, after=1000, takes=5000, awaited_after=0).step()
    both[1].call("gather", root=0, after=4000, takes=2000, awaited_after=0).step()
    (found,) = of([rank.dump() for rank in both])
    assert [split(share)[2] for share in found.shares] == [{1: 3000}, {}]


def test_iterations_are_told_apart_and_only_those_that_all_ended_count() -> None:
    both = ranks(2)
    for step in range(4):
        for rank in both:
            slow = rank.rank == step % 2
            after, takes = (4000, 1000) if slow else (1000, 4000)
            rank.call("all_reduce", after=after, takes=takes, awaited_after=0).step()
    both[0].steps.pop()
    found = of([rank.dump() for rank in both])
    assert [each.number for each in found] == [1, 2, 3]
    assert [each.slowest for each in found] == [(0, 3000), (1, 3000), (0, 3000)]


def test_the_text_tells_the_longest_iterations_and_the_median() -> None:
    both = ranks(2)
    for step in range(15):
        for rank in both:
            rank.call("all_reduce", after=1000 * step + 3000 * rank.rank, takes=1000, awaited_after=0)
            rank.now = 20_000 * (step + 1)
            rank.step()
    dumps = [rank.dump() for rank in both]
    told = text.report(timeline.merge(dumps), 0, of(dumps))
    assert "15 iterations, the 10 longest of them:" in told
    assert sum(line.strip().endswith("us") and "rank 1, " in line for line in told.splitlines()) == 10
    assert any(line.startswith("median") for line in told.splitlines())


def test_without_marks_there_are_none() -> None:
    rank = Rank(0, {WORLD: (0,)}).call("barrier", dtype="", elements=0)
    assert of([rank.dump()]) == [] and of([]) == []
    assert "iteration" not in text.report(timeline.merge([rank.dump()]))


# --- real ones ----------------------------------------------------------------------------------------------

STEPS = 3
PAUSE = 0.02


def tell_when_waited_for(number: int) -> None:
    """In a thread of its own: its main thread is in the call that is looked for."""
    bound = time.monotonic() + 60
    while time.monotonic() < bound:
        waited = [each for each in torch_ucc.dump()["records"] if each["awaited_ns"]]
        if len(waited) == number:
            dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False).set(
                f"waits{number}", ""
            )
            return
        time.sleep(0.005)


def delayed(path: Path) -> None:
    """In each step rank 1 comes a while after rank 0 is known to wait for it."""
    tensor = torch.ones(4)
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    with torch_ucc.trace(path):
        for step in range(1, STEPS + 1):
            if dist.get_rank() == 0:
                teller = threading.Thread(target=tell_when_waited_for, args=(step,))
                teller.start()
                dist.all_reduce(tensor)
                teller.join()
            else:
                store.wait([f"waits{step}"])
                time.sleep(PAUSE)
                dist.all_reduce(tensor)
            torch_ucc.mark_step()


@pytest.mark.multirank
def test_a_rank_that_comes_late_in_a_run_is_named(tmp_path: Path) -> None:
    run_ranks(delayed, 2, tmp_path)
    found = of(records.load(tmp_path))
    assert len(found) == STEPS
    for each in found:
        early, late = each.shares
        assert each.slowest is not None and each.slowest[0] == 1
        assert early.waiting_ns >= PAUSE * 1e9 and late.waiting_ns == 0
        assert early.compute_ns >= 0 and late.compute_ns >= PAUSE * 1e9


def trained(path: Path, marked: bool) -> None:
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Linear(8, 4))
    generator = torch.optim.SGD(model.parameters(), lr=0.1)
    critic = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    with torch_ucc.trace(path):
        for _ in range(STEPS):
            model(torch.ones(2, 8)).sum().backward()
            generator.step()
            critic.step()
        if marked:
            torch_ucc.mark_step()
    generator.step()
    torch_ucc.mark_step()  # nothing is traced any more


@pytest.mark.multirank
@pytest.mark.parametrize("marked", [False, True])
def test_an_iteration_ends_with_the_step_of_the_first_optimizer_or_where_the_program_says(
    marked: bool, tmp_path: Path
) -> None:
    run_ranks(trained, 2, tmp_path, marked)
    dumps = records.load(tmp_path)
    found = of(dumps)
    assert [each.number for each in found] == ([1] if marked else [1, 2, 3])
    assert all(share.moving_ns + share.waiting_ns > 0 for each in found for share in each.shares)
    report = text.report(timeline.merge(dumps), 0, found)
    assert ("1 iteration:" if marked else "3 iterations:") in report
