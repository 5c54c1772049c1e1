"""DDP and FSDP2 (`fully_shard`) on an accelerator that the ranks share come to the weights of one process."""

from __future__ import annotations

from collections.abc import Callable

import accelerators
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch_ucc.testing import run_ranks

pytestmark = pytest.mark.multirank

STEPS = 6
Weights = list[torch.Tensor]


def network(device: str) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 65), nn.ReLU(), nn.Linear(65, 7)).to(
        device
    )


def loss(model: nn.Module, step: int, rank: int, device: str) -> torch.Tensor:
    random = torch.Generator().manual_seed(100 * step + rank)
    inputs, targets = torch.randn(16, 32, generator=random), torch.randint(0, 7, (16,), generator=random)
    return cross_entropy(model(inputs.to(device)), targets.to(device))


def alone(device: str, size: int) -> Weights:
    model = network(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(STEPS):
        optimizer.zero_grad()
        for rank in range(size):
            (loss(model, step, rank, device) / size).backward()
        optimizer.step()
    return [each.detach().cpu() for each in model.parameters()]


def together(model: nn.Module, device: str) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss(model, step, dist.get_rank(), device).backward()
        optimizer.step()


def replicated(device: str) -> Weights:
    """In buckets of a few KB, of which several are under way at once."""
    model = DistributedDataParallel(network(device), bucket_cap_mb=0.005)
    together(model, device)
    return [each.detach().cpu() for each in model.parameters()]


def sharded(device: str) -> Weights:
    model = network(device)
    mesh = init_device_mesh(accelerators.TYPE, (dist.get_world_size(),))
    for each in model:
        fully_shard(each, mesh=mesh)
    fully_shard(model, mesh=mesh)
    together(model, device)
    weights = []
    for each in model.parameters():
        assert isinstance(each, DTensor)
        weights.append(each.detach().full_tensor().cpu())
    return weights


def difference(train: Callable[[str], Weights], device_of_its_own: bool = False) -> float:
    """The largest of a weight."""
    index = dist.get_rank() if device_of_its_own else 0
    device = accelerators.device(index)
    torch.accelerator.set_device_index(index)
    ours, right = train(device), alone(device, dist.get_world_size())
    assert accelerators.memory_faults() == 0
    return max(float((a - b).abs().max()) for a, b in zip(ours, right, strict=True))


@pytest.mark.parametrize("train", [replicated, sharded])
@pytest.mark.parametrize("backend", ["ucc", "{}:ucc", "cpu:ucc,{}:ucc"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_training(train: Callable[[str], Weights], backend: str, ranks: int) -> None:
    found = run_ranks(difference, ranks, train, backend=backend.format(accelerators.TYPE), timeout=180.0)
    assert max(found) < 1e-5, found


def beside_nccl(train: Callable[[str], Weights]) -> float:
    found = difference(train, device_of_its_own=True)
    on_host = torch.ones(3)
    dist.all_reduce(on_host)
    assert on_host.tolist() == [float(dist.get_world_size())] * 3
    return found


@pytest.mark.skipif(accelerators.TYPE != "cuda" or not dist.is_nccl_available(), reason="there is no NCCL")
@pytest.mark.parametrize("train", [replicated, sharded])
def test_training_beside_nccl(train: Callable[[str], Weights]) -> None:
    """Which has no two ranks on one device."""
    ranks = min(accelerators.count(), 4)
    found = run_ranks(beside_nccl, ranks, train, backend="cpu:ucc,cuda:nccl", timeout=180.0)
    assert max(found) < 1e-5, found
