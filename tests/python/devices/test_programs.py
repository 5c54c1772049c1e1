"""Random programs on several streams come to what they come to one step after the other."""

from __future__ import annotations

import random
from typing import TypeAlias

import accelerators
import pytest
import torch
import torch.distributed as dist
from torch_ucc.testing import run_ranks

pytestmark = pytest.mark.multirank

TENSORS, STREAMS, STEPS, NUMEL = 5, 3, 120, 300
Step: TypeAlias = tuple[str, int, int, int]  # what, of which tensor, on which stream, with which number


def program(seed: int, size: int) -> list[Step]:
    chance = random.Random(seed)
    whats = ("add", "scale", "all_reduce", "broadcast", "all_to_all", "reduce", "drop")
    return [
        (chance.choice(whats), chance.randrange(TENSORS), chance.randrange(STREAMS), chance.randrange(size))
        for _ in range(STEPS)
    ]


def start(rank: int, tensor: int) -> torch.Tensor:
    return (torch.arange(NUMEL) % 7 + rank + tensor).to(torch.int32)


def expected(steps: list[Step], size: int) -> list[list[torch.Tensor]]:
    """By rank and tensor."""
    all_of = [[start(rank, tensor) for tensor in range(TENSORS)] for rank in range(size)]
    for what, which, _, number in steps:
        mine = [of_rank[which] for of_rank in all_of]
        total = torch.stack(mine).sum(0, dtype=torch.int32)
        parts = [each.view(size, -1) for each in mine]
        for rank, of_rank in enumerate(all_of):
            of_rank[which] = {
                "add": mine[rank] + number + rank,
                "scale": mine[rank] * 3,
                "all_reduce": total,
                "broadcast": mine[number].clone(),
                "all_to_all": torch.cat([each[rank] for each in parts]),
                "reduce": total if rank == number else mine[rank],
                "drop": start(rank, which),
            }[what]
    return all_of


def run(seed: int) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    steps = program(seed, size)
    chance = random.Random(f"{seed} {rank}")  # when the ranks wait is their own choice
    device = accelerators.device()
    streams = [accelerators.new_stream() for _ in range(STREAMS)]
    tensors = [start(rank, tensor).to(device) for tensor in range(TENSORS)]
    home = [0] * TENSORS  # the stream on which a tensor was used last
    pending: dict[int, dist.Work] = {}
    for what, which, number_of_stream, number in steps:
        stream = streams[number_of_stream]
        with stream:
            work = pending.pop(which, None)
            if work is not None and what != "drop":
                work.wait()
            stream.wait_event(streams[home[which]].record_event())
            home[which] = number_of_stream
            tensor = tensors[which]
            tensor.record_stream(stream)
            if what == "add":
                tensor.add_(number + rank)
            elif what == "scale":
                tensor.mul_(3)
            elif what == "drop":
                tensors[which] = torch.empty_like(tensor).copy_(start(rank, which))
            else:
                work = _collective(what, tensors, which, number)
                if chance.random() < 0.5:
                    work.wait()
                else:
                    pending[which] = work
    for which, work in pending.items():
        with streams[home[which]]:
            work.wait()
    right = expected(steps, size)[rank]
    for which, tensor in enumerate(tensors):
        with streams[home[which]]:
            assert torch.equal(tensor.cpu(), right[which]), f"program {seed}, tensor {which}"


def _collective(what: str, tensors: list[torch.Tensor], which: int, number: int) -> dist.Work:
    tensor = tensors[which]
    if what == "all_reduce":
        return dist.all_reduce(tensor, async_op=True)
    if what == "broadcast":
        return dist.broadcast(tensor, number, async_op=True)
    if what == "reduce":
        return dist.reduce(tensor, number, async_op=True)
    tensors[which] = torch.empty_like(tensor)
    return dist.all_to_all_single(tensors[which], tensor, async_op=True)


def run_all(seeds: list[int]) -> int:
    accelerators.load()
    accelerators.set_longest_delay(500)
    for seed in seeds:
        run(seed)
    return accelerators.memory_faults()


@pytest.mark.parametrize("piece", ["1m", "200"])
@pytest.mark.parametrize("size", accelerators.RANKS)
def test_random_programs(size: int, piece: str) -> None:
    """Of tensors that go whole, and in six slices."""
    seeds = [size * 1000 + number for number in range(8)]
    env = {"TORCH_UCC_SEGMENT_BYTES": piece}
    assert run_ranks(run_all, size, seeds, timeout=240.0, env=env) == [0] * size
