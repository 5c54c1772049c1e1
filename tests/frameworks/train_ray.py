"""Ray Train: the backend is `TorchConfig(backend=...)`. A local cluster of two nodes, one worker on each.

In the case that resumes from a checkpoint, rank 1 kills itself. Ray then starts new workers on both nodes and
gives them the checkpoint.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import problem
import ray
import ray.train
import torch
import torch.distributed as dist
from cases import Case
from ray.cluster_utils import Cluster
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_data_loader, prepare_model
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

HERE = Path(__file__).resolve().parent


def save_checkpoint(state: dict[str, Any]) -> None:
    """Returns on each rank after Ray has recorded the checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        torch.save(state, Path(folder, "state"))
        rank_0 = dist.get_rank() == 0
        ray.train.report({}, checkpoint=Checkpoint.from_directory(folder) if rank_0 else None)
    assert ray.train.get_all_reported_checkpoints()


def load_checkpoint() -> dict[str, Any] | None:
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return None
    with checkpoint.as_directory() as folder:
        state: dict[str, Any] = torch.load(Path(folder, "state"))
    return state


def train(settings: dict[str, Any]) -> None:
    case: Case = settings["case"]
    dtype = torch.bfloat16 if case.precision == "bfloat16" else torch.float32
    saved = load_checkpoint()
    network = problem.network(seed=0 if saved is None else 1).to(dtype)
    model = fully_shard(network) if case.sharding == "fsdp2" else prepare_model(network)
    assert isinstance(model, DistributedDataParallel) == (case.sharding == "ddp")
    batches = prepare_data_loader(DataLoader(problem.data(dtype), batch_size=problem.BATCH))
    optimizer = torch.optim.SGD(model.parameters(), lr=problem.LEARNING_RATE, momentum=0.9)
    losses: list[float] = []
    part = 0
    if saved is not None:
        network.load_state_dict(saved["network"])
        optimizer.load_state_dict(saved["optimizer"])
        losses = saved["losses"]
        part = 1
    epochs = problem.parts(case)[part]
    for epoch in epochs:
        batches.sampler.set_epoch(epoch)
        for inputs, targets in batches:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            losses.append(problem.mean_over_ranks(loss))
    if epochs.stop < problem.EPOCHS:
        save_checkpoint(
            {"network": network.state_dict(), "optimizer": optimizer.state_dict(), "losses": losses}
        )
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()
        raise AssertionError("the barrier went through without rank 1")
    problem.save(settings["result"], losses, network)


def main() -> None:
    backend, result, case = problem.arguments_for("ray")
    # Ray gives its workers niceness 15. On a machine that also does other work they start slowly.
    os.environ.setdefault("RAY_worker_niceness", "0")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    # A worker imports this folder's modules.
    ray.init(address=cluster.address, runtime_env={"env_vars": {"PYTHONPATH": str(HERE)}})
    try:
        TorchTrainer(
            train,
            train_loop_config={"result": result, "case": case},
            torch_config=TorchConfig(backend=backend),
            scaling_config=ScalingConfig(num_workers=2, use_gpu=False, placement_strategy="STRICT_SPREAD"),
            run_config=RunConfig(
                storage_path=f"{result}.ray",
                failure_config=FailureConfig(max_failures=1 if case.resumes else 0),
            ),
        ).fit()
    finally:
        ray.shutdown()
        cluster.shutdown()
    sys.exit(not result.exists())


if __name__ == "__main__":
    main()
