"""DistributedDataParallel in its variants: the parameters after training are those of gloo, bit for bit.

Where no hook changes the gradients they are also those of one process that sees every rank's data: half of
each rank's loss is exact, and the sum of two gradients has one order.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from side_by_side import LIMIT, assert_same, run_both, whole_numbers
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, post_localSGD_hook, powerSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch_ucc.testing import run_ranks

pytestmark = pytest.mark.multirank

Result = dict[str, torch.Tensor]

STEPS = 4
SMALL_BUCKETS = {"bucket_cap_mb": 1e-4}  # of 100 bytes: once they have been rebuilt, there are five


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 4))


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(6, 12, generator=random), torch.randint(0, 4, (6,), generator=random)


def result(model: nn.Module) -> Result:
    tensors = {name: value.detach().clone() for name, value in model.state_dict().items()}
    gradients = {
        f"gradient of {name}": parameter.grad.detach().clone()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    return {name.replace("module.", ""): value for name, value in {**tensors, **gradients}.items()}


def train(model: nn.Module, accumulate: int = 1) -> Result:
    """SGD on this rank's batches."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(accumulate):
            with nullcontext() if part == accumulate - 1 else model.no_sync():
                inputs, targets = batch(step * accumulate + part, dist.get_rank())
                cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    return result(model)


def train_alone(model: nn.Module, accumulate: int = 1) -> Result:
    """The same on the batches of two ranks, with the mean of their gradients."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(STEPS):
        halves: list[list[torch.Tensor]] = [[] for _ in model.parameters()]
        for rank in range(2):
            optimizer.zero_grad()
            for part in range(accumulate):
                inputs, targets = batch(step * accumulate + part, rank)
                cross_entropy(model(inputs), targets).backward()
            for found, parameter in zip(halves, model.parameters(), strict=True):
                if parameter.grad is not None:
                    found.append(
                        (parameter.grad.coalesce() if parameter.grad.is_sparse else parameter.grad) / 2
                    )
        for found, parameter in zip(halves, model.parameters(), strict=True):
            parameter.grad = found[0] + found[1] if len(found) == 2 else found[0] if found else None
        optimizer.step()
    return result(model)


def hooked(hook: Callable[..., Any], state: object = None, **options: Any) -> Result:
    model = DistributedDataParallel(network(), **(options or SMALL_BUCKETS))
    model.register_comm_hook(state, hook)
    return train(model)


def bf16_hook(state, bucket):  # DDP asks of annotations that they are types, not their names
    """By another name: DDP refuses that of torch's own without NCCL, though nothing in it needs NCCL."""
    return default_hooks.bf16_compress_hook(state, bucket)


def power_sgd(hook: Callable[..., Any], **options: Any) -> Result:
    """In one bucket: its callbacks communicate, and those of several would on CPUs run in an order of their
    own on every rank."""
    options = {"matrix_approximation_rank": 1, "start_powerSGD_iter": 2, "random_seed": 3, **options}
    return hooked(hook, powerSGD_hook.PowerSGDState(None, **options), bucket_cap_mb=25)


class Branches(nn.Module):
    """The data say which of three heads a rank takes, so that some are unused on one rank, some on both."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = network()
        self.heads = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        which = int(inputs[0, 0].abs() * 1000) % 3
        return self.heads[which](self.trunk(inputs))


class Recomputed(nn.Module):
    """A layer used twice under reentrant checkpointing, and one never used: for static graphs only."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.twice, self.last = nn.Linear(12, 20), nn.Linear(20, 20), nn.Linear(20, 4)
        self.never = nn.Linear(5, 5)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        inner = torch.relu(self.first(inputs))
        for _ in range(2):
            inner = checkpoint(lambda x: torch.relu(self.twice(x)), inner, use_reentrant=True)
        return self.last(inner)


class Normalised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layers(inputs)


