"""Trains a small network on handwritten digits with DistributedDataParallel:

    torchrun --standalone --nproc-per-node=2 examples/train_digits_ddp.py --backend ucc

The training needs only the name of ucc, because `import torch` registers the backend. `--backend gloo` trains
over gloo. The program imports torch_ucc only to print the transports.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
from tqdm import tqdm

BATCH = 32  # per rank
LEARNING_RATE = 0.1
TEST_SHARE = 5  # every fifth digit is kept for testing
TIMED_STEPS = 50


def digits() -> tuple[TensorDataset, TensorDataset]:
    """The 1797 digits of 8 x 8 pixels, as (for training, for testing)."""
    pixels, labels = load_digits(return_X_y=True)
    inputs, targets = torch.tensor(pixels, dtype=torch.float32) / 16, torch.tensor(labels)
    testing = torch.arange(len(inputs)) % TEST_SHARE == 0
    training = ~testing
    return TensorDataset(inputs[training], targets[training]), TensorDataset(
        inputs[testing], targets[testing]
    )


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))


def sum_over_ranks(*values: float) -> list[float]:
    total = torch.tensor(values)
    dist.all_reduce(total)
    return [float(value) for value in total]


@torch.no_grad()
def accuracy(model: nn.Module, data: TensorDataset) -> float:
    """Each rank judges its share of the digits."""
    inputs, targets = (tensor[dist.get_rank() :: dist.get_world_size()] for tensor in data.tensors)
    right = (model(inputs).argmax(dim=1) == targets).sum().item()
    right, judged = sum_over_ranks(right, len(targets))
    return right / judged


def train(
    model: DistributedDataParallel, training: TensorDataset, testing: TensorDataset, epochs: int
) -> float:
    """Trains with a line for each epoch, and returns the seconds spent in training steps."""
    lead = dist.get_rank() == 0
    sampler: DistributedSampler[Any] = DistributedSampler(training, seed=0)
    batches = DataLoader(training, batch_size=BATCH, sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()
    seconds = 0.0
    with tqdm(total=epochs * len(batches), unit="step", disable=not lead) as bar:
        for epoch in range(epochs):
            sampler.set_epoch(epoch)
            losses = 0.0
            start = time.perf_counter()
            for inputs, targets in batches:
                optimizer.zero_grad()
                loss = loss_of(model(inputs), targets)
                loss.backward()  # here the gradients are averaged over the ranks
                optimizer.step()
                losses += loss.item()
                bar.update()
            seconds += time.perf_counter() - start
            loss_sum, steps = sum_over_ranks(losses, len(batches))
            right = accuracy(model.module, testing)
            if lead:
                tqdm.write(f"epoch {epoch + 1:2}  loss {loss_sum / steps:.4f}  accuracy {right:.1%}")
    return seconds


def communication(model: DistributedDataParallel, data: TensorDataset) -> tuple[float, float]:
    """Median seconds of a backward pass (with, without) communication. Changes no weight."""
    inputs, targets = (tensor[:BATCH] for tensor in data.tensors)

    def backward() -> float:
        loss: Any = nn.functional.cross_entropy(model(inputs), targets)
        start = time.perf_counter()
        loss.backward()
        return time.perf_counter() - start

    both, alone = [], []
    for _ in range(TIMED_STEPS):
        both.append(backward())
        with model.no_sync():
            alone.append(backward())
    return statistics.median(both), statistics.median(alone)


def transports() -> str:
    """What carried the gradients. Every rank calls it: the ranks ask UCX about each other."""
    if dist.get_backend() == "gloo":
        return "  TCP, by gloo"
    import torch_ucc  # only to ask; training needs no more than `import torch`

    found = torch_ucc.describe()
    libraries = [
        f"  {name} {library['version']} ({library['because']})"
        for name, library in found["libraries"].items()
    ]
    peers = [f"  to a peer on the {where}: {', '.join(how)}" for where, how in found["transports"].items()]
    return "\n".join(libraries + peers)


def compare(results: list[dict[str, Any]]) -> str:
    lines = [f"{'':<26}" + "".join(f"{result['backend']:>12}" for result in results)]
    rows: dict[str, Callable[[dict[str, Any]], str]] = {
        "accuracy": lambda result: f"{result['accuracy']:.1%}",
        "training steps": lambda result: f"{result['seconds']:.2f} s",
        "backward pass": lambda result: f"{result['backward'] * 1e3:.2f} ms",
        "... of it communication": lambda result: f"{1 - result['local'] / result['backward']:.0%}",
    }
    lines += [
        f"{name:<26}" + "".join(f"{show(result):>12}" for result in results) for name, show in rows.items()
    ]
    if len(results) > 1:
        first, second = (result["weights"] for result in results)
        apart = max((first[name] - second[name]).abs().max().item() for name in first)
        lines.append(f"largest difference between the weights of the two: {apart:.1e}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--backend", default="ucc")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--save", type=Path, help="write weights and figures there")
    parser.add_argument("--beside", type=Path, help="what an earlier run saved, to show beside this one")
    args = parser.parse_args()

    dist.init_process_group(args.backend)
    training, testing = digits()
    model = DistributedDataParallel(network())
    if dist.get_rank() == 0:
        print(
            f"{dist.get_world_size()} ranks over {dist.get_backend()}, {len(training)} digits to learn from"
        )
    seconds = train(model, training, testing, args.epochs)
    right = accuracy(model.module, testing)
    with_communication, without = communication(model, training)
    carried_by = transports()
    if dist.get_rank() == 0:
        result = {
            "backend": args.backend,
            "accuracy": right,
            "seconds": seconds,
            "backward": with_communication,
            "local": without,
            "weights": model.module.state_dict(),
        }
        if args.save:
            torch.save(result, args.save)
        print(f"transports in use:\n{carried_by}\n")
        print(compare([torch.load(args.beside), result] if args.beside else [result]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
