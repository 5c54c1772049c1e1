"""Calls between the start and the end of coalescing: any mix of them, completed as one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager
from torch_ucc.testing import run_ranks

pytestmark = pytest.mark.multirank

CPU = torch.device("cpu")


def filled(value: float, numel: int = 3) -> torch.Tensor:
    return torch.full((numel,), float(value))


def one_kind(async_ops: bool) -> dict[str, list[list[float]]]:
    """Without a device torch collects the calls and makes one of them."""
    rank, size = dist.get_rank(), dist.get_world_size()
    found: dict[str, list[list[float]]] = {}

    tensors = [filled(rank + 10 * i, numel) for i, numel in enumerate((1, 0, 5, 70_000))]
    with _coalescing_manager(async_ops=async_ops) as batch:
        for tensor in tensors:
            dist.all_reduce(tensor)
    if async_ops:
        batch.wait()
    found["all_reduce"] = [tensor.unique().tolist() for tensor in tensors]

    inputs = [filled(rank + 10 * i, 1 + i) for i in range(3)]
    outputs = [torch.empty(size * (1 + i)) for i in range(3)]
    with _coalescing_manager(async_ops=async_ops) as batch:
        for output, mine in zip(outputs, inputs, strict=True):
            dist.all_gather_into_tensor(output, mine)
    if async_ops:
        batch.wait()
    found["all_gather_into_tensor"] = [output.tolist() for output in outputs]

    inputs = [torch.arange(float(size * (1 + i))) + rank for i in range(3)]
    outputs = [torch.empty(1 + i) for i in range(3)]
    with _coalescing_manager(async_ops=async_ops) as batch:
        for output, mine in zip(outputs, inputs, strict=True):
            dist.reduce_scatter_tensor(output, mine)
    if async_ops:
        batch.wait()
    found["reduce_scatter_tensor"] = [output.tolist() for output in outputs]
    return found


def both(body: Callable[[bool], object]) -> list[object]:
    return [body(async_ops) for async_ops in (False, True)]


def test_one_kind() -> None:
    for rank, found in enumerate(run_ranks(both, 3, one_kind)):
        each = {
            "all_reduce": [[3.0], [], [63.0], [93.0]],
            "all_gather_into_tensor": [
                [float(r + 10 * i) for r in range(3) for _ in range(1 + i)] for i in range(3)
            ],
            "reduce_scatter_tensor": [
                [3.0 * (rank * (1 + i) + j) + 3.0 for j in range(1 + i)] for i in range(3)
            ],
        }
        assert found == [each, each], rank


def any_mix(async_op: bool, async_ops: bool) -> list[list[float]]:
    """With a device each call reaches the backend on its own, point-to-point ones among them.

    torch collects the all_reduces nevertheless, and makes one call of them before the end.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    after, before = (rank + 1) % size, (rank - 1) % size
    reduced, more, sent = filled(rank), filled(rank, 70_000), filled(rank)
    gathered = [torch.empty(2) for _ in range(size)]
    received, swapped = torch.empty(2), torch.empty(size)
    with _coalescing_manager(device=CPU, async_ops=async_ops) as batch:
        dist.irecv(received, before, tag=5)  # before its sender: nothing starts until all are known
        dist.all_reduce(reduced)
        dist.broadcast(sent, 1, async_op=async_op)
        dist.isend(filled(rank, 2), after, tag=5)
        dist.all_reduce(more)
        dist.all_gather(gathered, filled(rank, 2), async_op=async_op)
        dist.all_to_all_single(swapped, filled(rank, size), async_op=async_op)
        dist.barrier(async_op=async_op)
    if async_ops:
        assert len(batch.works) == 1
        batch.wait()
        assert batch.works[0].is_completed()
    assert (more == 3.0).all()
    return [
        received.tolist(),
        reduced.tolist(),
        sent.tolist(),
        torch.cat(gathered).tolist(),
        swapped.tolist(),
    ]


