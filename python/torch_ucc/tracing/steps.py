"""When each iteration of a program ends, as seen while it is traced."""

from __future__ import annotations

import time
import weakref
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook


class Steps:
    """Times of the steady clock: the first when this was made, then one at the end of each iteration.

    That is the end of step() of the optimizer which made the first one, also where a program has several,
    until the program says itself where its iterations end: then that alone counts.
    """

    def __init__(self) -> None:
        self.times = [time.monotonic_ns()]
        self._optimizer: weakref.ref[Optimizer] | None = None
        self._said = False
        self._hook = register_optimizer_step_post_hook(self._stepped)

    def close(self) -> None:
        self._hook.remove()

    def mark(self) -> None:
        """The program says that an iteration has ended."""
        if not self._said:
            self._said = True
            del self.times[1:]
        self.times.append(time.monotonic_ns())

    def _stepped(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._said or torch.compiler.is_compiling():  # a compiled step() is not seen
            return
        if self._optimizer is None or self._optimizer() is None:
            self._optimizer = weakref.ref(optimizer)
        if self._optimizer() is optimizer:
            self.times.append(time.monotonic_ns())
