"""DeepSpeed, the stages of ZeRO on CPUs: the backend is an argument of its init_distributed."""

from __future__ import annotations

import deepspeed
import problem
import torch
import torch.distributed as dist
from cases import Case
from deepspeed.utils import safe_get_full_fp32_param
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def engine_for(case: Case, seed: int) -> deepspeed.DeepSpeedEngine:
    network = problem.network(seed)
    engine, _, _, _ = deepspeed.initialize(
        model=network,
        optimizer=torch.optim.SGD(network.parameters(), lr=problem.LEARNING_RATE, momentum=0.9),
        config={
            "train_micro_batch_size_per_gpu": problem.BATCH,
            "zero_optimization": {
                "stage": int(case.sharding.removeprefix("zero")),
                "stage3_param_persistence_threshold": 0,  # stage 3 shares out small weights, too
            },
            "zero_allow_untested_optimizer": True,
            "bf16": {"enabled": case.precision == "bfloat16"},
        },
    )
    return engine


def main() -> None:
    backend, result, case = problem.arguments_for("deepspeed")
    deepspeed.init_distributed(dist_backend=backend)
    training = problem.data(torch.bfloat16 if case.precision == "bfloat16" else torch.float32)
    sampler = DistributedSampler(training, seed=0)
    checkpoints = f"{result}.checkpoints"
    losses = []
    for part, epochs in enumerate(problem.parts(case)):
        engine = engine_for(case, seed=part)
        if part:
            loaded, _ = engine.load_checkpoint(checkpoints)
            assert loaded, f"there is no checkpoint in {checkpoints}"
        for epoch in epochs:
            sampler.set_epoch(epoch)
            for inputs, targets in DataLoader(training, batch_size=problem.BATCH, sampler=sampler):
                loss = nn.functional.mse_loss(engine(inputs), targets)
                engine.backward(loss)
                engine.step()
                losses.append(problem.mean_over_ranks(loss))
        if epochs.stop < problem.EPOCHS:
            engine.save_checkpoint(checkpoints)
            engine.destroy()
    # The float32 weights that the ranks share out, whatever the stage and the precision of the network.
    weights = {name: safe_get_full_fp32_param(weight) for name, weight in engine.module.named_parameters()}
    if dist.get_rank() == 0:
        problem.write(result, losses, weights, dist.get_backend(), problem.made_by(), dist.get_world_size())
    engine.destroy()


if __name__ == "__main__":
    main()
