"""Prints what runs here, in a line: the device, its driver, torch and what it was built for, UCC and UCX."""

from __future__ import annotations

import os
import shutil
import subprocess

import torch
from torch_ucc._group.describe import libraries


def device() -> str:
    """As its driver's own tool has it."""
    if shutil.which("nvidia-smi") is None:
        return os.environ["TESTED_ACCELERATOR"]
    asked = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader", "--id=0"]
    name, driver = (
        subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip().split(", ")
    )
    return f"{torch.accelerator.device_count()} {name}, driver {driver}"


def main() -> None:
    of_torch = f"torch {torch.__version__}, CUDA {torch.version.cuda}"
    ours = (f"{name} {each['version']}" for name, each in libraries().items())
    print(", ".join([device(), of_torch, *ours]))


if __name__ == "__main__":
    main()
