"""What every framework here learns, and what it leaves: losses and weights, to be compared between backends.

A program is started as `PROGRAM BACKEND RESULT`, on each rank; rank 0 writes RESULT. BACKEND is ucc or gloo.
With gloo, a program makes its group as it would without torch-ucc, which may replace gloo in its processes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

WIDTH = 16
SAMPLES = 256  # over all ranks
BATCH = 16  # per rank
EPOCHS = 3
LEARNING_RATE = 0.05


def arguments() -> tuple[str, Path]:
    """(backend, where the result goes)."""
    if len(sys.argv) != 3:
        sys.exit(f"usage: {sys.argv[0]} BACKEND RESULT")
    return sys.argv[1], Path(sys.argv[2]).absolute()


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 64), nn.Tanh(), nn.Linear(64, 1))


def data() -> TensorDataset:
    random = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, WIDTH, generator=random)
    return TensorDataset(inputs, inputs[:, :4].sum(dim=1, keepdim=True))


def mean_over_ranks(loss: torch.Tensor) -> float:
    total = loss.detach().clone()
    dist.all_reduce(total)
    return float(total) / dist.get_world_size()


def save(path: Path, losses: Sequence[float], model: nn.Module) -> None:
    """Called by every rank, before the group is destroyed; `losses` one a step."""
    weights = weights_of(model)
    if dist.get_rank() == 0:
        write(path, losses, weights, dist.get_backend(), made_by(), dist.get_world_size())


def weights_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in model.state_dict().items()}


def write(
    path: Path,
    losses: Sequence[float],
    weights: dict[str, torch.Tensor],
    backend: str,
    maker: str,
    ranks: int,
) -> None:
    """What compare.py reads. For a program without torch's default group; others call `save`."""
    result = {"backend": backend, "made_by": maker, "ranks": ranks}
    torch.save({**result, "losses": [*losses], "weights": weights}, path)


def made_by(group: dist.ProcessGroup | None = None) -> str:
    """The class of the object that serves the CPU tensors of a group, by default of the default one."""
    served_by = (group or dist.group.WORLD)._get_backend(torch.device("cpu"))
    return type(served_by).__name__
