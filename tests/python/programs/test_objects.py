"""Object collectives: Python values of different sizes, over the world and over a group of some ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from side_by_side import LIMIT
from torch_ucc.testing import run_ranks

pytestmark = pytest.mark.multirank


def value(rank: int) -> dict[str, Any]:
    """Of another size on each rank, up to some hundred kilobytes."""
    return {"rank": rank, "text": "ä" * rank, "bytes": bytes(range(256)) * (1000 * rank), "nested": [(rank,)]}


def of_the_world() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    everything = [value(each) for each in range(size)]
    last = size - 1

    gathered: list[Any] = [None] * size
    dist.all_gather_object(gathered, value(rank))
    assert gathered == everything

    at_last: list[Any] | None = [None] * size if rank == last else None
    dist.gather_object(value(rank), at_last, dst=last)
    assert at_last == (everything if rank == last else None)

    objects = [value(last), None, "text"] if rank == last else [None] * 3
    dist.broadcast_object_list(objects, src=last)
    assert objects == [value(last), None, "text"]

    mine: list[Any] = [None]
    dist.scatter_object_list(mine, everything if rank == last else None, src=last)
    assert mine == [value(rank)]


def to_a_neighbour() -> None:
    """Around a ring, by list; then in one batch."""
    rank, size = dist.get_rank(), dist.get_world_size()
    before, after = (rank - 1) % size, (rank + 1) % size
    for use_batch in (False, True):
        received: list[Any] = [None, None]
        if rank % 2 == 0:
            dist.send_object_list([value(rank), rank], dst=after, use_batch=use_batch)
            dist.recv_object_list(received, src=before, use_batch=use_batch)
        else:
            dist.recv_object_list(received, src=before, use_batch=use_batch)
            dist.send_object_list([value(rank), rank], dst=after, use_batch=use_batch)
        assert received == [value(before), before], use_batch


def of_a_group() -> None:
    """Roots are named by their rank in the world, or in the group."""
    group = dist.new_group([2, 1])
    rank = dist.get_rank()
    if rank == 0:
        return
    within = group.rank()
    gathered: list[Any] = [None, None]
    dist.all_gather_object(gathered, value(rank), group=group)
    assert gathered == [value(dist.get_global_rank(group, each)) for each in range(2)]
    objects = [torch.arange(5) if rank == 2 else None]
    dist.broadcast_object_list(objects, src=2, group=group)
    assert objects[0].tolist() == [0, 1, 2, 3, 4]
    mine: list[Any] = [None]
    dist.scatter_object_list(mine, ["zero", "one"] if within == 1 else None, group_src=1, group=group)
    assert mine == [["zero", "one"][within]]
    at_first = [None, None] if within == 0 else None
    dist.gather_object(within, at_first, group_dst=0, group=group)
    assert at_first == ([0, 1] if within == 0 else None)


def all_of_them() -> bool:
    for program in (of_the_world, to_a_neighbour, of_a_group):
        program()
        dist.barrier()
    return True


def test_object_collectives() -> None:
    assert run_ranks(all_of_them, 3, timeout=LIMIT) == [True] * 3
