"""DeepSpeed, ZeRO stage 2 on CPUs: the backend is an argument of its init_distributed."""

from __future__ import annotations

import deepspeed
import problem
import torch
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def main() -> None:
    backend, result = problem.arguments()
    deepspeed.init_distributed(dist_backend=backend)
    network = problem.network()
    engine, _, _, _ = deepspeed.initialize(
        model=network,
        optimizer=torch.optim.SGD(network.parameters(), lr=problem.LEARNING_RATE, momentum=0.9),
        config={
            "train_micro_batch_size_per_gpu": problem.BATCH,
            "zero_optimization": {"stage": 2},
            "zero_allow_untested_optimizer": True,
        },
    )
    training = problem.data()
    sampler = DistributedSampler(training, seed=0)
    losses = []
    for epoch in range(problem.EPOCHS):
        sampler.set_epoch(epoch)
        for inputs, targets in DataLoader(training, batch_size=problem.BATCH, sampler=sampler):
            loss = nn.functional.mse_loss(engine(inputs), targets)
            engine.backward(loss)
            engine.step()
            losses.append(problem.mean_over_ranks(loss))
    problem.save(result, losses, engine.module)
    engine.destroy()


if __name__ == "__main__":
    main()
