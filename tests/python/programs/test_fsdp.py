"""FSDP2 (`fully_shard`): every gradient and parameter, put together, is bit for bit that of one process.

The one process adds up what each rank's batch gives in the same way: reduced in the same type, divided once
at the end. gloo could not serve as the oracle: it has no PREMUL_SUM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from side_by_side import LIMIT, assert_same, whole_numbers
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.functional import mse_loss
from torch_ucc.testing import run_ranks

pytestmark = pytest.mark.multirank

STEPS = 3
Tensors = dict[str, torch.Tensor]


class Network(nn.Module):
    """Sizes that two ranks share unevenly; the last layer has fewer rows than there are ranks."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(nn.Linear(9, 9) for _ in range(3))
        self.head = nn.Linear(9, 1)
        self.scale = nn.Parameter(torch.randn(1))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            inputs = torch.tanh(block(inputs))
        return self.head(inputs) * self.scale


@dataclass(frozen=True)
class Case:
    """How a model is sharded, and what one process must do to get the same."""

    op: str  # of its reduce_scatter
    policy: MixedPrecisionPolicy = field(default_factory=MixedPrecisionPolicy)
    factor: float | None = None
    reduce_only_sums: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    accumulate: int = 1


CASES = {
    "default": Case("AVG"),
    "kept after forward": Case("AVG", options={"reshard_after_forward": False}),
    "sums": Case("SUM", reduce_only_sums=True),
    "factor 8": Case("PREMUL_SUM", factor=8.0),
    "factor 2": Case("AVG", factor=2.0),
    "reduced in bfloat16": Case("AVG", MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)),
    "computed in bfloat16": Case("AVG", MixedPrecisionPolicy(torch.bfloat16, torch.float32)),
    "all in bfloat16": Case("AVG", MixedPrecisionPolicy(torch.bfloat16, torch.bfloat16)),
    "bfloat16, factor 4": Case("PREMUL_SUM", MixedPrecisionPolicy(reduce_dtype=torch.bfloat16), factor=4.0),
    "reduced in float16": Case("SUM", MixedPrecisionPolicy(reduce_dtype=torch.float16)),
    "accumulated": Case("AVG", accumulate=2),
}


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(4, 9, generator=random), torch.randn(4, 1, generator=random)


def sharded(case: Case, mesh: Any = None) -> nn.Module:
    model = Network()
    for block in model.blocks:
        fully_shard(block, mp_policy=case.policy, mesh=mesh, **case.options)
    fully_shard(model, mp_policy=case.policy, mesh=mesh, **case.options)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            if case.factor is not None:
                module.set_gradient_divide_factor(case.factor)
            module.set_force_sum_reduction_for_comms(case.reduce_only_sums)
    return model


def whole(model: nn.Module) -> Tensors:
    """Weights and gradients in one piece."""
    found = {}
    for name, parameter in model.named_parameters():
        assert isinstance(parameter, DTensor) and isinstance(parameter.grad, DTensor), name
        found[name] = parameter.detach().full_tensor()
        found[f"gradient of {name}"] = parameter.grad.full_tensor()
    return found


def train(model: nn.Module, case: Case) -> Tensors:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(case.accumulate):
            assert isinstance(model, FSDPModule)
            model.set_requires_gradient_sync(part == case.accumulate - 1)
            inputs, targets = batch(step * case.accumulate + part, dist.get_rank())
            mse_loss(model(inputs).float(), targets).backward()
        optimizer.step()
    return whole(model)


def train_alone(case: Case, size: int, together: Callable[[list[torch.Tensor]], torch.Tensor]) -> Tensors:
    """`together` makes one gradient of those of all ranks."""
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    parameters = dict(model.named_parameters())
    for step in range(STEPS):
        by_rank: list[list[torch.Tensor]] = []
        for rank in range(size):
            computed = {name: value.detach() for name, value in parameters.items()}
            if case.policy.param_dtype is not None:
                computed = {name: value.to(case.policy.param_dtype) for name, value in computed.items()}
            leaves = {name: value.clone().requires_grad_() for name, value in computed.items()}
            for part in range(case.accumulate):
                inputs, targets = batch(step * case.accumulate + part, rank)
                inputs = inputs.to(case.policy.param_dtype or inputs.dtype)
                outputs = torch.func.functional_call(model, leaves, inputs)
                mse_loss(outputs.float(), targets).backward()
            by_rank.append([leaf.grad for leaf in leaves.values()])
        for parameter, gradients in zip(parameters.values(), zip(*by_rank, strict=True), strict=True):
            dtype = case.policy.reduce_dtype or gradients[0].dtype
            parameter.grad = together([gradient.to(dtype) for gradient in gradients]).to(torch.float32)
        optimizer.step()
    weights = {name: value.detach() for name, value in parameters.items()}
    return {**weights, **{f"gradient of {name}": value.grad for name, value in parameters.items()}}


