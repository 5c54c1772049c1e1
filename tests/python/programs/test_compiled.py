"""Collectives inside a region that torch.compile takes whole: one graph, no break, the right numbers.

`fullgraph=True` alone would raise at a break; that the graph is one, and which collectives it holds, is
asserted as well. Two ranks, whole numbers: every result is exact.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from side_by_side import LIMIT, assert_same, whole_numbers
from torch_ucc import functional
from torch_ucc._torch import all_gather_single, reduce_scatter_single
from torch_ucc._torch import functional as functional_collective
from torch_ucc.testing import run_ranks

functional_all_gather_single = functional_collective("all_gather_single")
functional_reduce_scatter_single = functional_collective("reduce_scatter_single")
functional_all_gather_single_coalesced = functional_collective("all_gather_single_coalesced")

pytestmark = pytest.mark.multirank

Tensors = Sequence[torch.Tensor]
ROWS = [1, 3]  # of a rank's input, for each rank, in uneven exchanges


@dataclass(frozen=True)
class Case:
    """A function of this rank's tensor, and what it must give, from every rank's and this rank's number."""

    function: Callable[[torch.Tensor], torch.Tensor]
    expected: Callable[[Tensors, int], torch.Tensor]
    collectives: tuple[str, ...]


def sent_rows(rank: int) -> list[int]:
    return [ROWS[rank]] * 2


def functional_all_reduce(x: torch.Tensor) -> torch.Tensor:
    return funcol.all_reduce(x * 2, "sum", dist.group.WORLD) + 1


def functional_all_gather(x: torch.Tensor) -> torch.Tensor:
    return functional_all_gather_single(x * 2, 0, dist.group.WORLD) + 1


def functional_reduce_scatter(x: torch.Tensor) -> torch.Tensor:
    return functional_reduce_scatter_single(x * 2, "avg", 0, dist.group.WORLD) + 1


def functional_all_to_all_single(x: torch.Tensor) -> torch.Tensor:
    return funcol.all_to_all_single(x * 2, sent_rows(dist.get_rank()), ROWS, dist.group.WORLD) + 1


def functional_broadcast(x: torch.Tensor) -> torch.Tensor:
    return funcol.broadcast(x * 2, 1, dist.group.WORLD) + 1


def functional_coalesced(x: torch.Tensor) -> torch.Tensor:
    first, second = funcol.all_reduce_coalesced([x, x[:1] * 2], "sum", dist.group.WORLD)
    third, fourth = functional_all_gather_single_coalesced([x, x[:1] * 2], dist.group.WORLD)
    return torch.cat([first, second, third, fourth]) + 1


