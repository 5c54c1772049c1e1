"""torch_ucc.functional outside of torch.compile: numbers, gradients, shapes of meta tensors, refusals."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from side_by_side import LIMIT, assert_same, whole_numbers
from torch_ucc import functional
from torch_ucc.testing import run_ranks

pytestmark = pytest.mark.multirank

SIZE = 3
ROWS = [2, 0, 5]

REDUCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda parts: parts.sum(0).to(parts.dtype),
    "avg": lambda parts: parts.mean(0),
    "product": lambda parts: parts.prod(0).to(parts.dtype),
    "min": lambda parts: parts.amin(0),
    "max": lambda parts: parts.amax(0),
}


def data(rank: int, rows: int) -> torch.Tensor:
    return whole_numbers(rows, 3, seed=rank, limit=9)


def numbers() -> None:
    rank = dist.get_rank()
    parts = [data(each, rows) for each, rows in enumerate(ROWS)]
    for dtype in (torch.float32, torch.bfloat16, torch.int32, torch.complex64, torch.bool):
        got = functional.all_gather_into_tensor_uneven(parts[rank].to(dtype), ROWS)
        assert_same(got, torch.cat(parts).to(dtype), f"all_gather of {dtype}")
    everything = torch.stack([data(each, sum(ROWS)) for each in range(SIZE)])
    for name, reduce in REDUCTIONS.items():
        for dtype in (torch.float64, torch.int32):
            if name == "avg" and not dtype.is_floating_point:
                continue
            mine = everything[rank].to(dtype)
            got = functional.reduce_scatter_tensor_uneven(mine, name, ROWS)
            assert_same(got, reduce(everything.to(dtype)).split(ROWS)[rank], f"{name} of {dtype}")
    strided = everything[rank].t().contiguous().t()
    got = functional.reduce_scatter_tensor_uneven(strided, "sum", ROWS)
    assert_same(got, everything.sum(0).split(ROWS)[rank], "of a strided tensor")


def lists() -> None:
    rank = dist.get_rank()
    given = [torch.full((each, rank + 1), 10.0 * rank + each) for each in range(SIZE)]
    taken = [torch.empty(rank, each + 1) for each in range(SIZE)]
    functional.all_to_all(taken, given)
    for each, got in enumerate(taken):
        assert_same(got, torch.full((rank, each + 1), 10.0 * each + rank), f"all_to_all from {each}")


def gradients() -> None:
    """Each is the other's adjoint."""
    rank = dist.get_rank()
    weights = [data(20 + each, sum(ROWS)) for each in range(SIZE)]
    mine = data(rank, ROWS[rank]).requires_grad_()
    (functional.all_gather_into_tensor_uneven(mine, ROWS) * weights[rank]).sum().backward()
    assert_same(mine.grad, sum(weights).split(ROWS)[rank], "of all_gather")
    weights = [data(30 + each, rows) for each, rows in enumerate(ROWS)]
    mine = data(rank, sum(ROWS)).requires_grad_()
    (functional.reduce_scatter_tensor_uneven(mine, "sum", ROWS) * weights[rank]).sum().backward()
    assert_same(mine.grad, torch.cat(weights), "of reduce_scatter")


def meta() -> None:
    rank = dist.get_rank()
    mine = torch.empty(ROWS[rank], 3, device="meta")
    assert functional.all_gather_into_tensor_uneven(mine, ROWS).shape == (7, 3)
    whole = torch.empty(7, 3, device="meta")
    assert functional.reduce_scatter_tensor_uneven(whole, "sum", ROWS).shape == (ROWS[rank], 3)


def refusals() -> None:
    """On all ranks, so that none waits for another; and the group goes on."""
    rank = dist.get_rank()
    x = torch.ones(8, 3)
    with pytest.raises(ValueError, match="there are 2 sizes for a group of 3 ranks"):
        functional.all_gather_into_tensor_uneven(x, [4, 4])
    says = rf"sizes\[{rank}\] is {ROWS[rank]}, but the tensor of rank {rank} has shape \[8, 3\]"
    with pytest.raises(ValueError, match=says):
        functional.all_gather_into_tensor_uneven(x, ROWS)
    with pytest.raises(ValueError, match="the sizes add up to 7, but"):
        functional.reduce_scatter_tensor_uneven(x, "sum", ROWS)
    with pytest.raises(ValueError, match="reduce_op is 'median', not one of sum, avg"):
        functional.reduce_scatter_tensor_uneven(x[:7], "median", ROWS)
    dist.all_reduce(x)
    assert x[0, 0] == SIZE


def on_a_group() -> None:
    group = dist.new_group([0, 2])
    if dist.get_rank() != 1:
        mine = 0 if dist.get_rank() == 0 else 1
        got = functional.all_gather_into_tensor_uneven(torch.full((mine + 1,), float(mine)), [1, 2], group)
        assert got.tolist() == [0.0, 1.0, 1.0]


def all_of_them() -> bool:
    for program in (numbers, lists, gradients, meta, refusals, on_a_group):
        program()
    return True


def test_uneven_functional_collectives() -> None:
    assert run_ranks(all_of_them, SIZE, timeout=LIMIT) == [True] * SIZE
