"""What is trained: its parameters are a function of the step alone, whoever computed which part of it.

A step's batch is a fixed set of shards. Each shard's gradient is rounded to whole multiples of a small unit:
any sum of them is exact in float64, and depends neither on the order nor on how many ranks there are.
"""

from __future__ import annotations

import hashlib

import torch

SHARDS = 12
INPUTS, HIDDEN, OUTPUTS = 8, 24, 3
SIZE = INPUTS * HIDDEN + HIDDEN * OUTPUTS
UNIT = 2.0**-24
RATE = 0.05


def initial() -> torch.Tensor:
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(1), dtype=torch.float64) / 4


def gradient(parameters: torch.Tensor, step: int, shards: range) -> torch.Tensor:
    """The sum over some shards of a step, in units."""
    total = torch.zeros(SIZE, dtype=torch.float64)
    for shard in shards:
        draw = torch.Generator().manual_seed(SHARDS * step + shard)
        inputs = torch.randn(16, INPUTS, generator=draw, dtype=torch.float64)
        leaf = parameters.clone().requires_grad_()
        first, second = leaf[: INPUTS * HIDDEN], leaf[INPUTS * HIDDEN :]
        outputs = (inputs @ first.view(INPUTS, HIDDEN)).tanh() @ second.view(HIDDEN, OUTPUTS)
        loss = (outputs - inputs[:, :OUTPUTS].sin()).square().mean()
        total += (torch.autograd.grad(loss, leaf)[0] / UNIT).round()
    return total


def updated(parameters: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    return parameters - total * (RATE * UNIT / SHARDS)


def digest(parameters: torch.Tensor) -> str:
    return hashlib.sha256(parameters.numpy().tobytes()).hexdigest()


class Trajectory:
    """The same training without faults, in this process."""

    def __init__(self) -> None:
        self._parameters = initial()
        self._digests = [digest(self._parameters)]

    def digest(self, step: int) -> str:
        """Of the parameters after so many steps."""
        while len(self._digests) <= step:
            total = gradient(self._parameters, len(self._digests) - 1, range(SHARDS))
            self._parameters = updated(self._parameters, total)
            self._digests.append(digest(self._parameters))
        return self._digests[step]
