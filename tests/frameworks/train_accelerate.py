"""Hugging Face Accelerate: on CPUs it makes groups of gloo and mpi only, but takes one that is there."""

from __future__ import annotations

import problem
import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader


def main() -> None:
    backend, result = problem.arguments()
    if backend == "ucc":
        dist.init_process_group("ucc")
    accelerator = Accelerator(cpu=True)
    network = problem.network()
    model, optimizer, batches = accelerator.prepare(
        network,
        torch.optim.SGD(network.parameters(), lr=problem.LEARNING_RATE, momentum=0.9),
        DataLoader(problem.data(), batch_size=problem.BATCH),
    )
    losses = []
    for _ in range(problem.EPOCHS):
        for inputs, targets in batches:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            losses.append(float(accelerator.gather(loss.detach().reshape(1)).mean()))
    problem.save(result, losses, accelerator.unwrap_model(model))
    accelerator.end_training()


if __name__ == "__main__":
    main()
