"""PyTorch Lightning: the backend is an argument of its DDP strategy."""

from __future__ import annotations

from pathlib import Path

import lightning
import problem
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader


class Regression(lightning.LightningModule):
    def __init__(self, result: Path) -> None:
        super().__init__()
        self.result = result
        self.network = problem.network()
        self.losses: list[float] = []

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        inputs, targets = batch
        loss = nn.functional.mse_loss(self.network(inputs), targets)
        self.losses.append(float(self.trainer.strategy.reduce(loss.detach(), reduce_op="mean")))
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=problem.LEARNING_RATE, momentum=0.9)

    def on_train_end(self) -> None:
        problem.save(self.result, self.losses, self.network)


def main() -> None:
    backend, result = problem.arguments()
    lightning.seed_everything(0)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=DDPStrategy(process_group_backend=backend),
        max_epochs=problem.EPOCHS,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Regression(result), DataLoader(problem.data(), batch_size=problem.BATCH))


if __name__ == "__main__":
    main()
