"""Hugging Face Trainer: `ddp_backend` refuses ucc on CPUs, as Accelerate does; it takes a group there is."""

from __future__ import annotations

from typing import Any

import problem
import torch
import torch.distributed as dist
from cases import Case
from torch import nn
from transformers import HfArgumentParser, Trainer, TrainerCallback, TrainingArguments


class Regression(nn.Module):
    """What Trainer asks of a model: named inputs, and the loss among the outputs."""

    def __init__(self, seed: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.network = problem.network(seed).to(dtype)

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        outputs = self.network(inputs)
        return {"loss": nn.functional.mse_loss(outputs, labels), "outputs": outputs}


class Watch(TrainerCallback):  # type: ignore[misc]
    """Keeps the losses, and ends the training after `last` epochs."""

    def __init__(self, last: int) -> None:
        self.last = last
        self.losses: list[float] = []

    def on_log(self, arguments: Any, state: Any, control: Any, logs: dict[str, float], **_: Any) -> None:
        if "loss" in logs:
            self.losses.append(float(logs["loss"]))

    def on_epoch_end(self, arguments: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_training_stop = round(state.epoch) >= self.last


def training_arguments(case: Case, backend: str | None, folder: str) -> TrainingArguments:
    settings = {
        "output_dir": folder,
        "use_cpu": True,
        "bf16": case.precision == "mixed",
        "num_train_epochs": problem.EPOCHS,
        "per_device_train_batch_size": problem.BATCH,
        "learning_rate": problem.LEARNING_RATE,
        "lr_scheduler_type": "constant",
        "optim": "sgd",
        "logging_steps": 1,
        "save_strategy": "epoch" if case.resumes else "no",
        "report_to": "none",
        "disable_tqdm": True,
        "ddp_backend": backend,
    }
    if not case.command_line:
        return TrainingArguments(**settings)
    words = [f"--{name}={value}" for name, value in settings.items()]
    return HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(words)[0]


def main() -> None:
    backend, result, case = problem.arguments_for("transformers")
    existing_group = backend == "ucc" and not case.by_argument
    if existing_group:
        dist.init_process_group("ucc")
    folder = f"{result}.checkpoints"
    dtype = torch.bfloat16 if case.precision == "bfloat16" else torch.float32
    losses: list[float] = []
    for part, epochs in enumerate(problem.parts(case)):
        model = Regression(part, dtype)
        watch = Watch(epochs.stop)
        trainer = Trainer(
            model=model,
            args=training_arguments(case, None if existing_group else backend, folder),
            train_dataset=[
                {"inputs": inputs, "labels": targets}
                for inputs, targets in zip(*problem.data(dtype).tensors, strict=True)
            ],
            callbacks=[watch],
        )
        trainer.train(resume_from_checkpoint=bool(part))
        losses += watch.losses
    problem.save(result, losses, model.network)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