@pytest.mark.parametrize("async_op", [False, True])
def test_any_mix(async_op: bool) -> None:
    """A call that is not async returns as well: as with NCCL, all of them are complete after the block."""
    for rank, found in enumerate(run_ranks(both, 3, partial(any_mix, async_op))):
        received, each = [float((rank - 1) % 3)] * 2, [0.0, 1.0, 2.0]
        expected = [received, [3.0] * 3, [1.0] * 3, [0.0, 0.0, 1.0, 1.0, 2.0, 2.0], each]
        assert found == [expected, expected], rank


def works_within() -> str:
    """A call's own Work says nothing before the batch has ended, and then the same as the batch's."""
    world = dist.group.WORLD
    tensors = [filled(dist.get_rank()) for _ in range(3)]
    world._start_coalescing(CPU)
    works = [world.allreduce([tensor]) for tensor in tensors]
    assert not any(work.is_completed() for work in works)
    try:
        works[1].wait()
        text = "no error"
    except Exception as error:
        text = str(error)
    batch = world._end_coalescing(CPU)
    batch.wait()
    assert batch.is_completed()
    for tensor, work in zip(tensors, works, strict=True):
        assert work.is_completed()
        work.wait()
        assert tensor.tolist() == [1.0] * 3
    return text


def test_works_within_a_batch() -> None:
    for text in run_ranks(works_within, 2):
        assert "coalesc" in text, text


def other_groups_and_empty() -> list[float]:
    """A batch is one group's: others go on meanwhile. One with nothing in it ends at once."""
    world, other = dist.group.WORLD, dist.new_group()
    inside, outside = filled(dist.get_rank()), filled(dist.get_rank())
    world._start_coalescing(CPU)
    work = world.allreduce([inside])
    dist.all_reduce(outside, group=other)
    world._end_coalescing(CPU).wait()
    work.wait()
    world._start_coalescing(CPU)
    nothing = world._end_coalescing(CPU)
    if nothing is not None:
        nothing.wait()
    return [float(inside[0]), float(outside[0])]


def test_other_groups_and_empty_batches() -> None:
    assert run_ranks(other_groups_and_empty, 2) == [[1.0, 1.0]] * 2


def refused_within() -> str:
    """A call that is refused is not in the batch; the others are, and the group goes on."""
    world = dist.group.WORLD
    good = [filled(1.0), filled(2.0)]
    world._start_coalescing(CPU)
    world.allreduce([good[0]])
    try:
        world.allreduce([filled(1.0)], dist.ReduceOp.BAND)
        text = "accepted"
    except NotImplementedError as error:
        text = str(error)
    world.allreduce([good[1]])
    world._end_coalescing(CPU).wait()
    assert [float(tensor[0]) for tensor in good] == [2.0, 4.0]
    after = filled(1.0)
    dist.all_reduce(after)
    assert after.tolist() == [2.0] * 3
    return text


def test_a_refusal_within_a_batch() -> None:
    for text in run_ranks(refused_within, 2):
        assert "all_reduce" in text, text


def batch_both_ways() -> list[float]:
    """Every pair exchanges in one batch, each rank in an order of its own."""
    rank, size = dist.get_rank(), dist.get_world_size()
    received = [filled(-1, 4) for _ in range(size)]
    ops = []
    for step in range(1, size):
        peer = (rank + step) % size
        ops.append(dist.P2POp(dist.isend, filled(10 * rank + peer, 4), peer))
        ops.append(dist.P2POp(dist.irecv, received[peer], peer))
    if rank % 2:
        ops.reverse()
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    assert all((tensor == tensor[0]).all() for tensor in received)
    return [float(tensor[0]) for tensor in received]


def test_batch_isend_irecv() -> None:
    for rank, found in enumerate(run_ranks(batch_both_ways, 3)):
        assert found == [-1.0 if peer == rank else 10.0 * peer + rank for peer in range(3)], rank
