"""So much that it goes in pieces, each of which has its share of every rank's part."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.distributed as dist
from layouts import strided
from reference import exactly, sample
from torch_ucc._torch import reduce_scatter_single
from torch_ucc.testing import run_ranks

pytestmark = pytest.mark.multirank

BYTES = 12 << 20  # of each rank's part
SHORT = 5  # elements of the last piece
REDUCTIONS = (
    (torch.float32, dist.ReduceOp.SUM),
    (torch.float32, dist.ReduceOp.AVG),
    (torch.bfloat16, dist.ReduceOp.SUM),
    (torch.int64, dist.ReduceOp.MAX),
)


def part(dtype: torch.dtype, rank: int, index: int, numel: int) -> torch.Tensor:
    """Small whole numbers, of which sums are exact in every order; no two ranks' or parts' alike."""
    return ((torch.arange(numel) * (index + 1) + 3 * rank) % 11).to(dtype)


def reduced(dtype: torch.dtype, op: dist.ReduceOp.RedOpType, index: int, numel: int) -> torch.Tensor:
    parts = torch.stack([part(dtype, rank, index, numel) for rank in range(dist.get_world_size())])
    if op == dist.ReduceOp.MAX:
        return parts.amax(0)
    whole = parts.sum(0, dtype=dtype)
    return whole / dist.get_world_size() if op == dist.ReduceOp.AVG else whole


def scattered() -> list[str]:
    """What was wrong."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    wrong = []
    for (dtype, op), form in itertools.product(REDUCTIONS, ("tensor", "in place", "list")):
        numel = BYTES // dtype.itemsize + SHORT
        inputs = [part(dtype, rank, index, numel) for index in range(ranks)]
        if form == "list" and rank == 0:
            inputs[1] = strided(inputs[1])
        together = torch.cat(inputs)
        output = torch.zeros(numel, dtype=dtype)
        if form == "list":
            dist.reduce_scatter(output, inputs, op)
        else:
            if form == "in place":
                output = together[rank * numel : (rank + 1) * numel]
            reduce_scatter_single(output, together, op)
        if not torch.equal(output, reduced(dtype, op, rank, numel)):
            wrong.append(f"{dtype} {op} {form}")
        others = [index for index in range(ranks) if index != rank or form != "in place"]
        if any(not torch.equal(together[i * numel : (i + 1) * numel], inputs[i]) for i in others):
            wrong.append(f"{dtype} {op} {form}: the input was changed")
    return wrong


def gathered() -> list[str]:
    """What was wrong: whatever a rank's own tensors look like, the others notice nothing of it."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    wrong = []
    for dtype, form in itertools.product(
        (torch.float32, torch.uint8, torch.complex128), ("apart", "in place", "in another's place", "strided")
    ):
        numel = 3 * BYTES // ranks // dtype.itemsize + SHORT
        mine = sample(dtype, rank, 0, numel)
        outputs = [torch.zeros(numel, dtype=dtype) for _ in range(ranks)]
        if form == "in place":
            mine = outputs[rank].copy_(mine)
        elif form == "in another's place" and rank == 1:
            mine = outputs[0].copy_(mine)
        elif form == "strided" and rank == 0:
            outputs[1] = strided(outputs[1])
        dist.all_gather(outputs, mine)
        for sender, output in enumerate(outputs):
            if error := exactly(sample(dtype, sender, 0, numel)).wrong(output):
                wrong.append(f"{dtype} {form} from {sender}: {error}")
    return wrong


def several_at_once() -> list[int]:
    """Which of them were wrong: those that begin while the pieces of others are on their way."""
    rank, ranks, numel = dist.get_rank(), dist.get_world_size(), BYTES // 4 + SHORT
    inputs = [
        torch.cat([part(torch.float32, rank, turn + index, numel) for index in range(ranks)])
        for turn in range(3)
    ]
    outputs = [torch.zeros(numel) for _ in inputs]
    small = torch.ones(1)
    works = [
        reduce_scatter_single(output, mine, async_op=True)
        for output, mine in zip(outputs, inputs, strict=True)
    ]
    works.append(dist.all_reduce(small, async_op=True))
    for work in works:
        work.wait()
    assert small.item() == ranks
    return [
        turn
        for turn, output in enumerate(outputs)
        if not torch.equal(output, reduced(torch.float32, dist.ReduceOp.SUM, turn + rank, numel))
    ]


@pytest.mark.parametrize("ranks", [2, 3])
def test_what_goes_in_pieces_is_whole_in_the_end(ranks: int) -> None:
    assert run_ranks(scattered, ranks) == [[]] * ranks
    assert run_ranks(gathered, ranks) == [[]] * ranks


def test_pieces_of_several_do_not_mix() -> None:
    assert run_ranks(several_at_once, 2) == [[]] * 2
