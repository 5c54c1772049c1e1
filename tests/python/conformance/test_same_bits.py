"""On one host every rank gets the same bits, those of a loop over the ranks in their order: whatever the
size and the operation are, and however the program cuts its tensors."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch_ucc.testing import run_ranks

pytestmark = pytest.mark.multirank

RANKS = 5
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
SIZES = (1, 24, 25, 3000, 40_001, 300_007)
"""Of float32: in a line, in a slot, reduced at once or in shares, in one step or in several."""


def of_rank(rank: int, numel: int, dtype: torch.dtype) -> torch.Tensor:
    """Numbers of very different magnitudes, so that another order gives another sum."""
    generator = torch.Generator().manual_seed(1000 * numel + rank)
    exponents = torch.randint(-6, 7, (numel,), generator=generator)
    return (torch.randn(numel, generator=generator, dtype=torch.float64) * 2.0**exponents).to(dtype)


def in_order(numel: int, dtype: torch.dtype) -> torch.Tensor:
    wide = torch.float32 if dtype.itemsize == 2 else dtype
    total = of_rank(0, numel, dtype).to(wide)
    for rank in range(1, RANKS):
        total = total + of_rank(rank, numel, dtype).to(wide)
    return total.to(dtype)


def differences() -> list[str]:
    rank = dist.get_rank()
    wrong = []
    for dtype in DTYPES:
        for numel in SIZES:
            mine, expected = of_rank(rank, numel, dtype), in_order(numel, dtype)
            found = {}

            found["all_reduce"] = mine.clone()
            dist.all_reduce(found["all_reduce"])

            found["asynchronous"] = mine.clone()
            work = dist.all_reduce(found["asynchronous"], async_op=True)
            assert work is not None
            work.wait()

            found["reduce"] = mine.clone()
            dist.reduce(found["reduce"], 3)
            if rank != 3:
                del found["reduce"]

            found["cut"] = mine.clone()
            first, second = numel // 3, numel // 2
            parts = [found["cut"][:first], found["cut"][first:second], found["cut"][second:]]
            works = [dist.all_reduce(part, async_op=True) for part in reversed(parts)]
            for each in works:
                assert each is not None
                each.wait()

            found["reduce_scatter"] = torch.empty_like(mine)
            dist.reduce_scatter(found["reduce_scatter"], [mine] * RANKS)

            wrong += [
                f"{how}, {numel} of {dtype}"
                for how, tensor in found.items()
                if not torch.equal(tensor.view(torch.uint8), expected.view(torch.uint8))
            ]
    return wrong


def test_every_rank_gets_the_bits_of_a_loop_over_the_ranks() -> None:
    assert run_ranks(differences, RANKS, timeout=240) == [[]] * RANKS


def test_another_way_would_be_noticed() -> None:
    """Another order, or for 16 bits a sum that is rounded after each rank, has other bits."""
    for dtype in DTYPES:
        total = torch.zeros(3000, dtype=dtype)
        for rank in range(RANKS) if dtype.itemsize == 2 else reversed(range(RANKS)):
            total = total + of_rank(rank, 3000, dtype)
        assert not torch.equal(total, in_order(3000, dtype)), dtype
