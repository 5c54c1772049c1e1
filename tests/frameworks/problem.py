"""What every framework here learns, and what it leaves: losses and weights, to be compared between backends.

A program is started as `PROGRAM BACKEND RESULT`, on each rank; rank 0 writes RESULT. BACKEND is ucc or gloo.
With gloo, a program makes its group as it would without torch-ucc, which may replace gloo in its processes.
A program that cases.py has several cases for is started as `PROGRAM BACKEND RESULT CASE`.

With TRAIN_TIMED=1 in the environment a program measures the time of a step: networks are larger, there are
more steps, and the result has the seconds from the end of each step of the optimizer to the next.
"""

from __future__ import annotations

import atexit
import gc
import itertools
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from cases import CASES, Case
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import TensorDataset

TIMED = os.environ.get("TRAIN_TIMED") == "1"
WIDTH, HIDDEN = (256, 8192) if TIMED else (16, 64)  # timed: 8.4 MB of gradients
LONGER = 8 if TIMED else 1  # times as many steps
SAMPLES = 256 * LONGER  # over all ranks
BATCH = 16  # per rank
EPOCHS = 3
EPOCHS_BEFORE = 1  # the checkpoint of a training that resumes
LEARNING_RATE = 3.2 / HIDDEN

ends_of_steps: list[float] = []
if TIMED:
    register_optimizer_step_post_hook(lambda *_: ends_of_steps.append(time.perf_counter()))


def arguments() -> tuple[str, Path]:
    """(backend, where the result goes)."""
    if len(sys.argv) != 3:
        sys.exit(f"usage: {sys.argv[0]} BACKEND RESULT")
    return sys.argv[1], Path(sys.argv[2]).absolute()


def arguments_for(framework: str) -> tuple[str, Path, Case]:
    """(backend, where the result goes, what to train)."""
    cases = CASES[framework]
    if len(sys.argv) != 4 or sys.argv[3] not in cases:
        sys.exit(f"usage: {sys.argv[0]} BACKEND RESULT {'|'.join(cases)}")
    return sys.argv[1], Path(sys.argv[2]).absolute(), cases[sys.argv[3]]


def network(seed: int = 0) -> nn.Module:
    """The network that learns. A network that is to load a checkpoint has another seed."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 1))


def data(dtype: torch.dtype = torch.float32) -> TensorDataset:
    random = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, WIDTH, generator=random)
    return TensorDataset(inputs.to(dtype), inputs[:, :4].sum(dim=1, keepdim=True).to(dtype))


def parts(case: Case) -> list[range]:
    """The epochs of each part of a training: two parts if it resumes from a checkpoint, else one."""
    if not case.resumes:
        return [range(EPOCHS)]
    return [range(EPOCHS_BEFORE), range(EPOCHS_BEFORE, EPOCHS)]


def mean_over_ranks(loss: torch.Tensor) -> float:
    total = loss.detach().float().clone()
    dist.all_reduce(total)
    return float(total) / dist.get_world_size()


def save(path: Path, losses: Sequence[float], model: nn.Module) -> None:
    """Called by every rank, before the group is destroyed; `losses` one a step."""
    weights = weights_of(model)
    if dist.get_rank() == 0:
        write(path, losses, weights, dist.get_backend(), made_by(), dist.get_world_size())


@atexit.register
def destroy_groups() -> None:
    """Destroys all groups that are left, once nothing but cycles refers to the objects of the training.

    Threads of gloo end only with the last object that keeps their group. Ranks over gloo that left this to
    the end of the interpreter sometimes ended with SIGABRT, or never.
    """
    if dist.is_initialized():
        dist.destroy_process_group()
    gc.collect()


def weights_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Copies of all weights. If the ranks share a weight out, all of them have to call this."""
    return {
        name: (weight.full_tensor() if isinstance(weight, DTensor) else weight).detach().clone()
        for name, weight in model.state_dict().items()
    }


def write(
    path: Path,
    losses: Sequence[float],
    weights: dict[str, torch.Tensor],
    backend: str,
    maker: str,
    ranks: int,
) -> None:
    """What compare.py and times.py read. For a program without torch's default group; others call `save`."""
    result = {"backend": backend, "made_by": maker, "ranks": ranks}
    if TIMED:
        assert len(ends_of_steps) == len(losses), f"{len(ends_of_steps)} steps, and {len(losses)} losses"
        result["steps"] = [end - start for start, end in itertools.pairwise(ends_of_steps)]
    torch.save({**result, "losses": [*losses], "weights": weights}, path)


def made_by(group: dist.ProcessGroup | None = None) -> str:
    """The class of the object that serves the CPU tensors of a group, by default of the default one."""
    served_by = (group or dist.group.WORLD)._get_backend(torch.device("cpu"))
    return type(served_by).__name__
