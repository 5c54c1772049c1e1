"""Distributed checkpoint: two ranks save it, and three ranks load it and go on with the training.

torchrun --standalone --nproc-per-node=2 examples/checkpoint_reshard.py save checkpoint
torchrun --standalone --nproc-per-node=3 examples/checkpoint_reshard.py load checkpoint
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

STEPS = 3


def sharded(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 20), nn.Tanh(), nn.Linear(20, 1))
    fully_shard(model)
    return model, torch.optim.Adam(model.parameters(), lr=0.05)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, first: int) -> float:
    """All ranks see the same batches, so that any number of them computes the same."""
    for step in range(first, first + STEPS):
        inputs = torch.randn(16, 8, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
        loss.backward()
        optimizer.step()
    return loss.item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("action", choices=["save", "load"])
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()

    dist.init_process_group("ucc")
    model, optimizer = sharded(seed=0)
    loss = train(model, optimizer, first=0)
    if args.action == "save":
        weights, moments = get_state_dict(model, optimizer)
        dcp.save({"weights": weights, "moments": moments}, checkpoint_id=args.folder)
        done = "saved"
    else:
        restored, its_optimizer = sharded(seed=1)  # other weights, which loading replaces
        weights, moments = get_state_dict(restored, its_optimizer)
        state = {"weights": weights, "moments": moments}
        dcp.load(state, checkpoint_id=args.folder)
        set_state_dict(
            restored, its_optimizer, model_state_dict=state["weights"], optim_state_dict=state["moments"]
        )
        # It goes on as the model does that was never saved.
        loss = train(restored, its_optimizer, first=STEPS)
        expected = train(model, optimizer, first=STEPS)
        assert abs(loss - expected) < 1e-5 * expected, (loss, expected)
        done = "loaded, and trained on as if it had never been saved"
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks, loss {loss:.6f}: {done}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
