"""A store that counts what it is asked."""

from __future__ import annotations

import threading
from collections import Counter
from datetime import timedelta

import torch.distributed as dist


class Counting(dist.Store):
    """Passes everything on to another store and notes it.

    Looking again for what is not there yet counts once, however often it is done: how long a peer takes says
    nothing about how many operations there are.
    """

    def __init__(self, inner: dist.Store) -> None:
        super().__init__()
        self._inner = inner
        self._lock = threading.Lock()
        self._noted: Counter[tuple[str, str]] = Counter()

    def _note(self, what: str, keys: object) -> None:
        with self._lock:
            self._noted[what, repr(keys)] += 1

    def take(self) -> int:
        """How many operations there were since the last call."""
        with self._lock:
            noted, self._noted = self._noted, Counter()
        return sum(1 if what in ("check", "wait", "get", "look") else n for (what, _), n in noted.items())

    def set(self, key: str, value: bytes) -> None:
        self._note("set", key)
        self._inner.set(key, value)

    def get(self, key: str) -> bytes:
        self._note("get", key)
        return self._inner.get(key)

    def add(self, key: str, value: int) -> int:
        self._note("add" if value else "look", key)
        return self._inner.add(key, value)

    def check(self, keys: list[str]) -> bool:
        self._note("check", keys)
        return self._inner.check(keys)

    def wait(self, keys: list[str], timeout: timedelta = timedelta(seconds=60)) -> None:
        self._note("wait", keys)
        self._inner.wait(keys, timeout)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        self._note("multi_get", keys)
        return self._inner.multi_get(keys)

    def multi_set(self, keys: list[str], values: list[bytes]) -> None:
        self._note("multi_set", keys)
        self._inner.multi_set(keys, values)

    def has_extended_api(self) -> bool:
        return True
