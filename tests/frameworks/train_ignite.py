"""PyTorch-Ignite: it makes groups of gloo, nccl and mpi only, but takes a group that exists.

`idist.auto_model` wraps the model in DDP only if the backend has one of these names. Over ucc by its name
the program therefore wraps the model itself; otherwise the ranks would train without each other.
"""

from __future__ import annotations

from pathlib import Path

import ignite.distributed as idist
import problem
import torch
import torch.distributed as dist
from cases import Case
from ignite.engine import Engine, Events, create_supervised_trainer
from ignite.handlers import Checkpoint, DiskSaver
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(_local_rank: int, existing_group: bool, result: Path, case: Case) -> None:
    dtype = torch.bfloat16 if case.precision == "bfloat16" else torch.float32
    batches = idist.auto_dataloader(problem.data(dtype), batch_size=problem.BATCH * idist.get_world_size())
    losses: list[float] = []
    checkpoints = Path(f"{result}.checkpoints")
    for part, epochs in enumerate(problem.parts(case)):
        network = problem.network(seed=part).to(dtype)
        model = DistributedDataParallel(network) if existing_group else idist.auto_model(network)
        assert isinstance(model, DistributedDataParallel)
        optimizer = torch.optim.SGD(model.parameters(), lr=problem.LEARNING_RATE, momentum=0.9)
        optimizer = idist.auto_optim(optimizer)
        trainer = create_supervised_trainer(
            model, optimizer, nn.MSELoss(), output_transform=lambda *all_: all_[-1]
        )

        @trainer.on(Events.ITERATION_COMPLETED)  # type: ignore[untyped-decorator]
        def keep(engine: Engine) -> None:
            mean = idist.all_reduce(engine.state.output.detach().float().clone()) / idist.get_world_size()
            losses.append(float(mean))

        @trainer.on(Events.EPOCH_STARTED)  # type: ignore[untyped-decorator]
        def shuffle(engine: Engine) -> None:
            batches.sampler.set_epoch(engine.state.epoch)

        parts = {"model": model, "optimizer": optimizer, "trainer": trainer}
        if part:
            saved = next(checkpoints.iterdir())
            Checkpoint.load_objects(parts, torch.load(saved))
        trainer.run(batches, max_epochs=epochs.stop)
        if epochs.stop < problem.EPOCHS:
            Checkpoint(parts, DiskSaver(checkpoints, create_dir=True))(trainer)
            idist.barrier()
    problem.save(result, losses, network)


def main() -> None:
    backend, result, case = problem.arguments_for("ignite")
    existing_group = backend == "ucc" and not case.by_argument
    if existing_group:
        dist.init_process_group("ucc")
    with idist.Parallel(backend=None if existing_group else backend) as parallel:
        parallel.run(train, existing_group, result, case)
    if existing_group:
        idist.finalize()


if __name__ == "__main__":
    main()
