"""ZeRO stage 1: the optimizer state of a DistributedDataParallel training is spread over the ranks.

torchrun --standalone --nproc-per-node=2 examples/zero.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

STEPS = 10


def train(spread: bool) -> tuple[nn.Module, int, list[float]]:
    """(the model, numbers of optimizer state on this rank, losses)."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16)))
    if spread:
        optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=0.01)
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for step in range(STEPS):
        random = torch.Generator().manual_seed(100 * step + dist.get_rank())
        inputs = torch.randn(32, 16, generator=random)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), inputs.flip(1))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    states = (optimizer.optim if spread else optimizer).state.values()
    held = sum(moment.numel() for state in states for moment in state.values())
    return model, held, losses


def main() -> None:
    dist.init_process_group("ucc")
    model, held, losses = train(spread=True)
    plain, all_of_it, _ = train(spread=False)
    for parameter, expected in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected, rtol=0, atol=0)
    total = torch.tensor(held)
    dist.all_reduce(total)
    assert held < all_of_it == int(total), (held, all_of_it, total)
    if dist.get_rank() == 0:
        print(
            f"rank 0 holds {held} of {all_of_it} numbers of state; loss {losses[0]:.3f} to {losses[-1]:.3f}"
        )
        print("all parameters are, to the bit, those of a plain optimizer")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
