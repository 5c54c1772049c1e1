"""What the libraries in C share: each call is a loop of C that times itself."""

from __future__ import annotations

import ctypes
import importlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any

from .library import Call
from .over_torch import TorchLibrary


@dataclass(frozen=True)
class SelfTimed:
    """A call that repeats and times itself, in C except for torch's dispatch.

    `repeat` makes the call so many times and returns the seconds. `memory` is what the call works on, kept
    allocated. `parts` are what the calls of a program would do of it, one for each call; each returns its
    seconds.
    """

    repeat: Callable[[int], float]
    memory: tuple[Any, ...]
    parts: tuple[Callable[[], float], ...]

    def __call__(self) -> None:
        self.repeat(1)


def timed_in_turn(pairs: Sequence[tuple[Call, Callable[[], float]]], count: int) -> float:
    """Makes each call of torch and then its part in C, `count` times over, and returns the seconds.

    Each of the two so finds the caches as the other left them. The time that Python takes to call C is not
    counted.
    """
    seconds = 0.0
    for _ in repeat(None, count):
        for dispatch, in_c in pairs:
            start = time.perf_counter()
            dispatch()
            seconds += time.perf_counter() - start
            seconds += in_c()
    return seconds


class InC(TorchLibrary):
    """A library whose calls are loops of C, which ci/bench compiled. torch holds the memory.

    `is_crowded`: whether processes outnumber cores, so that a loop that waits must give its core away.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name, init=False)
        busy = int(os.environ.get("TORCH_UCC_BENCH_BUSY", "0"))
        self.is_crowded = self.world + busy > len(os.sched_getaffinity(0))

    def load(self, *timed: str) -> ctypes.CDLL:
        """The compiled loops. `timed` are the functions that return seconds."""
        loops = ctypes.CDLL(f"{os.environ['TORCH_UCC_BENCH_PEERS']}/{self.backend}/lib{self.backend}.so")
        for function in timed:
            getattr(loops, f"{self.backend}_{function}").restype = ctypes.c_double
        return loops

    def init_fake(self) -> None:
        """`fake` takes a batch of messages at once but does not say so. torch would then call each by itself,
        which is less than what it does for the backend ucc."""
        super().init_fake()
        importlib.import_module("torch._C._distributed_c10d").FakeProcessGroup.supports_coalescing = True

    def behind_dispatch(self, op: str, call: Call) -> Call:
        """What a program calls of torch's `fake`, which must be initialised, with each part of `call` after
        the call that it belongs to."""
        if not isinstance(call, SelfTimed):
            return call
        pairs = list(zip(self._dispatches(op), call.parts, strict=True))
        return SelfTimed(partial(timed_in_turn, pairs), call.memory, ())

    def _dispatches(self, op: str) -> list[Call]:
        """The calls of torch that a program makes for one `op`, with one number in each part."""
        return [super().barrier if op == "barrier" else getattr(super(), f"_{op}")(1)[0]]

    def timed(self, call: Call, count: int) -> float:
        return call.repeat(count) / count if isinstance(call, SelfTimed) else super().timed(call, count)
