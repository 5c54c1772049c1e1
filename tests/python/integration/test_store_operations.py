"""What a new group asks of the job's store: as much for each member, however many there are."""

from __future__ import annotations

import os
import threading
from collections import Counter
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch_ucc.testing import run_ranks

pytestmark = pytest.mark.multirank


class Counting(dist.Store):
    """Passes everything on to another store and notes it.

    Looking for a key that is not there yet counts once, however often it is done: how long a peer takes
    says nothing about how many operations there are.
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
        return sum(1 if what in ("check", "wait") else times for (what, _), times in noted.items())

    def set(self, key: str, value: bytes) -> None:
        self._note("set", key)
        self._inner.set(key, value)

    def get(self, key: str) -> bytes:
        self._note("get", key)
        return self._inner.get(key)

    def add(self, key: str, value: int) -> int:
        self._note("add", key)
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


def use(group: dist.ProcessGroup) -> None:
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=group)
    assert tensor.tolist() == [group.size()] * 3


def store_operations(backend: str) -> tuple[int, int]:
    """Of this rank, for a group of all ranks and its first use; and for one of which rank 0 is no member."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    counting = Counting(dist.TCPStore(host, port, is_master=False, timeout=timedelta(seconds=60)))
    dist.init_process_group(
        backend, store=counting, rank=rank, world_size=size, timeout=timedelta(seconds=60)
    )
    dist.barrier()
    counting.take()
    use(dist.new_group(backend="ucc"))
    whole = counting.take()
    part = dist.new_group(list(range(1, size)), backend="ucc")
    if rank > 0:
        use(part)
    return whole, counting.take()


@pytest.mark.parametrize("backend", ["ucc", "gloo"])
def test_a_new_group(backend: str) -> None:
    """In all, at most twice as many for twice the ranks.

    In a world of gloo the group is the first one of ucc, and brings the libraries up as well.
    """
    two, four = (run_ranks(store_operations, size, backend, init=False) for size in (2, 4))
    assert two[0][0] > 0
    assert sum(whole for whole, _ in four) <= 2 * sum(whole for whole, _ in two), (two, four)
    if backend == "ucc":
        assert max(whole for whole, _ in four) == max(whole for whole, _ in two), (two, four)
    assert two[0][1] == four[0][1] == 0, "who is not a member asks nothing"
