"""With TORCH_DISTRIBUTED_DEBUG=DETAIL torch compares each call between the ranks before a backend sees it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch_ucc._torch import all_gather_single, reduce_scatter_single
from torch_ucc.testing import run_ranks

pytestmark = pytest.mark.multirank

CPU = torch.device("cpu")
DETAIL = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}


def is_wrapped(group: dist.ProcessGroup) -> bool:
    wrapper = group._get_backend(CPU)
    return hasattr(wrapper, "wrapped_pg") and wrapper.wrapped_pg.name() == "ucc"


def collectives() -> dict[str, list[float]]:
    """On a group beside the world: each has a wrapper of its own."""
    group = dist.new_group([0, 1, 2])
    assert is_wrapped(group) and is_wrapped(dist.group.WORLD)
    rank = float(dist.get_rank())
    found: dict[str, list[float]] = {}

    reduced = torch.full((3,), rank)
    dist.all_reduce(reduced, group=group)
    found["all_reduce"] = reduced.tolist()
    sent = torch.full((2,), rank)
    dist.broadcast(sent, 1, group=group)
    found["broadcast"] = sent.tolist()
    gathered = [torch.empty(1) for _ in range(3)]
    dist.all_gather(gathered, torch.tensor([rank]), group=group, async_op=True).wait()
    found["all_gather"] = torch.cat(gathered).tolist()
    into = torch.empty(3)
    all_gather_single(into, torch.tensor([rank]), group=group)
    found["all_gather_into_tensor"] = into.tolist()
    dist.barrier(group)
    return found


def test_collectives() -> None:
    each = [0.0, 1.0, 2.0]
    assert (
        run_ranks(collectives, 3, env=DETAIL)
        == [
            {
                "all_reduce": [3.0] * 3,
                "broadcast": [1.0] * 2,
                "all_gather": each,
                "all_gather_into_tensor": each,
            }
        ]
        * 3
    )


def moves() -> dict[str, list[float]]:
    rank = float(dist.get_rank())
    found: dict[str, list[float]] = {}
    parts = [torch.tensor([10.0 * rank + to]) for to in range(3)]

    reduced = torch.tensor([rank])
    dist.reduce(reduced, 2)
    found["reduce"] = reduced.tolist()
    gathered = [torch.empty(1) for _ in range(3)] if rank == 1 else None
    dist.gather(torch.tensor([rank]), gathered, 1)
    found["gather"] = torch.cat(gathered).tolist() if gathered else []
    mine = torch.empty(1)
    dist.scatter(mine, parts if rank == 0 else None, 0)
    found["scatter"] = mine.tolist()
    dist.reduce_scatter(mine, parts)
    found["reduce_scatter"] = mine.tolist()
    reduce_scatter_single(mine, torch.cat(parts))
    found["reduce_scatter_tensor"] = mine.tolist()
    swapped = torch.empty(3)
    dist.all_to_all_single(swapped, torch.cat(parts))
    found["all_to_all_single"] = swapped.tolist()
    outputs = list(torch.empty(3).split(1))
    dist.all_to_all(outputs, parts)
    found["all_to_all"] = torch.cat(outputs).tolist()
    return found


def test_moves() -> None:
    for rank, found in enumerate(run_ranks(moves, 3, env=DETAIL)):
        assert found == {
            "reduce": [3.0] if rank == 2 else [float(rank)],
            "gather": [0.0, 1.0, 2.0] if rank == 1 else [],
            "scatter": [float(rank)],
            "reduce_scatter": [30.0 + 3 * rank],
            "reduce_scatter_tensor": [30.0 + 3 * rank],
            "all_to_all_single": [rank, 10.0 + rank, 20.0 + rank],
            "all_to_all": [rank, 10.0 + rank, 20.0 + rank],
        }, rank


def point_to_point() -> list[float]:
    """To the next rank by three ways, from the one before."""
    rank, size = dist.get_rank(), dist.get_world_size()
    after, before = (rank + 1) % size, (rank - 1) % size
    received = torch.zeros(3)
    works = [dist.isend(torch.tensor([rank + 0.5]), after, tag=7), dist.irecv(received[0:1], before, tag=7)]
    for work in works:
        work.wait()
    if rank == 0:  # one after the other: these block
        dist.send(torch.tensor([100.0]), after)
        assert dist.recv(received[1:2]) == before  # from any
    else:
        assert dist.recv(received[1:2]) == before
        dist.send(received[1:2] + 1, after)
    batch = [
        dist.P2POp(dist.irecv, received[2:3], before),
        dist.P2POp(dist.isend, torch.tensor([float(rank)]), after),
    ]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    return received.tolist()


def test_point_to_point() -> None:
    expected = [[2.5, 102.0, 2.0], [0.5, 100.0, 0.0], [1.5, 101.0, 1.0]]
    assert run_ranks(point_to_point, 3, env=DETAIL) == expected


PAIRS: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
    "op": (lambda: dist.all_reduce(torch.ones(4)), lambda: dist.broadcast(torch.ones(4), 0)),
    "shape": (lambda: dist.all_reduce(torch.ones(4)), lambda: dist.all_reduce(torch.ones(5))),
    "dtype": (
        lambda: dist.all_reduce(torch.ones(4)),
        lambda: dist.all_reduce(torch.ones(4, dtype=torch.int32)),
    ),
}
SAYS = {
    "op": ("OpType=ALLREDUCE", "OpType=BROADCAST"),
    "shape": ("TensorShape=[4]", "TensorShape=[5]"),
    "dtype": ("TensorDtypes=Float", "TensorDtypes=Int"),
}


def mismatches() -> dict[str, str]:
    found = {}
    for kind, calls in PAIRS.items():
        try:
            calls[dist.get_rank()]()
        except RuntimeError as error:
            found[kind] = str(error)
    after = torch.ones(3)
    dist.all_reduce(after)
    assert after.tolist() == [2.0] * 3
    return found


def test_ranks_that_call_different_things() -> None:
    """An error on both, which shows both; nothing has reached the backend, and the group goes on."""
    for found in run_ranks(mismatches, 2, env=DETAIL):
        assert found.keys() == PAIRS.keys()
        for kind, text in found.items():
            assert "Detected mismatch between collectives on ranks" in text, text
            assert all(side in text for side in SAYS[kind]), text


def refused() -> tuple[str, str]:
    """The backend's own refusals come through the wrapper as they are."""
    try:
        dist.all_reduce(torch.ones(2), dist.ReduceOp.BAND)
    except Exception as error:
        return type(error).__name__, str(error)
    return "accepted", ""


def test_refusals_come_through() -> None:
    for kind, text in run_ranks(refused, 2, env=DETAIL):
        assert kind == "NotImplementedError" and "all_reduce seq 1 of group" in text, (kind, text)
