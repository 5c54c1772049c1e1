"""Several worlds in one process: groups over different stores, with ranks that are numbered alike."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store
from torch.distributed.distributed_c10d import _new_process_group_helper
from torch_ucc.testing import run_ranks

pytestmark = pytest.mark.multirank


def world(store: Store, rank: int, size: int, name: str) -> dist.ProcessGroup:
    """Over a store of its own and numbered from 0, as trainers make one with inference engines."""
    group, _ = _new_process_group_helper(
        size,
        rank,
        [],
        dist.Backend("ucc"),
        dist.PrefixStore(name, store),
        group_name=name,
        timeout=timedelta(seconds=30),
    )
    dist.distributed_c10d._world.pg_group_ranks[group] = {i: i for i in range(size)}
    return group


def client(name: str) -> Store:
    """A store of its own: another connection to the job's server, under another prefix."""
    job = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    return dist.PrefixStore(name, dist.TCPStore(*job, is_master=False))


def total(group: dist.ProcessGroup, value: float) -> float:
    tensor = torch.full((1000,), value)
    group.allreduce([tensor]).wait()
    return tensor.unique().item()


def pairs() -> list[float]:
    """Rank 0 is in a world with rank 1 and in one with rank 2, and is rank 0 of both."""
    rank = dist.get_rank()
    found = []
    for other in (1, 2):
        if rank in (0, other):
            group = world(client(f"with {other}"), int(rank != 0), 2, f"pair {other}")
            found.append(total(group, 10.0**rank))
            found.append(total(group, 10.0**rank))
    found.append(total(dist.group.WORLD, 1.0))  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize("backend", ["ucc", "gloo"])
def test_two_worlds_that_number_their_ranks_alike(backend: str) -> None:
    """The default group's backend makes no difference: gloo has no context that could be mixed up with."""
    first, second, third = run_ranks(pairs, 3, backend=backend, timeout=120)
    assert first == [11.0, 11.0, 101.0, 101.0, 3.0]
    assert second == [11.0, 11.0, 3.0]
    assert third == [101.0, 101.0, 3.0]


def replicas() -> list[float]:
    """Two replicas of two ranks, each a job of its own, and a group across for each rank of a replica."""
    rank = int(os.environ["RANK"])
    replica, mine = divmod(rank, 2)
    dist.init_process_group("ucc", store=client(f"replica {replica}"), rank=mine, world_size=2)
    across = world(client(f"across {mine}"), replica, 2, f"across {mine}")
    within = dist.new_group([0, 1])
    found = [total(dist.group.WORLD, 10.0**rank), total(across, 10.0**rank), total(within, 10.0**rank)]  # type: ignore[arg-type]
    dist.destroy_process_group()
    return found


def test_replicas_and_a_group_across() -> None:
    found = run_ranks(replicas, 4, init=False, timeout=120)
    inside, outside = ([11.0] * 2 + [1100.0] * 2, [101.0, 1010.0] * 2)
    assert found == [[a, b, a] for a, b in zip(inside, outside, strict=True)]


def merged() -> list[Any]:
    """Two jobs of two ranks each become one group of four, while each goes on as a job of its own."""
    replica, mine = divmod(int(os.environ["RANK"]), 2)
    dist.init_process_group("ucc", store=client(f"job {replica}"), rank=mine, world_size=2)
    world = dist.group.WORLD
    assert world is not None
    both = world.merge_remote_group(client("both"), 4, timedelta(seconds=60), "both", "of both jobs")  # type: ignore[attr-defined]
    ranks = [torch.zeros(1, dtype=torch.int64) for _ in range(4)]
    both.allgather([ranks], [torch.tensor([2 * replica + mine])]).wait()
    found = [both.size(), sorted(int(each) for each in ranks), total(both, 1.0), total(world, 10.0)]
    dist.destroy_process_group()
    return found


def test_the_groups_of_two_jobs_are_merged() -> None:
    assert run_ranks(merged, 4, init=False, timeout=120) == [[4, [0, 1, 2, 3], 4.0, 20.0]] * 4


