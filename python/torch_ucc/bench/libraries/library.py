"""What the bench needs of a library that it measures, and what all libraries share."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

Call = Callable[[], object]

# A call, the buffers that it reads and writes, and what the last one's last part must hold on this rank.
Prepared = tuple[Call, list[Any], "float | None"]

# The types of numbers that are sent, as torch names them, and the bytes that one number takes.
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int64": 8, "float8_e4m3fn": 1}

ASYNC_CALLS = 16
# How many messages or operations one call makes, where it is not one.
PER_CALL = {"ping_pong": 2, "any_source": 2, "all_reduce_async": ASYNC_CALLS}


class Library(ABC):
    """The library under test, seen by one rank. Only the calls that `prepare` returns are timed.

    A subclass has a method `_op(count)` for each op that it can do. Each part has `count` numbers of the type
    `dtype`, which `prepare` sets.
    """

    rank: int
    world: int
    dtype = "float32"
    real = True  # False: the library moves no data, so its results are not checked

    def timed(self, call: Call, count: int) -> float:
        """Seconds per call over `count` calls."""
        start = time.perf_counter()
        for _ in repeat(None, count):
            call()
        return (time.perf_counter() - start) / count

    def prepare(self, op: str, nbytes: int, dtype: str = "float32") -> Call:
        """A call of `op` with parts of `nbytes`, run once and its result checked.

        Its buffers hold zeros afterwards, so that repeated sums stay finite and every page is mapped.
        """
        self.dtype, count = dtype, nbytes // ITEM_BYTES[dtype]
        prepared: Prepared = getattr(self, f"_{op}")(count)
        call, buffers, expected = prepared
        call()
        if self.real and expected is not None:
            check(buffers[-1][-count:], expected, op)
        for buffer in buffers:
            buffer[:] = 0
        return call

    def per_call(self, op: str) -> int:
        """How many messages or operations one call of `op` makes. The figure is the time of one."""
        return PER_CALL.get(op, 1)

    def behind_dispatch(self, op: str, call: Call) -> Call | None:
        """`call` with torch's dispatch before it, if the library has none and is to be timed with it, too."""
        return None

    def _barrier(self, _: int) -> Prepared:
        return self.barrier, [], None

    def _ping_pong(self, count: int, *, known: bool = True) -> Prepared:
        """A message there and back between ranks 0 and 1."""
        data, result = self._own(count), self._empty(count)
        if self.rank > 1:
            return nothing, [], None
        return partial(in_turn, *self._there_and_back(data, result, known)), [data, result], 2.0 - self.rank

    def _there_and_back(self, data: Any, result: Any, known: bool) -> list[Call]:
        """The two calls of rank 0 or 1, in its order. `known`: the receive names its sender."""
        steps = [self._send(data, 1 - self.rank), self._receive(result, 1 - self.rank if known else None)]
        return steps[:: 1 if self.rank == 0 else -1]

    def _any_source(self, count: int) -> Prepared:
        return self._ping_pong(count, known=False)

    @abstractmethod
    def _own(self, count: int) -> Any:
        """`count` numbers, each of them this rank plus one."""

    @abstractmethod
    def _empty(self, count: int) -> Any: ...

    @abstractmethod
    def _send(self, data: Any, peer: int) -> Call: ...

    @abstractmethod
    def _receive(self, result: Any, peer: int | None) -> Call: ...

    @abstractmethod
    def barrier(self) -> object: ...

    @abstractmethod
    def gather(self, value: Any) -> list[Any]:
        """The value of every rank, on every rank. It goes a way of its own, which is never timed."""

    @abstractmethod
    def close(self) -> None: ...


OpenLibrary = Callable[[str, Path], Library]
"""The type of the function `open_library` in the module of each library. It takes the name of the backend and
a folder that all ranks see, and returns the library ready to be measured."""


def nothing() -> None:
    """What a rank calls if it has no part in a case."""


def in_turn(first: Call, second: Call) -> None:
    first()
    second()


def check(part: Any, expected: float, op: str) -> None:
    """Raises RuntimeError unless every number of `part` is the expected one."""
    if wrong := int((part != expected).sum()):
        raise RuntimeError(f"{op} gave {wrong} wrong numbers of {len(part)}: they must be {expected}")
