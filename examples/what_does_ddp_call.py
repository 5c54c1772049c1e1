"""Which collectives does DistributedDataParallel call, when, and from where?

    torchrun --standalone --nproc-per-node=2 examples/what_does_ddp_call.py

A program that patches the functions of torch.distributed does not see the calls of DDP's C++ code, for
example the broadcast of the parameters. A backend sees every call. This program trains a small network on
handwritten digits. For each phase it prints the calls, and which code issued them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
import torch_ucc
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch_ucc.tracing import records, timeline

STEPS = 3
BATCH = 32


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Prints on rank 0 what that rank called meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        with torch_ucc.trace(folder):
            yield
        if dist.get_rank() == 0:
            print(f"\n{name}")
            tell(timeline.uses(timeline.merge(records.load(Path(folder)))))


def tell(uses: list[timeline.Use]) -> None:
    if not uses:
        print("  nothing")
    for use in sorted(uses, key=lambda use: (use.issuer.kind, use.op)):
        what = f"{use.op} of {use.dtype}" if use.dtype else use.op
        print(f"  {use.issuer.kind:<7} {use.calls:>3} x {what:<22} {use.bytes:>8} B  {use.issuer.what}")


def network() -> nn.Module:
    """With batch normalisation: its running mean and variance are buffers, which DDP keeps equal, too."""
    torch.manual_seed(dist.get_rank())  # other weights on each rank: DDP must make them equal
    return nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 10))


def accuracy(
    model: Callable[[torch.Tensor], torch.Tensor], inputs: torch.Tensor, labels: torch.Tensor
) -> float:
    """Of all ranks' shares of the digits; the sum over ranks is a call that this program makes itself."""
    right = (model(inputs).argmax(dim=1) == labels).sum().float()
    counts = torch.stack([right, torch.tensor(float(len(labels)))])
    dist.all_reduce(counts)
    return float(counts[0] / counts[1])


def main() -> None:
    dist.init_process_group("ucc")
    torch.set_num_threads(1)
    pixels, labels = load_digits(return_X_y=True)
    share = slice(dist.get_rank(), None, dist.get_world_size())
    inputs, targets = torch.tensor(pixels[share], dtype=torch.float32) / 16, torch.tensor(labels[share])

    with phase("construction: DistributedDataParallel(network)"):
        model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    for step in range(STEPS):
        part = slice(step * BATCH, (step + 1) * BATCH)
        with phase(f"step {step}, forward: model(inputs)"):
            loss = nn.functional.cross_entropy(model(inputs[part]), targets[part])
        optimizer.zero_grad()
        with phase(f"step {step}, backward: loss.backward()"):
            loss.backward()
        with phase(f"step {step}, optimizer.step()"):
            optimizer.step()

    model.eval()
    with phase("evaluation, forward and a sum over the ranks"), torch.no_grad():
        accuracy(model, inputs, targets)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