def in_turn() -> list[Any]:
    """Worlds are made and dropped, with others of the process open, and leave no context behind."""
    from torch_ucc._native import extension

    rank = dist.get_rank()
    found = []
    for round_ in range(4):
        group = world(client(f"round {round_}"), 1 - rank, 2, f"round {round_}")
        found.append(total(group, rank + 1.0))
        dist.destroy_process_group(group)
    return [*found, len(extension.compiled().open_contexts())]


def test_worlds_made_and_dropped() -> None:
    assert run_ranks(in_turn, 2, timeout=120) == [[3.0] * 4 + [1]] * 2


def held() -> tuple[int, int, int]:
    """Descriptors, threads and mappings of this process."""
    descriptors, threads = (len([*Path(f"/proc/self/{each}").iterdir()]) for each in ("fd", "task"))
    return descriptors, threads, Path("/proc/self/maps").read_text().count("memfd:")


def ten_at_once() -> list[Any]:
    """What ten worlds leave behind, after a first one that is there to load what is loaded once."""
    rank = dist.get_rank()
    store = client("ten")
    found, before = [], (0, 0, 0)
    for turn in range(3):
        worlds = [world(store, 1 - rank, 2, f"turn {turn} world {each}") for each in range(10)]
        found.append(sum(total(group, 1.0 + each) for each, group in enumerate(worlds)))
        for group in worlds:
            dist.destroy_process_group(group)
        if turn == 0:
            before = held()
    return [*found, [now - then for now, then in zip(held(), before, strict=True)]]


def test_ten_worlds_at_once_leave_nothing_behind() -> None:
    total_of_ten = 2.0 * sum(range(1, 11))
    assert run_ranks(ten_at_once, 2, timeout=120) == [[total_of_ten] * 3 + [[0, 0, 0]]] * 2


def in_opposite_order() -> list[float]:
    """Two threads make a world each; the first to begin is another one on each rank."""
    rank = dist.get_rank()
    totals: dict[int, float] = {}

    def make(which: int) -> None:
        group = world(client(f"thread {which}"), rank, 2, f"thread {which}")
        totals[which] = total(group, 1.0 + which)

    threads = [threading.Thread(target=make, args=(which,)) for which in (rank, 1 - rank)]
    for thread in threads:
        thread.start()
        time.sleep(0.3)  # so that the first has begun, which is what the test is about
    for thread in threads:
        thread.join()
    return [totals[0], totals[1]]


def test_threads_that_make_worlds_in_opposite_order() -> None:
    assert run_ranks(in_opposite_order, 2, timeout=120) == [[2.0, 4.0]] * 2


SERVES = """
import sys, time, torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
time.sleep(300)
"""


def served() -> tuple[subprocess.Popen[str], int]:
    """A store whose server is a process of its own."""
    server = subprocess.Popen([sys.executable, "-c", SERVES], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    return server, int(server.stdout.readline())


def store_ends(port: int, first: int, second: int) -> list[float]:
    """The second world is made once the server of the first one's store has ended."""
    rank, job = dist.get_rank(), dist.TCPStore("127.0.0.1", port, is_master=False)
    one = world(dist.TCPStore("127.0.0.1", first, is_master=False), rank, 2, "one")
    found = [total(one, 1.0)]
    job.add("test/ready", 1)
    job.wait(["test/ended"], timedelta(seconds=60))
    two = world(dist.TCPStore("127.0.0.1", second, is_master=False), rank, 2, "two")
    found += [total(two, 2.0), total(one, 3.0)]
    dist.destroy_process_group(two)
    return found


def test_a_world_whose_store_has_ended() -> None:
    """Its groups go on, and another world over another store is made."""
    (first, first_port), (second, second_port) = served(), served()
    job = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def end_the_first() -> None:
        while job.add("test/ready", 0) < 2:
            time.sleep(0.01)
        first.kill()
        first.wait()
        job.set("test/ended", "")

    try:
        ending = threading.Thread(target=end_the_first)
        ending.start()
        found = run_ranks(store_ends, 2, job.port, first_port, second_port, backend="gloo", timeout=120)
        assert found == [[2.0, 4.0, 6.0]] * 2
        ending.join()
    finally:
        for server in (first, second):
            server.kill()
            server.wait()
