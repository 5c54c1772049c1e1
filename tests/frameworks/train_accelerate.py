"""Hugging Face Accelerate: on CPUs it makes groups of gloo and mpi only, but takes one that is there."""

from __future__ import annotations

from typing import Any

import problem
import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import DDPCommunicationHookType, DistributedDataParallelKwargs, InitProcessGroupKwargs
from cases import Case
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader


def accelerator_for(case: Case, backend: str) -> Accelerator:
    handlers: list[Any] = []
    if case.by_argument:
        handlers.append(InitProcessGroupKwargs(backend=backend))
    if case.precision == "compressed":
        handlers.append(DistributedDataParallelKwargs(comm_hook=DDPCommunicationHookType.FP16))
    precision = "bf16" if case.precision == "mixed" else "no"
    return Accelerator(cpu=True, mixed_precision=precision, kwargs_handlers=handlers)


def main() -> None:
    backend, result, case = problem.arguments_for("accelerate")
    if backend == "ucc" and not case.by_argument:
        dist.init_process_group("ucc")
    dtype = torch.bfloat16 if case.precision == "bfloat16" else torch.float32
    checkpoint = f"{result}.checkpoint"
    losses = []
    for part, epochs in enumerate(problem.parts(case)):
        accelerator = accelerator_for(case, backend)
        network = problem.network(seed=part).to(dtype)
        model, optimizer, batches = accelerator.prepare(
            network,
            torch.optim.SGD(network.parameters(), lr=problem.LEARNING_RATE, momentum=0.9),
            DataLoader(problem.data(dtype), batch_size=problem.BATCH),
        )
        assert isinstance(model, DistributedDataParallel)
        if part:
            accelerator.load_state(checkpoint)
        for _ in epochs:
            for inputs, targets in batches:
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(inputs), targets)
                accelerator.backward(loss)
                optimizer.step()
                losses.append(float(accelerator.gather(loss.detach().float().reshape(1)).mean()))
        if epochs.stop < problem.EPOCHS:
            accelerator.save_state(checkpoint)
    problem.save(result, losses, accelerator.unwrap_model(model))
    accelerator.end_training()


if __name__ == "__main__":
    main()
