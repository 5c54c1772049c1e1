"""Beside the gradients: one more operation in most steps, the same on all ranks, whose result is known."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch_ucc._torch import all_gather_single, reduce_scatter_single

MOST_BITS, TRANSFER_BITS = 18, 15  # elements for a rank, of 8 bytes

Values = Callable[..., torch.Tensor]
"""Of a rank; how many times the elements of the step, 1 if that is not said."""


def run(step: int, timeout: timedelta, name: str | None = None) -> str | None:
    """What was wrong, if anything. Without a name, the step decides whether there is one, and which."""
    draw = random.Random(step)
    chosen = draw.choice([*OPERATIONS, "new_group", None, None])
    numel = int(2 ** (TRANSFER_BITS if name == "transfers" else draw.uniform(0, MOST_BITS)))

    def values(rank: int, times: int = 1) -> torch.Tensor:
        return torch.arange(numel * times) * (rank + 1) + step

    name = name or chosen
    if name is None:
        return None
    if name == "new_group":
        result, expected = _new_group(values, draw, timeout)
    else:
        result, expected = OPERATIONS[name](values, dist.get_rank(), dist.get_world_size())
    if torch.equal(result, expected):
        return None
    return f"{name} of {numel} elements in step {step} on rank {dist.get_rank()}"


Checked = tuple[torch.Tensor, torch.Tensor]
"""What came of it, and what had to."""


def _total(values: Values, ranks: list[int], times: int = 1) -> torch.Tensor:
    return torch.stack([values(rank, times) for rank in ranks]).sum(0)


def _all_reduce(values: Values, rank: int, size: int) -> Checked:
    tensor = values(rank, 4)  # so that some go in several pieces
    dist.all_reduce(tensor)
    return tensor, _total(values, list(range(size)), 4)


def _all_gather(values: Values, rank: int, size: int) -> Checked:
    output = torch.empty_like(values(rank, size))
    all_gather_single(output, values(rank))
    return output, torch.cat([values(each) for each in range(size)])


def _reduce_scatter(values: Values, rank: int, size: int) -> Checked:
    output = torch.empty_like(values(rank))
    reduce_scatter_single(output, values(rank, size))
    return output, _total(values, list(range(size)), size).chunk(size)[rank]


def _transfers(values: Values, rank: int, size: int) -> Checked:
    """Long enough that something strikes while memory of another rank is read."""
    output, whole = values(rank), values(rank, size)
    for _ in range(100):
        reduce_scatter_single(output, whole)
    return _reduce_scatter(values, rank, size)


def _broadcast(values: Values, rank: int, size: int) -> Checked:
    tensor = values(rank)
    dist.broadcast(tensor, size - 1)
    return tensor, values(size - 1)


def _all_to_all(values: Values, rank: int, size: int) -> Checked:
    output = torch.empty_like(values(rank, size))
    dist.all_to_all_single(output, values(rank, size))
    return output, torch.cat([values(each, size).chunk(size)[rank] for each in range(size)])


def _ring(values: Values, rank: int, size: int) -> Checked:
    tensor = torch.empty_like(values(rank))
    if size == 1:
        return tensor, tensor
    sent = dist.isend(values(rank), (rank + 1) % size)
    dist.recv(tensor, (rank - 1) % size)
    assert sent is not None, "this rank is a member"
    sent.wait()
    return tensor, values((rank - 1) % size)


def _barrier(values: Values, rank: int, size: int) -> Checked:
    dist.barrier()
    return torch.empty(0), torch.empty(0)


def _new_group(values: Values, draw: random.Random, timeout: timedelta) -> Checked:
    """Of most ranks or all."""
    rank, size = dist.get_rank(), dist.get_world_size()
    members = sorted(draw.sample(range(size), draw.choice((size, max(1, size - 1)))))
    group = dist.new_group(members, timeout=timeout)
    tensor = values(rank)
    if rank not in members:
        return tensor, tensor
    dist.all_reduce(tensor, group=group)
    dist.destroy_process_group(group)
    return tensor, _total(values, members)


OPERATIONS: dict[str, Callable[[Values, int, int], Checked]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "transfers": _transfers,
    "broadcast": _broadcast,
    "all_to_all": _all_to_all,
    "ring": _ring,
    "barrier": _barrier,
}
