"""PyTorch-Ignite: it makes groups of gloo, nccl and mpi only, but takes a group that exists.

`idist.auto_model` wraps the model in DDP only if the backend has one of these names. Over ucc by its name
the program therefore wraps the model itself; otherwise the ranks would train without each other.
"""

from __future__ import annotations

from typing import Any

import ignite.distributed as idist
import problem
import torch
import torch.distributed as dist
from ignite.engine import Engine, Events, create_supervised_trainer
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(_local_rank: int, backend: str, result: Any) -> None:
    network = problem.network()
    model = DistributedDataParallel(network) if backend == "ucc" else idist.auto_model(network)
    assert isinstance(model, DistributedDataParallel)
    optimizer = idist.auto_optim(torch.optim.SGD(model.parameters(), lr=problem.LEARNING_RATE, momentum=0.9))
    batches = idist.auto_dataloader(problem.data(), batch_size=problem.BATCH * idist.get_world_size())
    trainer = create_supervised_trainer(
        model, optimizer, nn.MSELoss(), output_transform=lambda *all_: all_[-1]
    )
    losses: list[float] = []

    @trainer.on(Events.ITERATION_COMPLETED)  # type: ignore[untyped-decorator]
    def keep(engine: Engine) -> None:
        losses.append(float(idist.all_reduce(engine.state.output.detach().clone())) / idist.get_world_size())

    trainer.run(batches, max_epochs=problem.EPOCHS)
    problem.save(result, losses, network)


def main() -> None:
    backend, result = problem.arguments()
    if backend == "ucc":
        dist.init_process_group("ucc")
    with idist.Parallel(backend=None if backend == "ucc" else backend) as parallel:
        parallel.run(train, backend, result)
    if backend == "ucc":
        idist.finalize()


if __name__ == "__main__":
    main()