def add(gradients: list[torch.Tensor], factor: float) -> torch.Tensor:
    """In float32 and rounded once, as every reduction of ours; exact division, by a power of two."""
    dtype = gradients[0].dtype
    return (sum(each.float() for each in gradients) / factor).to(dtype)


@contextmanager
def reduce_ops() -> Iterator[set[str]]:
    """The reduce ops that FSDP asks reduce_scatter for meanwhile."""
    found: set[str] = set()
    real = dist.reduce_scatter_single

    def noting(*args: Any, op: Any, **options: Any) -> Any:
        found.add(getattr(op, "op", op).name)
        return real(*args, op=op, **options)

    with mock.patch.object(dist, "reduce_scatter_single", noting):
        yield found


def all_cases() -> dict[str, tuple[Tensors, Tensors, set[str]]]:
    found = {}
    for name, case in CASES.items():
        factor = case.factor or 2.0
        with reduce_ops() as ops:
            ours = train(sharded(case), case)
        alone = train_alone(case, 2, lambda gradients, factor=factor: add(gradients, factor))
        found[name] = (ours, alone, ops)
    return found


@pytest.fixture(scope="module")
def results() -> list[dict[str, tuple[Tensors, Tensors, set[str]]]]:
    return run_ranks(all_cases, 2, timeout=LIMIT)


@pytest.mark.parametrize("case", CASES)
def test_fully_shard(results: list[dict[str, tuple[Tensors, Tensors, set[str]]]], case: str) -> None:
    for rank, found in enumerate(results):
        ours, alone, ops = found[case]
        assert ops == {CASES[case].op}
        assert_same({name: ours[name] for name in alone}, alone, f"rank {rank}")


def sum_of_pairs(gradients: list[torch.Tensor], factor: float) -> torch.Tensor:
    """Within the shards' groups first, then between their replicas."""
    return ((gradients[0] + gradients[1]) + (gradients[2] + gradients[3])) / factor


def replicated_shards() -> list[tuple[Tensors, Tensors]]:
    """Shards on two ranks, replicated on two (HSDP): reduce_scatter, then all_reduce."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    found = []
    for case, factor in ((Case("AVG"), 4.0), (Case("PREMUL_SUM", factor=16.0), 16.0)):
        ours = train(sharded(case, mesh), case)
        found.append(
            (ours, train_alone(case, 4, lambda gradients, factor=factor: sum_of_pairs(gradients, factor)))
        )
    return found


def test_shards_with_replicas() -> None:
    for rank, found in enumerate(run_ranks(replicated_shards, 4, timeout=LIMIT)):
        for ours, alone in found:
            assert_same({name: ours[name] for name in alone}, alone, f"rank {rank}")


def uneven_on_three() -> list[tuple[Tensors, Tensors]]:
    """Whole numbers, so that the sum of three is exact; dividing it by three rounds once."""
    found = []
    inputs = [whole_numbers(4, 5, seed=rank) for rank in range(3)]
    for factor in (None, 8.0):
        torch.manual_seed(0)
        model, alone = (nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 2)) for _ in range(2))
        for each in (model, alone):
            for i, parameter in enumerate(each.parameters()):
                parameter.data.copy_(whole_numbers(*parameter.shape, seed=10 + i))
        fully_shard(model[0])
        fully_shard(model)
        if factor is not None:
            for module in (model[0], model):
                module.set_gradient_divide_factor(factor)
        model(inputs[dist.get_rank()]).sum().backward()
        for each in inputs:
            alone(each).sum().backward()
        for parameter in alone.parameters():
            parameter.grad /= factor or 3.0
        expected = {name: value.detach() for name, value in alone.named_parameters()}
        expected |= {f"gradient of {name}": value.grad for name, value in alone.named_parameters()}
        found.append((whole(model), expected))
    return found


def test_shards_of_different_sizes() -> None:
    for rank, found in enumerate(run_ranks(uneven_on_three, 3, timeout=LIMIT)):
        for ours, alone in found:
            assert_same({name: ours[name] for name in alone}, alone, f"rank {rank}")
