"""Measures torch.distributed over one of its backends."""

from __future__ import annotations

import importlib
import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

from torch_ucc._torch import all_gather_single, reduce_scatter_single

from .library import ASYNC_CALLS, Call, Library, Prepared, nothing


def open_library(backend: str, _: Path) -> Library:
    return TorchLibrary(backend)


class TorchLibrary(Library):
    """torch.distributed over one backend. Rank and store come from the environment as under torchrun.

    `init`: whether the constructor calls `init`. `prefix`: what the keys begin with, in a store that others
    use, too.
    """

    def __init__(self, backend: str, *, init: bool = True, prefix: str = "") -> None:
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        self.store = PrefixStore(prefix, TCPStore(*address, is_master=False))
        self.backend, self.real = backend, backend != "fake"
        self.sum = self.world * (self.world + 1) / 2
        self.rounds = 0
        if init:
            self.init()

    def init(self) -> None:
        if not self.real:
            self.init_fake()
            return
        store = PrefixStore("group", self.store)
        dist.init_process_group(self.backend, store=store, rank=self.rank, world_size=self.world)

    def init_fake(self) -> None:
        store = importlib.import_module("torch.testing._internal.distributed.fake_pg").FakeStore()
        dist.init_process_group("fake", store=store, rank=self.rank, world_size=self.world)

    def _own(self, count: int) -> Any:
        return torch.full((count,), self.rank + 1, dtype=getattr(torch, self.dtype))

    def _empty(self, count: int) -> Any:
        return torch.zeros(count, dtype=getattr(torch, self.dtype))

    def _parts(self, count: int, own: bool) -> list[Any]:
        return [self._own(count) if own else self._empty(count) for _ in range(self.world)]

    def _all_reduce(self, count: int) -> Prepared:
        data = self._own(count)
        return partial(dist.all_reduce, data), [data], self.sum

    def _all_reduce_async(self, count: int) -> Prepared:
        many = [self._own(count) for _ in range(ASYNC_CALLS)]

        def call() -> None:
            for work in [dist.all_reduce(data, async_op=True) for data in many]:
                work.wait()

        return call, many, self.sum

    def _broadcast(self, count: int) -> Prepared:
        data = self._own(count)
        return partial(dist.broadcast, data, 0), [data], 1.0

    def _reduce(self, count: int) -> Prepared:
        data = self._own(count)
        return partial(dist.reduce, data, 0), [data], self.sum if self.rank == 0 else None

    def _all_gather_into_tensor(self, count: int) -> Prepared:
        data, result = self._own(count), self._empty(count * self.world)
        return partial(all_gather_single, result, data), [data, result], float(self.world)

    def _all_gather(self, count: int) -> Prepared:
        data, results = self._own(count), self._parts(count, own=False)
        return partial(dist.all_gather, results, data), [data, *results], float(self.world)

    def _reduce_scatter_tensor(self, count: int) -> Prepared:
        data, result = self._own(count * self.world), self._empty(count)
        return partial(reduce_scatter_single, result, data), [data, result], self.sum

    def _reduce_scatter(self, count: int) -> Prepared:
        parts, result = self._parts(count, own=True), self._empty(count)
        return partial(dist.reduce_scatter, result, parts), [*parts, result], self.sum

    def _all_to_all_single(self, count: int) -> Prepared:
        data, result = self._own(count * self.world), self._empty(count * self.world)
        return partial(dist.all_to_all_single, result, data), [data, result], float(self.world)

    def _all_to_all(self, count: int) -> Prepared:
        parts, results = self._parts(count, own=True), self._parts(count, own=False)
        return partial(dist.all_to_all, results, parts), [*parts, *results], float(self.world)

    def _gather(self, count: int) -> Prepared:
        data, results = self._own(count), self._parts(count, own=False) if self.rank == 0 else None
        expected = float(self.world) if self.rank == 0 else None
        return partial(dist.gather, data, results), [data, *(results or [])], expected

    def _scatter(self, count: int) -> Prepared:
        parts = self._parts(count, own=True) if self.rank == 0 else None
        result = self._empty(count)
        return partial(dist.scatter, result, parts), [*(parts or []), result], 1.0

    def _send(self, data: Any, peer: int) -> Call:
        return partial(dist.send, data, peer)

    def _receive(self, result: Any, peer: int | None) -> Call:
        return partial(dist.recv, result, peer)

    def _both_ways(self, count: int) -> Prepared:
        data, result = self._own(count), self._empty(count)
        if self.rank > 1:
            return nothing, [], None
        pairs = [dist.P2POp(dist.isend, data, 1 - self.rank)]
        pairs.append(dist.P2POp(dist.irecv, result, 1 - self.rank))

        def call() -> None:
            for work in dist.batch_isend_irecv(pairs):
                work.wait()

        return call, [data, result], 2.0 - self.rank

    def barrier(self) -> object:
        return dist.barrier()

    def gather(self, value: Any) -> list[Any]:
        self.rounds += 1
        self.store.set(f"{self.rounds}/{self.rank}", json.dumps(value))
        return [json.loads(self.store.get(f"{self.rounds}/{rank}")) for rank in range(self.world)]

    def close(self) -> None:
        dist.destroy_process_group()
