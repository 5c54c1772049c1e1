"""Worker processes of a DataLoader, forked from a rank that uses ucc: they load beside it, and only that."""

from __future__ import annotations

import multiprocessing

import pytest
import torch
import torch.distributed as dist
from side_by_side import LIMIT, assert_same
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torch.utils.data.distributed import DistributedSampler
from torch_ucc.testing import run_ranks

pytestmark = pytest.mark.multirank


def train(workers: int) -> list[torch.Tensor]:
    """Two epochs; the workers of the second are forked between collectives, while others are still alive."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(40, 5), torch.randn(40, 1))
    model = DistributedDataParallel(nn.Linear(5, 1))
    sampler = DistributedSampler(data, seed=1)
    batches = DataLoader(
        data,
        batch_size=4,
        sampler=sampler,
        num_workers=workers,
        multiprocessing_context="fork" if workers else None,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for inputs, targets in batches:
            optimizer.zero_grad()
            mse_loss(model(inputs), targets).backward()
            optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def with_and_without() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    return train(2), train(0)


class Communicating(Dataset[torch.Tensor]):
    """What no worker may do."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, which: int) -> torch.Tensor:
        tensor = torch.ones(3)
        dist.all_reduce(tensor)
        return tensor


def refused() -> tuple[str, list[str], list[float]]:
    """In a worker, and in a plain child for some other calls; then the rank goes on as before."""
    tensor = torch.full((3,), 1.0 + dist.get_rank())
    dist.all_reduce(tensor)
    with pytest.raises(RuntimeError) as in_worker:
        next(iter(DataLoader(Communicating(), num_workers=1, multiprocessing_context="fork")))
    calls = {
        "broadcast": lambda: dist.broadcast(torch.ones(2), 0),
        "barrier": dist.barrier,
        "send": lambda: dist.send(torch.ones(2), 1 - dist.get_rank()),
        "recv": lambda: dist.recv(torch.ones(2), 1 - dist.get_rank()),
        "all_to_all_single": lambda: dist.all_to_all_single(torch.ones(2), torch.ones(2)),
        "new_group": lambda: dist.new_group([dist.get_rank()], use_local_synchronization=True),
    }
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()

    def child() -> None:
        for name, call in calls.items():
            try:
                call()
                queue.put(f"{name}: accepted")
            except Exception as error:
                queue.put(f"{name}: {error}")

    forked = context.Process(target=child)
    forked.start()
    texts = [queue.get() for _ in calls]
    forked.join()
    assert forked.exitcode == 0
    dist.all_reduce(tensor)
    return str(in_worker.value), texts, tensor.tolist()


def all_of_them() -> tuple[tuple[list[torch.Tensor], list[torch.Tensor]], tuple[str, list[str], list[float]]]:
    return with_and_without(), refused()


def test_workers_of_a_loader() -> None:
    for (with_workers, without), (in_worker, in_child, after) in run_ranks(all_of_them, 2, timeout=LIMIT):
        assert_same(with_workers, without, "compared with loading in the rank itself")
        assert "all_reduce" in in_worker and "was forked from" in in_worker, in_worker
        assert in_child and all("was forked from" in text for text in in_child), in_child
        assert after == [6.0] * 3
