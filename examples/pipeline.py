"""Pipeline parallel: each rank is one stage, and each microbatch goes through all stages.

torchrun --standalone --nproc-per-node=2 examples/pipeline.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

WIDTH, BATCH, MICROBATCHES, STEPS = 16, 32, 4, 10


def stage_of(number: int) -> nn.Module:
    torch.manual_seed(number)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(step))
    return inputs, inputs.flip(1).tanh()


def train_alone(stages: int) -> nn.Sequential:
    model = nn.Sequential(*(stage_of(number) for number in range(stages)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for step in range(STEPS):
        optimizer.zero_grad()
        inputs, targets = batch(step)
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    return model


def main() -> None:
    dist.init_process_group("ucc")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mine = stage_of(rank)
    optimizer = torch.optim.SGD(mine.parameters(), lr=1.0)
    stage = PipelineStage(mine, rank, ranks, torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=nn.functional.mse_loss)

    step_losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        inputs, targets = batch(step)
        losses: list[torch.Tensor] = []
        schedule.step(
            *([inputs] if rank == 0 else []),
            **({"target": targets, "losses": losses} if rank == ranks - 1 else {}),
        )
        optimizer.step()
        step_losses.append(sum(loss.item() for loss in losses) / MICROBATCHES)

    for parameter, expected in zip(mine.parameters(), train_alone(ranks)[rank].parameters(), strict=True):
        torch.testing.assert_close(parameter, expected, rtol=1e-4, atol=1e-5)
    if rank == ranks - 1:
        assert step_losses[-1] < step_losses[0], step_losses
        print(f"{ranks} stages, loss {step_losses[0]:.4f} to {step_losses[-1]:.4f}")
        print("all parameters are those of one process")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
