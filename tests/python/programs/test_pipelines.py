"""Pipeline schedules: activations and gradients cross ranks unchanged, so all bits are those of one process.

Every stage meets the microbatches in their order, and a gradient is the sum over them, divided at the end.
Two pipelines side by side average their gradients: a sum of two has one order.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from side_by_side import LIMIT, assert_same
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.nn.functional import mse_loss
from torch_ucc.testing import run_ranks

pytestmark = pytest.mark.multirank

Results = dict[str, Any]
Losses = list[list[float]]

CPU = torch.device("cpu")
MICROBATCHES = 4
STEPS = 2


def layer(stage: int) -> nn.Module:
    """Stages have inputs of different widths, so a message that goes astray is noticed."""
    torch.manual_seed(stage)
    return nn.Sequential(nn.Linear(6 + stage, 7 + stage), nn.Tanh())


def batch(step: int, replica: int, stages: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(10 * step + replica)
    rows = 3 * MICROBATCHES
    return torch.randn(rows, 6, generator=random), torch.randn(rows, 6 + stages, generator=random)


def state(modules: dict[int, nn.Module]) -> Results:
    return {
        f"{stage}.{name}": (parameter.detach().clone(), parameter.grad.clone())
        for stage, module in modules.items()
        for name, parameter in module.named_parameters()
    }


def alone(stages: int, replicas: int) -> tuple[Results, list[Losses]]:
    """Weights and gradients, and the losses of each replica by step and microbatch."""
    modules = {stage: layer(stage) for stage in range(stages)}
    model = nn.Sequential(*modules.values())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses: list[Losses] = [[] for _ in range(replicas)]
    for step in range(STEPS):
        gradients = []
        for replica in range(replicas):
            optimizer.zero_grad()
            losses[replica].append([])
            inputs, targets = (each.chunk(MICROBATCHES) for each in batch(step, replica, stages))
            for one, target in zip(inputs, targets, strict=True):
                loss = mse_loss(model(one), target)
                loss.backward()
                losses[replica][-1].append(float(loss.detach()))
            gradients.append([parameter.grad / MICROBATCHES for parameter in model.parameters()])
        for parameter, found in zip(model.parameters(), zip(*gradients, strict=True), strict=True):
            parameter.grad = sum(found) / replicas
        optimizer.step()
    return state(modules), losses


def pipeline(schedule: type, stages_per_rank: int, mesh: DeviceMesh) -> tuple[Results, Losses | None]:
    """This rank's weights and gradients at the end, and the losses where the last stage is.

    The mesh is (replicas, stages); gradients are averaged over the replicas.
    """
    (replica, rank), size = mesh.get_coordinate(), mesh.size(1)
    count = size * stages_per_rank
    modules = {which: layer(which) for which in range(rank, count, size)}
    stages = [
        PipelineStage(each, which, count, CPU, group=mesh.get_group(1)) for which, each in modules.items()
    ]
    run = schedule(stages[0] if stages_per_rank == 1 else stages, MICROBATCHES, loss_fn=mse_loss)
    parameters = [parameter for module in modules.values() for parameter in module.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.5)
    seen = []
    for step in range(STEPS):
        optimizer.zero_grad()
        inputs, targets = batch(step, replica, count)
        losses: list[torch.Tensor] = []
        first, last = rank == 0, rank == size - 1
        run.step(*([inputs] if first else []), **({"target": targets, "losses": losses} if last else {}))
        for parameter in parameters:
            dist.all_reduce(parameter.grad, dist.ReduceOp.AVG, group=mesh.get_group(0))
        optimizer.step()
        seen.append([float(loss.detach()) for loss in losses])
    return state(modules), seen if last else None


def schedules(mesh_shape: tuple[int, int]) -> dict[str, tuple[Any, Any]]:
    mesh = init_device_mesh("cpu", mesh_shape)
    found = {}
    for schedule, stages_per_rank in ((ScheduleGPipe, 1), (Schedule1F1B, 1), (ScheduleInterleaved1F1B, 2)):
        ours, losses = pipeline(schedule, stages_per_rank, mesh)
        weights, by_replica = alone(mesh.size(1) * stages_per_rank, mesh.size(0))
        expected = by_replica[mesh.get_local_rank(0)] if losses is not None else None
        found[schedule.__name__] = ((ours, losses), ({name: weights[name] for name in ours}, expected))
    return found


@pytest.mark.parametrize("mesh_shape", [(1, 3), (1, 4), (2, 2)], ids=str)
def test_schedules(mesh_shape: tuple[int, int]) -> None:
    replicas, stages = mesh_shape
    results = run_ranks(schedules, replicas * stages, mesh_shape, timeout=LIMIT)
    assert sum(found["ScheduleGPipe"][0][1] is not None for found in results) == replicas
    for rank, found in enumerate(results):
        for name, (ours, expected) in found.items():
            assert_same(ours, expected, f"{name} on rank {rank}")
