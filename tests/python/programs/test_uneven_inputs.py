"""Ranks that run out of inputs at different times (`join`); optimizers that share their state out (ZeRO)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from side_by_side import assert_same, run_both
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

pytestmark = pytest.mark.multirank

Weights = list[torch.Tensor]
Optimizers = Callable[[Any], torch.optim.Optimizer]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 40), nn.Tanh(), nn.Linear(40, 30), nn.Tanh(), nn.Linear(30, 2))


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(5, 7, generator=random), torch.randn(5, 2, generator=random)


def steps_of(rank: int) -> int:
    return 3 + 2 * rank


def wrapped() -> DistributedDataParallel:
    return DistributedDataParallel(network(), bucket_cap_mb=1e-4)


def weights(model: nn.Module) -> Weights:
    return [parameter.detach().clone() for parameter in model.parameters()]


def step_of(model: nn.Module, optimizer: torch.optim.Optimizer, step: int, ranks: list[int]) -> None:
    """One step on the batches of `ranks`; each has half the weight where there are two, or one is missing."""
    optimizer.zero_grad()
    scale = 1.0 if isinstance(model, DistributedDataParallel) else 0.5
    for rank in ranks:
        inputs, targets = batch(step, rank)
        (mse_loss(model(inputs), targets) * scale).backward()
    optimizer.step()


def alone(optimizers: Optimizers, even: bool) -> tuple[nn.Module, torch.optim.Optimizer]:
    """One process with the data of both ranks, for as long as either has any, or each has."""
    model = network()
    optimizer = optimizers(model.parameters())
    for step in range((min if even else max)(map(steps_of, range(2)))):
        step_of(model, optimizer, step, [rank for rank in range(2) if step < steps_of(rank)])
    return model, optimizer


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


def sharded_adam(parameters: Any, **options: Any) -> ZeroRedundancyOptimizer:
    return ZeroRedundancyOptimizer(parameters, torch.optim.Adam, lr=0.01, **options)


def joined() -> tuple[Weights, Weights]:
    """What every rank ends with (the one with fewer inputs is given it), and what one process does."""
    rank = dist.get_rank()
    model = wrapped()
    optimizer = sgd(model.parameters())
    with model.join():
        for step in range(steps_of(rank)):
            step_of(model, optimizer, step, [rank])
    return weights(model), weights(alone(sgd, even=False)[0])


def join_with_zero() -> tuple[Weights, None]:
    """A rank that has ended goes on to update its share by its last gradients; one process does not."""
    rank = dist.get_rank()
    model = wrapped()
    optimizer = sharded_adam(model.parameters())
    with Join([model, optimizer]):
        for step in range(steps_of(rank)):
            step_of(model, optimizer, step, [rank])
    return weights(model), None


def ended_early() -> tuple[Any, Any]:
    """Both ranks stop when the first has no more, and can go on."""
    rank, model = dist.get_rank(), wrapped()
    optimizer = sgd(model.parameters())
    done = 0
    with pytest.raises(RuntimeError, match="exhausted"), model.join(throw_on_early_termination=True):
        for step in range(steps_of(rank)):
            step_of(model, optimizer, step, [rank])
            done += 1
    total = torch.ones(3)
    dist.all_reduce(total)
    return (done, total), (steps_of(0), torch.full((3,), 2.0))


def zero(**options: Any) -> tuple[Any, Any]:
    """The weights, and on rank 0 the optimizer's state gathered from all."""
    rank = dist.get_rank()
    expected, reference = alone(adam, even=True)
    model = wrapped()
    optimizer = sharded_adam(model.parameters(), **options)
    held = sum(parameter.numel() for parameter in optimizer.optim.param_groups[0]["params"])
    assert 0 < held < sum(parameter.numel() for parameter in model.parameters())
    for step in range(steps_of(0)):
        step_of(model, optimizer, step, [rank])
    optimizer.consolidate_state_dict(to=0)
    states = (optimizer.state_dict()["state"], reference.state_dict()["state"]) if rank == 0 else (0, 0)
    return (weights(model), states[0]), (weights(expected), states[1])


def restored() -> tuple[Weights, Weights]:
    """A run that goes on from a state gathered after three steps, and the one that it was gathered from."""
    rank = dist.get_rank()
    straight = wrapped()
    optimizer = sharded_adam(straight.parameters())
    saved: list[Any] = [None, None]
    for step in range(6):
        if step == 3:
            optimizer.consolidate_state_dict(to=1)
            if rank == 1:
                saved = copy.deepcopy([optimizer.state_dict(), straight.state_dict()])
            dist.broadcast_object_list(saved, src=1)
        step_of(straight, optimizer, step, [rank])
    again = wrapped()
    again.load_state_dict(saved[1])
    optimizer = sharded_adam(again.parameters())
    optimizer.load_state_dict(saved[0])
    for step in range(3, 6):
        step_of(again, optimizer, step, [rank])
    return weights(again), weights(straight)


PROGRAMS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "join": joined,
    "join of model and optimizer": join_with_zero,
    "join that ends early": ended_early,
    "ZeRO": zero,
    "ZeRO with views": lambda: zero(parameters_as_bucket_view=True),
    "ZeRO restored": restored,
}


def all_programs() -> dict[str, tuple[Any, Any]]:
    """What each has on this rank, and what it should have by what one process does, where one can do it."""
    return {name: program() for name, program in PROGRAMS.items()}


@pytest.fixture(scope="module")
def results() -> list[dict[str, tuple[Any, Any]]]:
    return run_both(all_programs, 2)


@pytest.mark.parametrize("program", PROGRAMS)
def test_program(results: list[dict[str, tuple[Any, Any]]], program: str) -> None:
    for rank, found in enumerate(results):
        ours, expected = found[program]
        if expected is not None:
            assert_same(ours, expected, f"rank {rank}, compared with one process")
