"""Functional collectives, eager: results that wait for themselves when first used, and their gradients.

Three ranks, whole numbers: every result is exact, and known to every rank.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from side_by_side import LIMIT, assert_same, whole_numbers
from torch_ucc._torch import functional
from torch_ucc.testing import run_ranks

functional_reduce_scatter_single = functional("reduce_scatter_single")
functional_all_gather_single = functional("all_gather_single")
functional_all_gather_single_coalesced = functional("all_gather_single_coalesced")
functional_reduce_scatter_single_coalesced = functional("reduce_scatter_single_coalesced")
functional_all_gather_single_autograd = functional("all_gather_single_autograd")
functional_reduce_scatter_single_autograd = functional("reduce_scatter_single_autograd")

pytestmark = pytest.mark.multirank

SIZE = 3
WORLD = list(range(SIZE))


def data(rank: int, *shape: int) -> torch.Tensor:
    return whole_numbers(*(shape or (6, 3)), seed=rank, limit=9)


def check(got: torch.Tensor, expected: torch.Tensor, where: str) -> None:
    assert isinstance(got, funcol.AsyncCollectiveTensor), where
    assert_same(got + 0, expected, f"{where} on rank {dist.get_rank()}")


def reductions() -> None:
    everything = [data(rank) for rank in WORLD]
    ops: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
        "sum": torch.add,
        "product": torch.mul,
        "min": torch.minimum,
        "max": torch.maximum,
    }
    expected = {op: functools.reduce(combine, everything) for op, combine in ops.items()}
    expected["avg"] = expected["sum"] / SIZE
    mine = everything[dist.get_rank()]
    for op, value in expected.items():
        check(funcol.all_reduce(mine, op, WORLD), value + 0, f"all_reduce {op}")
    for dim in (0, 1):
        piece = expected["sum"].chunk(SIZE, dim)[dist.get_rank()]
        check(functional_reduce_scatter_single(mine, "sum", dim, WORLD), piece, f"reduce_scatter {dim}")
    bits = [each.to(torch.int64) & 15 for each in everything]
    for op, combine in (
        ("band", torch.bitwise_and),
        ("bor", torch.bitwise_or),
        ("bxor", torch.bitwise_xor),
    ):
        value = functools.reduce(combine, bits)
        check(funcol.all_reduce(bits[dist.get_rank()], op, WORLD), value, f"all_reduce {op}")
    assert_same(mine, data(dist.get_rank()), "the input")


def movement() -> None:
    rank = dist.get_rank()
    everything = [data(each) for each in WORLD]
    mine = everything[rank]
    check(functional_all_gather_single(mine, 0, WORLD), torch.cat(everything), "all_gather")
    assert_same(
        functional_all_gather_single(mine, 1, WORLD), torch.cat(everything, 1), "all_gather of columns"
    )
    check(funcol.broadcast(mine, 2, WORLD), everything[2], "broadcast")
    even = torch.cat([each.chunk(SIZE)[rank] for each in everything])
    check(funcol.all_to_all_single(mine, None, None, WORLD), even, "all_to_all_single")
    uneven = torch.cat([each.split([1, 0, 5])[rank] for each in everything])
    given = [[1, 0, 5][rank]] * SIZE
    check(funcol.all_to_all_single(mine, given, [1, 0, 5], WORLD), uneven, "uneven all_to_all_single")
    turned = funcol.permute_tensor(mine.flatten(), [1, 2, 0], WORLD)
    check(turned, everything[(rank - 1) % SIZE].flatten(), "permute_tensor")


def several_at_once() -> None:
    rank = dist.get_rank()
    shapes = ((3, 2), (6, 1), (9,))
    everything = [[data(10 * each + i, *shape) for i, shape in enumerate(shapes)] for each in WORLD]
    totals = [sum(each) for each in zip(*everything, strict=True)]
    mine = everything[rank]
    for got, total in zip(funcol.all_reduce_coalesced(mine, "sum", WORLD), totals, strict=True):
        check(got, total, "all_reduce_coalesced")
    for i, got in enumerate(functional_all_gather_single_coalesced(mine, WORLD)):
        check(got, torch.cat([each[i] for each in everything]), "all_gather_into_tensor_coalesced")
    pieces = functional_reduce_scatter_single_coalesced(mine, "sum", [0, 0, 0], WORLD)
    for got, total in zip(pieces, totals, strict=True):
        check(got, total.chunk(SIZE)[rank], "reduce_scatter_tensor_coalesced")


def gradients() -> None:
    """Of the sum over all ranks of the weighted outputs: the adjoint collective of the weights."""
    rank = dist.get_rank()
    weights = [data(50 + each, 18, 3) for each in WORLD]
    mine = data(rank).requires_grad_()
    (functional_all_gather_single_autograd(mine, 0, WORLD) * weights[rank]).sum().backward()
    assert_same(mine.grad, sum(weights).chunk(SIZE)[rank], "gradient of all_gather")
    mine.grad = None
    small = [each[:2] for each in weights]
    (functional_reduce_scatter_single_autograd(mine, "sum", 0, WORLD) * small[rank]).sum().backward()
    assert_same(mine.grad, torch.cat(small), "gradient of reduce_scatter")
    mine.grad = None
    given, taken = [[1, 0, 5][rank]] * SIZE, [1, 0, 5]
    (
        funcol.all_to_all_single_autograd(mine, given, taken, WORLD) * weights[rank][: sum(given)]
    ).sum().backward()
    expected = torch.cat([weights[each][rank * taken[each] : (rank + 1) * taken[each]] for each in WORLD])
    assert_same(mine.grad, expected, "gradient of all_to_all_single")


def never_used() -> None:
    """Results that nobody reads, dropped before and after their end; what follows is right."""
    for _ in range(100):
        funcol.all_reduce(torch.ones(1000), "sum", WORLD)
    kept = [funcol.all_reduce(torch.full((1000,), float(i)), "sum", WORLD) for i in range(100)]
    for i in reversed(range(100)):
        assert_same(kept[i] + 0, torch.full((1000,), 3.0 * i), f"result {i}")


def on_a_group() -> None:
    group = dist.new_group([0, 2])
    if dist.get_rank() == 1:
        return
    total = data(0) + data(2)
    check(funcol.all_reduce(data(dist.get_rank()), "sum", group), total, "all_reduce of a group")


def all_of_them() -> bool:
    for program in (reductions, movement, several_at_once, gradients, never_used, on_a_group):
        program()
    return True


def test_functional_collectives() -> None:
    assert run_ranks(all_of_them, SIZE, timeout=LIMIT) == [True] * SIZE
