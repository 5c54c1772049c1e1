"""What a new group asks of the job's store: as much for each member, however many there are."""

from __future__ import annotations

import json
import os
import statistics
import threading
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch_ucc
from counting import Counting
from torch_ucc._native import extension
from torch_ucc.testing import run_ranks, run_script

pytestmark = pytest.mark.multirank


def use(group: dist.ProcessGroup) -> None:
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=group)
    assert tensor.tolist() == [group.size()] * 3


def store_operations(backend: str) -> tuple[int, int, int]:
    """Of this rank, for a group of all ranks and its first use, one with options that another has, and one of
    which rank 0 is no member."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    counting = Counting(dist.TCPStore(host, port, is_master=False, timeout=timedelta(seconds=60)))
    dist.init_process_group(
        backend, store=counting, rank=rank, world_size=size, timeout=timedelta(seconds=60)
    )
    dist.barrier()
    counting.take()
    use(dist.new_group(backend="ucc"))
    whole = counting.take()
    options = torch_ucc.Options(ucc={"TL_UCP_TUNE": "allreduce:@ring"})
    use(dist.new_group(backend="ucc", pg_options=options))
    counting.take()
    use(dist.new_group(backend="ucc", pg_options=options))
    again = counting.take()
    part = dist.new_group(list(range(1, size)), backend="ucc")
    if rank > 0:
        use(part)
    return whole, again, counting.take()


@pytest.mark.parametrize("backend", ["ucc", "gloo"])
def test_a_new_group(backend: str) -> None:
    """In all, at most twice as many for twice the ranks.

    In a world of gloo the group is the first one of ucc, and brings the libraries up as well.
    """
    three, six = (run_ranks(store_operations, size, backend, init=False) for size in (3, 6))
    assert three[0][0] > 0
    assert sum(whole for whole, _, _ in six) <= 2 * sum(whole for whole, _, _ in three), (three, six)
    if backend == "ucc":
        assert all(whole == again == 2 for whole, again, _ in [*three, *six]), (three, six)
    assert three[0][2] == six[0][2] == 0, "who is not a member asks nothing"


def test_a_rank_asks_as_much_however_many_there_are() -> None:
    """For a further group; and at the start, where one that comes late asks up to three times less.

    In each of five exchanges each rank reads once more if there are several blocks, and the rank that packs
    one asks four times more. The first rank of a block answers the 63 others, one by one if they come so.
    """
    script = Path(__file__).with_name("many_ranks.py")
    env = {"PYTHONPATH": str(script.parents[1])}
    few, many = (
        json.loads(run_script(script, 1, str(size), launcher="python", timeout=300, env=env).splitlines()[-1])
        for size in (4, 130)
    )
    assert len(many["start"]) == 130
    usual = statistics.median(many["start"])
    assert usual <= min(few["start"]) + 3 + 5, (few, many)
    for rank, asked in enumerate(many["start"]):
        answers = 63 + 2 if rank == 0 else 63 if rank % 64 == 0 else 0
        assert asked <= usual + 5 * 4 + answers, (rank, many)
    assert max(many["group"]) == max(few["group"]) == 2, (few, many)


def test_what_more_ranks_than_a_block_has_tell_each_other() -> None:
    """Each block of 64 is packed by one of them, and one of a host reads for all there."""
    size, inner = 150, dist.HashStore()
    stores = [Counting(inner) for _ in range(size)]
    told = [os.urandom(rank) + bytes(500) for rank in range(size)]
    heard: dict[int, list[bytes]] = {}

    def rank_of(rank: int) -> None:
        heard[rank] = extension.compiled().exchange(
            stores[rank], rank, size, timedelta(seconds=100), told[rank]
        )

    threads = [threading.Thread(target=rank_of, args=(rank,)) for rank in range(size)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert [heard.get(rank) == told for rank in range(size)] == [True] * size
    operations = [store.take() for store in stores]
    # A rank takes a ticket, looks for an answer and reads it; sets its value and counts it. The reader of the
    # host looks whether all ranks have, waits, and reads what they said.
    least, usual = 5, 8
    assert min(operations) == least and statistics.median(operations) < usual
    # The last rank packs the values of its block, counts the block, and packs all. A rank that answers looks
    # for tickets, rank 0 in two queues, and sets an answer for each number of tickets that it finds.
    assert sorted(operations)[-4] <= usual + 4
    assert max(operations) <= usual + 4 + 2 + size
