"""The tensors of a failed operation belong to the caller, whatever late ranks still send."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch_ucc._torch import all_gather_single, reduce_scatter_single
from torch_ucc.testing import run_ranks

MINE = 100.0
"""What the caller writes once it has the error."""

SOON = {"TORCH_UCC_CLOSE_TIMEOUT": "500ms"}
"""For groups that cannot close well: the ranks need not wait for each other long."""

Tensors = list[torch.Tensor]


def ones(numel: int) -> torch.Tensor:
    return torch.ones(numel)


def _list(numel: int) -> Tensors:
    return [torch.ones(numel) for _ in range(2)]


def _all_to_all_single(numel: int, group: dist.ProcessGroup) -> tuple[Tensors, Callable[[], object]]:
    output, source = ones(2 * numel), ones(2 * numel)
    return [output, source], lambda: dist.all_to_all_single(output, source, group=group)


def calls(op: str, numel: int, group: dist.ProcessGroup, rank: int) -> tuple[Tensors, Callable[[], object]]:
    """The tensors of a call, and the call. Rank 0 gets data of rank 1 wherever it can."""
    one, two, three = ones(numel), _list(numel), ones(numel * 2)
    match op:
        case "all_reduce":
            return [one], lambda: dist.all_reduce(one, group=group)
        case "all_reduce of bfloat16":
            half = one.bfloat16()
            return [half], lambda: dist.all_reduce(half, group=group)
        case "all_reduce of a column":
            column = three.view(-1, 2)[:, 0]
            return [three], lambda: dist.all_reduce(column, group=group)
        case "reduce":
            return [one], lambda: dist.reduce(one, 0, group=group)
        case "broadcast":
            return [one], lambda: dist.broadcast(one, 1, group=group)
        case "broadcast of the caller's":
            return [one], lambda: dist.broadcast(one, 0, group=group)
        case "all_gather":
            return [one, *two], lambda: dist.all_gather(two, one, group=group)
        case "all_gather_into_tensor":
            return [one, three], lambda: all_gather_single(three, one, group=group)
        case "reduce_scatter":
            return [one, *two], lambda: dist.reduce_scatter(one, two, group=group)
        case "reduce_scatter_tensor":
            return [one, three], lambda: reduce_scatter_single(one, three, group=group)
        case "gather":
            outputs = two if rank == 0 else None
            return [one, *two], lambda: dist.gather(one, outputs, 0, group=group)
        case "scatter":
            inputs = two if rank == 1 else None
            return [one, *two], lambda: dist.scatter(one, inputs, 1, group=group)
        case "all_to_all_single":
            return _all_to_all_single(numel, group)
        case "message to the caller":
            peer = 1 - rank
            return [
                one
            ], lambda: dist.recv(one, peer, group=group) if rank == 0 else dist.send(one, peer, group=group)
        case "message of the caller":
            peer = 1 - rank
            return [
                one
            ], lambda: dist.send(one, peer, group=group) if rank == 0 else dist.recv(one, peer, group=group)
    raise ValueError(op)


OPS = [
    "all_reduce",
    "all_reduce of bfloat16",
    "all_reduce of a column",
    "reduce",
    "broadcast",
    "broadcast of the caller's",
    "all_gather",
    "all_gather_into_tensor",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "gather",
    "scatter",
    "all_to_all_single",
    "message to the caller",
    "message of the caller",
]

SIZES = [1, 1000, 40_000, 1_500_000]
"""Elements: small enough for one message, for several, and for several pieces."""


def meets_a_late_rank(op: str, then: str) -> list[str]:
    """Rank 1 comes once rank 0 has given the operation up and done as it likes with the tensors."""
    rank, store, wrong = dist.get_rank(), dist.distributed_c10d._get_default_store(), []
    for numel in SIZES:
        group = dist.new_group([0, 1], timeout=timedelta(seconds=0.3 if rank == 0 else 2))
        tensors, call = calls(op, numel, group, rank)
        key = f"test/{op}/{numel}"
        if rank == 0:
            try:
                call()
            except dist.DistBackendError as error:
                assert "timed out" in str(error), error
            else:
                # Nothing has to come from the late rank: what was sent waits for it.
                assert op in ("broadcast of the caller's", "message of the caller"), op
            for tensor in tensors:
                if then == "write":
                    tensor.fill_(MINE)
                else:
                    tensor.untyped_storage().resize_(0)
            store.set(key, "given up")
        else:
            store.wait([key], timedelta(seconds=60))
            try:
                call()
            except dist.DistBackendError:
                pass
            else:
                wrong += [f"{key}: rank 1 has {each}" for each in strange_values(tensors)]
        # In a group that is well rank 0 drives what rank 1 has sent to the other one.
        for _ in range(20):
            total = torch.ones(30_000)
            dist.all_reduce(total)
            if not bool((total == 2).all()):
                wrong.append(f"{key}: the world's all_reduce gave {total[:3].tolist()}")
        if rank == 0 and then == "write":
            wrong += [f"{key}: rank 0 has {each}" for each in strange_values(tensors, MINE)]
    return wrong


def strange_values(tensors: Tensors, *expected: float) -> list[list[float]]:
    """Values that the tensors may not have: with ones on both ranks results are ones or twos."""
    allowed = torch.tensor(expected or [1.0, 2.0])
    found = [tensor.float().unique() for tensor in tensors]
    return [values.tolist() for values in found if not bool(torch.isin(values, allowed).all())]


@pytest.mark.parametrize("op", OPS)
def test_late_data_reaches_no_tensor_of_the_caller(op: str) -> None:
    for wrong in run_ranks(meets_a_late_rank, 2, op, "write", timeout=120, env=SOON):
        assert not wrong, wrong


@pytest.mark.parametrize("op", OPS)
def test_a_storage_may_be_freed_after_the_error(op: str) -> None:
    """As FSDP1 frees the storage of parameters."""
    for wrong in run_ranks(meets_a_late_rank, 2, op, "free", timeout=120, env=SOON):
        assert not wrong, wrong


@pytest.mark.parametrize("op", ["all_reduce", "broadcast", "message to the caller"])
def test_the_same_over_tcp(op: str) -> None:
    """Where UCX may hold parts of what the late rank sent, and asks for the rest."""
    env = {**SOON, "UCX_TLS": "tcp,self"}
    for wrong in run_ranks(meets_a_late_rank, 2, op, "write", timeout=120, env=env):
        assert not wrong, wrong
