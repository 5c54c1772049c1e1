"""Measures an all_reduce that another program offers, such as a kernel that is an op of torch."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from .library import Prepared
from .over_torch import TorchLibrary


def open_library(factory: str, _: Path) -> FactoryLibrary:
    return FactoryLibrary(factory)


class FactoryLibrary(TorchLibrary):
    """The all_reduce that `factory`, of the form package.module:function, makes.

    The function gets the rank and the number of ranks. It returns a callable that takes a tensor on the CPU
    and replaces each number in it by the sum over all ranks. While the function runs, torch.distributed is
    initialised with gloo, so that it can exchange handles. Its module may lie in the working directory.
    """

    def __init__(self, factory: str) -> None:
        super().__init__("gloo")
        module, _, function = factory.partition(":")
        sys.path.append(str(Path.cwd()))
        make: Callable[[int, int], Callable[[Any], object]]
        make = getattr(importlib.import_module(module), function)
        self.all_reduce = make(self.rank, self.world)

    def _all_reduce(self, count: int) -> Prepared:
        data = self._own(count)
        return partial(self.all_reduce, data), [data], self.sum
