"""Hugging Face Trainer: `ddp_backend` refuses ucc on CPUs, as Accelerate does; it takes a group there is."""

from __future__ import annotations

import tempfile
from typing import Any

import problem
import torch
import torch.distributed as dist
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments


class Regression(nn.Module):
    """What Trainer asks of a model: named inputs, and the loss among the outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.network = problem.network()

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        outputs = self.network(inputs)
        return {"loss": nn.functional.mse_loss(outputs, labels), "outputs": outputs}


class Losses(TrainerCallback):  # type: ignore[misc]
    def __init__(self) -> None:
        self.values: list[float] = []

    def on_log(self, arguments: Any, state: Any, control: Any, logs: dict[str, float], **_: Any) -> None:
        if "loss" in logs:
            self.values.append(float(logs["loss"]))


def main() -> None:
    backend, result = problem.arguments()
    if backend == "ucc":
        dist.init_process_group("ucc")
    losses = Losses()
    model = Regression()
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=model,
            args=TrainingArguments(
                output_dir=folder,
                use_cpu=True,
                num_train_epochs=problem.EPOCHS,
                per_device_train_batch_size=problem.BATCH,
                learning_rate=problem.LEARNING_RATE,
                lr_scheduler_type="constant",
                optim="sgd",
                logging_steps=1,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                ddp_backend=None if backend == "ucc" else backend,
            ),
            train_dataset=[
                {"inputs": inputs, "labels": targets}
                for inputs, targets in zip(*problem.data().tensors, strict=True)
            ],
            callbacks=[losses],
        )
        trainer.train()
    problem.save(result, losses.values, model.network)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
