"""Groups as programs make them: in any order, by their members alone, by the hundred, again and again.

Those that are split from another one are in test_split.py, those of a mesh in test_device_mesh.py.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import os
import random
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch_ucc._torch import HAS_2_14
from torch_ucc.testing import run_ranks

pytestmark = pytest.mark.multirank

CPU = torch.device("cpu")


def store() -> dist.Store:
    return dist.distributed_c10d._get_default_store()


def total(group: dist.ProcessGroup | None = None, value: float = 1.0, numel: int = 3) -> float:
    """The sum of value * 2**rank over the members tells who took part, and in what."""
    tensor = torch.full((numel,), value * 2.0 ** dist.get_rank())
    dist.all_reduce(tensor, group=group)
    assert (tensor == tensor[0]).all()
    return float(tensor[0])


def expected(members: list[int], value: float = 1.0) -> float:
    return value * sum(2.0**rank for rank in members)


# -- in any order ------------------------------------------------------------------------------------------


def any_order(seed: int) -> int:
    """Groups with any members are created and destroyed between uses; each rank has its own order of use.

    Only creation is in one order everywhere, as torch wants it. Operations of different groups are
    independent: each rank may start them, and wait for them, as it likes; and so may it destroy groups.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    common, own = random.Random(seed), random.Random(f"{seed} {rank}")
    alive: dict[int, tuple[list[int], dist.ProcessGroup]] = {}
    numbers = itertools.count(1)
    used = 0
    for _ in range(8):
        for _ in range(common.randrange(1, 8)):
            members = sorted(common.sample(range(size), common.randrange(1, size + 1)))
            group = dist.new_group(members)
            alive[next(numbers)] = members, group
        started = []
        for number in own.sample(sorted(alive), len(alive)):
            members, group = alive[number]
            if rank in members:
                tensor = torch.full((number * 997 % 5000,), number * 2.0**rank)
                work = dist.all_reduce(tensor, group=group, async_op=True)
                started.append((number, members, tensor, work))
        own.shuffle(started)
        for number, members, tensor, work in started:
            work.wait()
            assert (tensor == expected(members, number)).all(), (number, members, tensor[0])
            used += 1
        going = common.sample(sorted(alive), len(alive) // 2)
        own.shuffle(going)
        for number in going:
            members, group = alive.pop(number)
            if rank in members:
                dist.destroy_process_group(group)
        assert total() == expected(list(range(size)))
    return used


def test_any_order_and_overlap() -> None:
    assert min(run_ranks(any_order, 4, 7)) > 15


# -- by its members alone ----------------------------------------------------------------------------------


def members_only() -> list[float]:
    """The other ranks are not even awake: they wait in the store until the group has been used."""
    if dist.get_rank() not in (1, 3):
        store().wait(["test/used"])
        return [total()]
    group = dist.new_group([1, 3], use_local_synchronization=True)
    assert group is not None
    sums = [total(group)]
    store().set("test/used", "1")
    return [*sums, total()]


def test_local_synchronization_involves_only_the_members() -> None:
    assert run_ranks(members_only, 4) == [[15.0], [10.0, 15.0], [15.0], [10.0, 15.0]]


def same_name_again() -> tuple[int, list[float]]:
    """torch hashes the name of such a group from its members and how many are alive: names may return."""
    names, sums = set(), []
    for turn in range(10):
        group = dist.new_group([0, 1], use_local_synchronization=True)
        names.add(group.group_name)
        sums.append(total(group, value=turn))
        if turn % 2:  # by both together; else one rank may be at the next group while the other still closes
            dist.barrier()
        dist.destroy_process_group(group)
    return len(names), sums


def test_a_name_that_returns() -> None:
    names = 10 if HAS_2_14 else 1  # from torch 2.14 on they differ
    assert run_ranks(same_name_again, 2) == [(names, [3.0 * turn for turn in range(10)])] * 2


def pairs_at_once() -> list[float]:
    """Each rank makes groups with its neighbour, at the same time as the others, and as many as it likes."""
    rank = dist.get_rank()
    mine, turns = ([0, 1], 3) if rank < 2 else ([2, 3], 7)
    sums = []
    for turn in range(turns):
        group = dist.new_group(mine, use_local_synchronization=True)
        sums.append(total(group, value=turn))
        dist.destroy_process_group(group)
    return [*sums, total()]


def test_disjoint_groups_by_local_synchronization() -> None:
    low, high = [[factor * turn for turn in range(turns)] for factor, turns in ((3.0, 3), (12.0, 7))]
    assert run_ranks(pairs_at_once, 4) == [[*low, 15.0]] * 2 + [[*high, 15.0]] * 2


# -- by the hundred ----------------------------------------------------------------------------------------

GROUPS, ROUNDS = 500, 3

KEPT_PER_GROUP = 1024
"""Bytes by which a process may have grown for each group that is gone, with as many alive as before.

With the groups alive: what the allocator keeps of the last ones, in pieces too small to return, is then in
use again. A live group takes 14 kB; of one that is gone its name stays, with a count: 300 bytes with torch's.
"""


def resident() -> int:
    """What this process holds, in bytes, once the allocator has returned what it only keeps at hand."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def all_in_flight(early: int, groups: list[tuple[int, dist.ProcessGroup]]) -> None:
    """One all_reduce on each of the groups, none of which can end before `early` has started them all.

    UCC keeps a task for each that was ever in flight at once. Were it left to chance how many that is, a
    later round could surpass the ones before it, and what UCC then adds would pass for a leak.
    """
    rank, works, token = dist.get_rank(), [], torch.zeros(1)
    if rank != early:
        dist.recv(token, early)
    for number, group in reversed(groups):
        tensor = torch.full((2,), number * 2.0**rank)
        works.append((number, tensor, dist.all_reduce(tensor, group=group, async_op=True)))
    if rank == early:
        dist.send(token, 1 - early)
    for number, tensor, work in works:
        work.wait()
        assert tensor.tolist() == [expected([0, 1], number)] * 2, number


def hundreds() -> list[int]:
    held = []
    numbers = itertools.count(1)
    both = [0, 1]
    for _ in range(ROUNDS):
        groups = [(next(numbers), dist.new_group()) for _ in range(GROUPS)]
        for number, group in groups:
            assert total(group, number) == expected(both, number), number
        held.append(resident())
        for early in both:
            all_in_flight(early, groups)
        for _, group in groups:
            dist.destroy_process_group(group)
        del groups, group
        assert total() == expected(both)
    return held


def test_hundreds_of_groups_again_and_again() -> None:
    for rank, (_, second, third) in enumerate(run_ranks(hundreds, 2)):
        grown = third - second
        assert grown < GROUPS * KEPT_PER_GROUP, f"rank {rank} grew by {grown / GROUPS:.0f} bytes a group"


# -- from several threads ----------------------------------------------------------------------------------


def in_threads(bodies: list[Callable[[], None]]) -> None:
    """Run them at once; the first exception of any is raised here."""
    errors: list[BaseException] = []

    def guarded(body: Callable[[], None]) -> None:
        try:
            body()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def threads_over_overlapping_groups() -> int:
    """Each thread has its own groups, which overlap with those of the others; all of them share the ranks."""
    rank = dist.get_rank()
    members = ([0, 1, 2], [0, 1], [1, 2], [0, 2], [rank])
    groups = [[dist.new_group(each) for each in members[:-1]] for _ in range(4)]
    for mine in groups:
        alone = [dist.new_group([each]) for each in range(3)]
        mine.append(alone[rank])
    done = Counter[int]()

    def body(which: int) -> None:
        draw = random.Random(which)
        for turn in range(100):
            at = draw.randrange(len(members))
            if rank not in members[at]:
                continue
            value = float(1 + turn * 4 + which)
            assert total(groups[which][at], value, 1 + turn * 7) == expected(members[at], value), (
                which,
                turn,
            )
            done[which] += 1

    in_threads([lambda which=which: body(which) for which in range(4)])
    return min(done.values())


def test_threads_over_overlapping_groups() -> None:
    assert min(run_ranks(threads_over_overlapping_groups, 3)) > 40


def threads_on_one_group() -> int:
    """Collectives of a group need one order, which threads have not; messages under a tag do."""
    rank, group = dist.get_rank(), dist.new_group()
    done = Counter[int]()

    def body(which: int) -> None:
        for turn in range(100):
            numel = 1 + (turn * 37 + which) % 5000
            received = torch.empty(numel)
            receiving = dist.irecv(received, group_src=1 - rank, group=group, tag=which)
            mine = torch.full((numel,), 1000.0 * which + turn + rank / 2)
            dist.send(mine, group_dst=1 - rank, group=group, tag=which)
            receiving.wait()
            assert (received == 1000.0 * which + turn + (1 - rank) / 2).all(), (which, turn)
            done[which] += 1

    in_threads([lambda which=which: body(which) for which in range(4)])
    assert total() == 3.0
    return sum(done.values())


def test_threads_on_one_group() -> None:
    assert run_ranks(threads_on_one_group, 2) == [400, 400]