def all_reduce(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    dist.all_reduce(y)
    return y + 1


def all_reduce_max(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    dist.all_reduce(y, op=dist.ReduceOp.MAX, group=dist.group.WORLD)
    return y + 1


def all_gather_into_tensor(x: torch.Tensor) -> torch.Tensor:
    y = x.new_empty(2 * x.size(0), x.size(1))
    all_gather_single(y, x * 2)
    return y + 1


def all_gather(x: torch.Tensor) -> torch.Tensor:
    parts = [torch.empty_like(x) for _ in range(2)]
    dist.all_gather(parts, x * 2)
    return torch.cat(parts) + 1


def reduce_scatter_tensor(x: torch.Tensor) -> torch.Tensor:
    y = x.new_empty(x.size(0) // 2, x.size(1))
    reduce_scatter_single(y, x * 2, op=dist.ReduceOp.AVG)
    return y + 1


def all_to_all_single(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    dist.all_to_all_single(y, x * 2)
    return y + 1


def uneven_all_to_all_single(x: torch.Tensor) -> torch.Tensor:
    given = sent_rows(dist.get_rank())
    y = x.new_empty(sum(given), x.size(1))
    dist.all_to_all_single(y, x * 2, output_split_sizes=given, input_split_sizes=ROWS)
    return y + 1


def all_to_all(x: torch.Tensor) -> torch.Tensor:
    given = [*(x * 2).split(ROWS)]
    taken = [x.new_empty(rows, x.size(1)) for rows in sent_rows(dist.get_rank())]
    functional.all_to_all(taken, given)
    return torch.cat(taken) + 1


def broadcast(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    functional.broadcast(y, 1)
    return y + 1


def all_gather_into_tensor_uneven(x: torch.Tensor) -> torch.Tensor:
    mine = (x * 2)[: ROWS[dist.get_rank()]]
    return functional.all_gather_into_tensor_uneven(mine, ROWS) + 1


def reduce_scatter_tensor_uneven(x: torch.Tensor) -> torch.Tensor:
    return functional.reduce_scatter_tensor_uneven(x * 2, "sum", ROWS, dist.group.WORLD) + 1


def timed(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        finally:
            if Wrapped.times is not None:
                Wrapped.times.append(0.0)

    return wrapper


class Wrapped:
    """torch.distributed behind an object of a framework's, as DeepSpeed has it, whose timer is off."""

    times: list[float] | None = None

    @timed
    def all_reduce(
        self, tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM, group: Any = None, async_op: bool = False
    ) -> Any:
        return torch.distributed.all_reduce(tensor=tensor, op=op, group=group, async_op=async_op)


WRAPPED = Wrapped()


def wrapped_all_reduce(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    WRAPPED.all_reduce(y)
    return y + 1


def total(xs: Tensors, rank: int) -> torch.Tensor:
    return 2 * sum(xs) + 1


def gathered(xs: Tensors, rank: int) -> torch.Tensor:
    return 2 * torch.cat([*xs]) + 1


def scattered_mean(xs: Tensors, rank: int) -> torch.Tensor:
    return sum(xs).chunk(2)[rank] + 1


def exchanged(xs: Tensors, rank: int) -> torch.Tensor:
    return 2 * torch.cat([x.chunk(2)[rank] for x in xs]) + 1


def exchanged_unevenly(xs: Tensors, rank: int) -> torch.Tensor:
    return 2 * torch.cat([x.split(ROWS)[rank] for x in xs]) + 1


def coalesced(xs: Tensors, rank: int) -> torch.Tensor:
    firsts = torch.cat([x[:1] * 2 for x in xs])
    return torch.cat([sum(xs), sum(x[:1] * 2 for x in xs), *xs, firsts]) + 1


def gathered_unevenly(xs: Tensors, rank: int) -> torch.Tensor:
    return 2 * torch.cat([x[:rows] for x, rows in zip(xs, ROWS, strict=True)]) + 1


CASES = [
    Case(functional_all_reduce, total, ("all_reduce",)),
    Case(functional_all_gather, gathered, ("all_gather_into_tensor",)),
    Case(functional_reduce_scatter, scattered_mean, ("reduce_scatter_tensor",)),
    Case(functional_all_to_all_single, exchanged_unevenly, ("all_to_all_single",)),
    Case(functional_broadcast, lambda xs, rank: 2 * xs[1] + 1, ("broadcast",)),
    Case(functional_coalesced, coalesced, ("all_reduce_coalesced", "all_gather_into_tensor_coalesced")),
    Case(all_reduce, total, ("all_reduce",)),
    Case(all_reduce_max, lambda xs, rank: 2 * torch.maximum(*xs) + 1, ("all_reduce",)),
    Case(all_gather_into_tensor, gathered, ("all_gather_into_tensor",)),
    Case(all_gather, gathered, ("all_gather_into_tensor",)),
    Case(reduce_scatter_tensor, scattered_mean, ("reduce_scatter_tensor",)),
    Case(all_to_all_single, exchanged, ("all_to_all_single",)),
    Case(uneven_all_to_all_single, exchanged_unevenly, ("all_to_all_single",)),
    Case(all_to_all, exchanged_unevenly, ("all_to_all_single",)),
    Case(broadcast, lambda xs, rank: 2 * xs[1] + 1, ("broadcast",)),
    Case(all_gather_into_tensor_uneven, gathered_unevenly, ("all_gather_into_tensor_uneven",)),
    Case(
        reduce_scatter_tensor_uneven,
        lambda xs, rank: 2 * sum(xs).split(ROWS)[rank] + 1,
        ("reduce_scatter_tensor_uneven",),
    ),
    Case(wrapped_all_reduce, total, ("all_reduce",)),
]


def inputs(seed: int) -> list[torch.Tensor]:
    return [whole_numbers(4, 3, seed=10 * seed + rank, limit=100) for rank in range(2)]


class Recorded:
    """A backend of torch.compile that notes which collectives are in its graphs."""

    def __init__(self) -> None:
        self.collectives: list[str] = []

    def __call__(self, graph: torch.fx.GraphModule, examples: list[torch.Tensor]) -> Callable[..., Any]:
        names = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
        ours = ("_c10d_functional.", "torch_ucc.")
        collectives = [name.split(".")[1] for name in names if name.startswith(ours)]
        self.collectives += [name for name in collectives if name != "wait_tensor"]
        return torch._dynamo.lookup_backend("aot_eager")(graph, examples)


def in_one_graph(cases: Sequence[Case]) -> dict[str, tuple[list[str], int, int]]:
    rank = dist.get_rank()
    found = {}
    for case in cases:
        torch._dynamo.reset()
        counters = torch._dynamo.utils.counters
        counters.clear()
        backend = Recorded()
        compiled = torch.compile(case.function, fullgraph=True, backend=backend)
        name = case.function.__name__
        for seed in range(2):
            xs = inputs(seed)
            got, expected = compiled(xs[rank]), case.expected(xs, rank)
            assert_same(got + 0, expected, f"{name} on rank {rank}, call {seed}")
        found[name] = (
            backend.collectives,
            counters["stats"]["unique_graphs"],
            sum(counters["graph_break"].values()),
        )
    return found


def dist_broadcast(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    dist.broadcast(y, src=1, group=dist.group.WORLD)
    return y + 1


def dist_all_to_all(x: torch.Tensor) -> torch.Tensor:
    parts = [*(x * 2).chunk(2)]
    taken = [torch.empty_like(part) for part in parts]
    dist.all_to_all(taken, parts)
    return torch.cat(taken) + 1


UNTRACED = [
    Case(dist_broadcast, lambda xs, rank: 2 * xs[1] + 1, ("broadcast",)),
    Case(dist_all_to_all, exchanged, ("all_to_all_single",)),
]


def refused() -> None:
    """torch 2.13 traces these over no backend at all; without fullgraph they work, in two graphs."""
    rank, xs = dist.get_rank(), inputs(0)
    for case in UNTRACED:
        torch._dynamo.reset()
        with pytest.raises(torch._dynamo.exc.Unsupported):
            torch.compile(case.function, fullgraph=True, backend="aot_eager")(xs[rank])
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        compiled = torch.compile(case.function, backend="aot_eager")
        assert_same(compiled(xs[rank]), case.expected(xs, rank), f"{case.function.__name__} on rank {rank}")
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2


def all_graphs() -> dict[str, tuple[list[str], int, int]]:
    refused()
    functional.teach_compiler()
    return in_one_graph([*CASES, *UNTRACED])


def test_graphs() -> None:
    expected = {case.function.__name__: ([*case.collectives], 1, 0) for case in [*CASES, *UNTRACED]}
    assert run_ranks(all_graphs, 2, timeout=LIMIT) == [expected] * 2
