"""`torch.distributed.nn`: collectives that gradients flow through, whose values and gradients are known.

The loss of a rank is the sum of what it received, times weights of its own; a rank's gradient is then what it
gave to everybody's loss.
"""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dnn
from side_by_side import LIMIT, assert_same, whole_numbers
from torch_ucc.testing import run_ranks

pytestmark = pytest.mark.multirank

SIZE = 3


def data(rank: int, *shape: int) -> torch.Tensor:
    return whole_numbers(*(shape or (3, 2)), seed=rank, limit=9)


def weight(rank: int, *shape: int) -> torch.Tensor:
    return whole_numbers(*(shape or (3, 2)), seed=100 + rank, limit=9)


def check(
    name: str, output: torch.Tensor, value: torch.Tensor, leaf: torch.Tensor, gradient: torch.Tensor
) -> None:
    """Also that every rank gets so far: the backward pass communicates."""
    where = f"{name} on rank {dist.get_rank()}"
    assert_same(output, value, where)
    leaf.grad = None
    (output * weight(dist.get_rank(), *output.shape)).sum().backward()
    assert leaf.grad is not None, where
    assert_same(leaf.grad + 0, gradient + 0, f"gradient of {where}")


def programs() -> bool:
    warnings.simplefilter("ignore", FutureWarning)  # torch would have one use its functional collectives
    rank, ranks = dist.get_rank(), range(SIZE)
    world = dist.group.WORLD
    everything, weights = [data(each) for each in ranks], [weight(each) for each in ranks]
    zeros = torch.zeros(3, 2)
    mine = data(rank).requires_grad_()

    check("all_reduce", dnn.all_reduce(mine), sum(everything), mine, sum(weights))
    check("broadcast", dnn.broadcast(mine, 1), everything[1], mine, sum(weights) if rank == 1 else zeros)

    reduced = dnn.reduce(mine, 2)
    expected = sum(everything) if rank == 2 else reduced.detach()  # elsewhere it means nothing
    check("reduce", reduced, expected, mine, weights[2])

    wide = [weight(each, 9, 2) for each in ranks]
    gathered = torch.cat(dnn.all_gather(mine))
    check("all_gather", gathered, torch.cat(everything), mine, sum(wide).chunk(SIZE)[rank])

    collected = torch.cat(dnn.gather(mine, 1))
    at_root = torch.cat(everything) if rank == 1 else torch.zeros(9, 2)
    check("gather", collected, at_root, mine, wide[1].chunk(SIZE)[rank])

    whole = [data(each, 9, 2) for each in ranks]
    pieces = whole[rank].clone().requires_grad_()
    received = dnn.scatter([*pieces.chunk(SIZE)], 2)
    given = torch.cat(weights) if rank == 2 else torch.zeros(9, 2)
    check("scatter", received, whole[2].chunk(SIZE)[rank], pieces, given)

    reduced = dnn.reduce_scatter(torch.empty(3, 2), [*pieces.chunk(SIZE)])
    check("reduce_scatter", reduced, sum(whole).chunk(SIZE)[rank], pieces, torch.cat(weights))

    swapped = dnn.all_to_all([torch.empty(3, 2) for _ in ranks], [*pieces.chunk(SIZE)])
    turned = torch.cat([each.chunk(SIZE)[rank] for each in whole])
    back = torch.cat([each.chunk(SIZE)[rank] for each in wide])
    check("all_to_all", torch.cat(swapped), turned, pieces, back)

    uneven = [2, 3, 4]  # rows for each rank
    rows = uneven[rank]
    swapped_rows = dnn.all_to_all_single(torch.empty(SIZE * rows, 2), pieces, [rows] * SIZE, uneven, world)
    turned = torch.cat([each.split(uneven)[rank] for each in whole])
    theirs = [weight(each, SIZE * uneven[each], 2).chunk(SIZE)[rank] for each in ranks]
    check("all_to_all_single", swapped_rows, turned, pieces, torch.cat(theirs))
    return True


def test_values_and_gradients() -> None:
    assert run_ranks(programs, SIZE, timeout=LIMIT) == [True] * SIZE
