"""Ray Train: the backend is `TorchConfig(backend=...)`. A local cluster of two nodes, one worker on each."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import problem
import ray
import torch
from ray.cluster_utils import Cluster
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_data_loader, prepare_model
from torch import nn
from torch.utils.data import DataLoader

HERE = Path(__file__).resolve().parent


def train(settings: dict[str, Any]) -> None:
    model = prepare_model(problem.network())
    batches = prepare_data_loader(DataLoader(problem.data(), batch_size=problem.BATCH))
    optimizer = torch.optim.SGD(model.parameters(), lr=problem.LEARNING_RATE, momentum=0.9)
    losses = []
    for epoch in range(problem.EPOCHS):
        batches.sampler.set_epoch(epoch)
        for inputs, targets in batches:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            losses.append(problem.mean_over_ranks(loss))
    problem.save(settings["result"], losses, model.module)


def main() -> None:
    backend, result = problem.arguments()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    # A worker imports this folder's modules.
    ray.init(address=cluster.address, runtime_env={"env_vars": {"PYTHONPATH": str(HERE)}})
    try:
        TorchTrainer(
            train,
            train_loop_config={"result": result},
            torch_config=TorchConfig(backend=backend),
            scaling_config=ScalingConfig(num_workers=2, use_gpu=False, placement_strategy="STRICT_SPREAD"),
            run_config=RunConfig(storage_path=f"{result}.ray"),
        ).fit()
    finally:
        ray.shutdown()
        cluster.shutdown()
    sys.exit(not result.exists())


if __name__ == "__main__":
    main()
