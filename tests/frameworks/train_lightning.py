"""PyTorch Lightning: the backend is an argument of its strategies, for DDP and for torch's FSDP2."""

from __future__ import annotations

from pathlib import Path

import lightning
import problem
import torch
from cases import Case
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, Strategy
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.utils.data import DataLoader

PRECISIONS = {"float32": "32-true", "mixed": "bf16-mixed", "bfloat16": "bf16-true"}


class Regression(lightning.LightningModule):
    def __init__(self, case: Case, seed: int) -> None:
        super().__init__()
        self.case = case
        self.network = problem.network(seed)
        self.losses: list[float] = []

    def configure_model(self) -> None:
        if self.case.sharding == "fsdp2" and not isinstance(self.network, FSDPModule):
            mesh = self.device_mesh["data_parallel"]
            assert problem.made_by(mesh.get_group()) == problem.made_by()
            for layer in self.network:
                if isinstance(layer, nn.Linear):
                    fully_shard(layer, mesh=mesh)
            fully_shard(self.network, mesh=mesh)

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        inputs, targets = batch
        loss = nn.functional.mse_loss(self.network(inputs), targets)
        self.losses.append(float(self.trainer.strategy.reduce(loss.detach().float(), reduce_op="mean")))
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=problem.LEARNING_RATE, momentum=0.9)


def strategy_for(case: Case, backend: str) -> Strategy:
    if case.sharding == "fsdp2":
        return ModelParallelStrategy(
            data_parallel_size=2, tensor_parallel_size=1, process_group_backend=backend
        )
    return DDPStrategy(process_group_backend=backend)


def main() -> None:
    backend, result, case = problem.arguments_for("lightning")
    lightning.seed_everything(0)
    checkpoint: Path | None = None
    losses: list[float] = []
    for part, epochs in enumerate(problem.parts(case)):
        trainer = lightning.Trainer(
            accelerator="cpu",
            devices=2,
            strategy=strategy_for(case, backend),
            precision=PRECISIONS[case.precision],
            max_epochs=epochs.stop,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
        )
        model = Regression(case, seed=part)
        trainer.fit(model, DataLoader(problem.data(), batch_size=problem.BATCH), ckpt_path=checkpoint)
        losses += model.losses
        checkpoint = result.with_suffix(".checkpoint")
        if epochs.stop < problem.EPOCHS:
            trainer.save_checkpoint(checkpoint)
    problem.save(result, losses, model.network)


if __name__ == "__main__":
    main()