class Bags(nn.Module):
    """Embeddings with sparse gradients; the rows that a rank uses come from its data, with repetitions."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.Embedding(50, 6, sparse=True), nn.Linear(6, 4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        rows = (inputs * 10).round().long() % 50
        return self.head(self.table(rows).mean(dim=1))


def post_local_sgd() -> Result:
    """Gradients are averaged for two steps, then within a group of one; parameters every second step."""
    alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]
    model = DistributedDataParallel(network(), **SMALL_BUCKETS)
    state = post_localSGD_hook.PostLocalSGDState(None, alone, start_localSGD_iter=2)
    model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    optimizer = PostLocalSGDOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.5), PeriodicModelAverager(period=2, warmup_steps=2)
    )
    for step in range(5):
        inputs, targets = batch(step, dist.get_rank())
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    return result(model)


def reduced_precision(dtype: torch.dtype) -> Result:
    model = DistributedDataParallel(network().to(dtype), **SMALL_BUCKETS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(STEPS):
        inputs, targets = batch(step, dist.get_rank())
        optimizer.zero_grad()
        cross_entropy(model(inputs.to(dtype)).float(), targets).backward()
        optimizer.step()
    return result(model)


DDP = DistributedDataParallel
VARIANTS: dict[str, Callable[[], Result]] = {
    "one bucket": lambda: train(DDP(network())),
    "small buckets": lambda: train(DDP(network(), **SMALL_BUCKETS)),
    "gradients are views": lambda: train(DDP(network(), gradient_as_bucket_view=True, **SMALL_BUCKETS)),
    "accumulated": lambda: train(DDP(network(), **SMALL_BUCKETS), accumulate=3),
    "unused parameters": lambda: train(DDP(Branches(), find_unused_parameters=True, **SMALL_BUCKETS)),
    "static graph": lambda: train(DDP(Recomputed(), static_graph=True, **SMALL_BUCKETS)),
    "sparse gradients": lambda: train(DDP(Bags(), **SMALL_BUCKETS)),
    "allreduce hook": lambda: hooked(default_hooks.allreduce_hook),
    "buffers": lambda: train(DDP(Normalised(), **SMALL_BUCKETS)),
    "float64": lambda: reduced_precision(torch.float64),
    "bfloat16": lambda: reduced_precision(torch.bfloat16),
    "fp16 hook": lambda: hooked(default_hooks.fp16_compress_hook),
    "bf16 hook": lambda: hooked(bf16_hook),
    "PowerSGD": lambda: power_sgd(powerSGD_hook.powerSGD_hook),
    "PowerSGD of rank 2": lambda: power_sgd(
        powerSGD_hook.powerSGD_hook, matrix_approximation_rank=2, batch_tensors_with_same_shape=True
    ),
    "PowerSGD in fp16": lambda: power_sgd(default_hooks.fp16_compress_wrapper(powerSGD_hook.powerSGD_hook)),
    "post-local SGD": post_local_sgd,
}

# What one process does that has all the data.
ALONE: dict[str, Callable[[], Result]] = {
    **dict.fromkeys(
        ("one bucket", "small buckets", "gradients are views", "allreduce hook"),
        lambda: train_alone(network()),
    ),
    "accumulated": lambda: train_alone(network(), accumulate=3),
    "unused parameters": lambda: train_alone(Branches()),
    "static graph": lambda: train_alone(Recomputed()),
    "sparse gradients": lambda: train_alone(Bags()),
}


def all_variants() -> dict[str, tuple[Result, Result | None]]:
    return {name: (run(), ALONE[name]() if name in ALONE else None) for name, run in VARIANTS.items()}


@pytest.fixture(scope="module")
def results() -> list[dict[str, tuple[Result, Result | None]]]:
    return run_both(all_variants, 2)


@pytest.mark.parametrize("variant", VARIANTS)
def test_ddp(results: list[dict[str, tuple[Result, Result | None]]], variant: str) -> None:
    first, second = (each[variant] for each in results)
    if variant != "post-local SGD":
        buffers = ("running_mean", "running_var")  # each rank updates its own after rank 0's have come
        shared = [{k: v for k, v in each[0].items() if not k.endswith(buffers)} for each in (first, second)]
        assert_same(shared[1], shared[0], "rank 1, compared with rank 0")
    for ours, alone in (first, second):
        if alone is not None:
            assert_same(ours, alone, "compared with one process")


def buckets_of_a_step() -> tuple[list[int], list[int]]:
    """Indices of the buckets in the first step, and once they have been rebuilt."""
    model = DistributedDataParallel(network(), **SMALL_BUCKETS)
    seen: list[int] = []

    def hook(state, bucket):
        seen.append(bucket.index())
        return default_hooks.allreduce_hook(None, bucket)

    model.register_comm_hook(None, hook)
    by_step = []
    for step in range(2):
        inputs, targets = batch(step, dist.get_rank())
        cross_entropy(model(inputs), targets).backward()
        by_step.append(sorted(seen))
        seen.clear()
    return by_step[0], by_step[1]


def synchronised_norm() -> tuple[str, str]:
    model = nn.SyncBatchNorm.convert_sync_batchnorm(Normalised())
    inputs, _ = batch(0, dist.get_rank())
    assert torch.equal(model.eval()(inputs), Normalised().eval()(inputs))
    with pytest.raises(ValueError) as in_training:
        model.train()(inputs)
    with pytest.raises(ValueError) as in_ddp:
        DistributedDataParallel(model)
    return str(in_training.value), str(in_ddp.value)


def premises() -> tuple[Any, Any]:
    return buckets_of_a_step(), synchronised_norm()


def test_premises() -> None:
    """Small buckets are several; and all that torch has of SyncBatchNorm on CPUs needs no communication."""
    for (first, rebuilt), (in_training, in_ddp) in run_ranks(premises, 2, timeout=LIMIT):
        assert first == [0] and len(rebuilt) == 5, (first, rebuilt)
        assert in_training.startswith("SyncBatchNorm expected input tensor to be on GPU"), in_training
        assert in_ddp == "SyncBatchNorm layers only work with GPU modules", in_ddp


def whole_number_network() -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3))
    with torch.no_grad():
        for i, parameter in enumerate(model.parameters()):
            parameter.copy_(whole_numbers(*parameter.shape, seed=i))
    return model


def exact_on_four() -> tuple[Result, Result]:
    """Everything is a multiple of 1/16 below 2**16: no sum of four rounds, in whatever order."""
    results = []
    for model, ranks in (
        (DistributedDataParallel(whole_number_network(), bucket_cap_mb=1e-4), [dist.get_rank()]),
        (whole_number_network(), range(4)),
    ):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
        for step in range(2):
            optimizer.zero_grad()
            for rank in ranks:
                inputs = whole_numbers(4, 6, seed=10 * step + rank)
                targets = whole_numbers(4, 3, seed=10 * step + rank + 100)
                ((model(inputs) * targets).sum() / (4 if len(ranks) == 4 else 1)).backward()
            optimizer.step()
        results.append(result(model))
    return results[0], results[1]


def test_on_four_ranks() -> None:
    for rank, (ours, alone) in enumerate(run_ranks(exact_on_four, 4, timeout=LIMIT)):
        assert_same(ours, alone, f"rank {rank}, compared with one process")
