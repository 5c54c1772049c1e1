"""Trains with DistributedDataParallel. If it is started again, it goes on from its last checkpoint:

    torchrun --standalone --nproc-per-node=2 --max-restarts=1 examples/ddp_checkpoint.py --checkpoint run.pt

You or torchrun can start it again. `--die-at 5` kills the last rank before step 5 of the first attempt. The
other ranks then get an error, and torchrun starts all ranks again. The training ends with the weights of a
training in which no rank died.
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BATCH = 16  # per rank


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's part of a step: told by step and rank alone, so that a restart sees the same."""
    random = torch.Generator().manual_seed(step * dist.get_world_size() + dist.get_rank())
    inputs = torch.randn(BATCH, 8, generator=random)
    return inputs, inputs.sum(dim=1, keepdim=True)


def save(path: Path, **state: object) -> None:
    """Whole or not at all: a rank that dies meanwhile leaves the checkpoint before."""
    partial = path.with_suffix(".partial")
    torch.save(state, partial)
    partial.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--backend", default="ucc")
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--die-at", type=int)
    args = parser.parse_args()
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))

    dist.init_process_group(args.backend)
    lead = dist.get_rank() == 0
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    first, losses = 0, []
    if args.checkpoint.exists():
        state = torch.load(args.checkpoint)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first, losses = state["step"], state["losses"]
        if lead:
            print(f"attempt {attempt}: going on at step {first}", flush=True)
    for step in range(first, args.steps):
        if step == args.die_at and attempt == 0 and dist.get_rank() == dist.get_world_size() - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        inputs, targets = batch(step)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        total = loss.detach()
        dist.all_reduce(total)
        losses.append(float(total) / dist.get_world_size())
        if lead:
            save(
                args.checkpoint,
                step=step + 1,
                losses=losses,
                model=model.module.state_dict(),
                optimizer=optimizer.state_dict(),
            )
        dist.barrier()  # nobody is a step ahead of the checkpoint
    if lead:
        print(f"{args.steps} steps, loss {losses[0]:.4f} to {losses[-1]:.4f}")
    assert losses[-1] < 0.5 * losses[0], losses
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
