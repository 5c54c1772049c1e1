"""DDP on one GPU that the ranks share: over ucc it must come to the same weights as over gloo.

Under torchrun. Prints the largest difference; ends with an error if there is one to speak of.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

DEVICE = "cuda:0"
STEPS = 30


def trained_over(group: dist.ProcessGroup) -> list[torch.Tensor]:
    torch.manual_seed(0)
    layers = (torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    model = DistributedDataParallel(torch.nn.Sequential(*layers).to(DEVICE), process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data = torch.Generator(DEVICE).manual_seed(1 + dist.get_rank())
    for _ in range(STEPS):
        x = torch.randn(128, 64, device=DEVICE, generator=data)
        loss = torch.nn.functional.cross_entropy(model(x), x[:, :10].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [parameter.detach().cpu() for parameter in model.parameters()]


def main() -> None:
    dist.init_process_group("cpu:ucc,cuda:ucc")
    gloo = dist.new_group(backend="gloo")
    ours, theirs = trained_over(dist.group.WORLD), trained_over(gloo)
    difference = max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True))
    print(f"rank {dist.get_rank()}: {STEPS} steps, largest difference of a weight {difference:.2e}")
    dist.destroy_process_group()
    assert difference < 1e-5


if __name__ == "__main__":
    main()
