"""Measures UCX by its Python package UCXX."""

from __future__ import annotations

import importlib
import json
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

from .library import Call, Library, Prepared, nothing
from .numpy_buffers import NumpyLibrary


def open_library(_: str, folder: Path) -> Library:
    return UcxLibrary(folder)


class UcxLibrary(NumpyLibrary):
    """UCX by its Python package UCXX, which sends messages and nothing else. Ranks meet in `folder`."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.ucxx: Any = importlib.import_module("ucxx._lib.libucxx")
        self.array: Any = importlib.import_module("ucxx._lib.arr").Array
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.folder, self.rounds = folder, 0
        self.worker = self.ucxx.UCXWorker(self.ucxx.UCXContext())
        self.endpoints = [
            self.ucxx.UCXEndpoint.create_from_worker_address(
                self.worker, self.ucxx.UCXAddress.create_from_buffer(bytes.fromhex(address)), False
            )
            for address in self.gather(bytes(self.worker.address).hex())
        ]
        self.tags = [self.ucxx.UCXXTag(1 + sender) for sender in range(self.world)]
        self.signal = self._empty(1)

    def _finish(self, *requests: Any) -> None:
        for request in requests:
            while not request.completed:
                self.worker.progress()
            request.check_error()

    def _begin_send(self, data: Any, peer: int) -> Call:
        return partial(self.endpoints[peer].tag_send, self.array(data), self.tags[self.rank])

    def _begin_receive(self, result: Any, peer: int) -> Call:
        return partial(self.endpoints[peer].tag_recv, self.array(result), self.tags[peer])

    def _send(self, data: Any, peer: int) -> Call:
        begin = self._begin_send(data, peer)
        return lambda: self._finish(begin())

    def _receive(self, result: Any, peer: int | None) -> Call:
        assert peer is not None
        begin = self._begin_receive(result, peer)
        return lambda: self._finish(begin())

    def _both_ways(self, count: int) -> Prepared:
        data, result = self._own(count), self._empty(count)
        if self.rank > 1:
            return nothing, [], None
        begin = self._begin_send(data, 1 - self.rank), self._begin_receive(result, 1 - self.rank)
        return lambda: self._finish(*[each() for each in begin]), [data, result], 2.0 - self.rank

    def barrier(self) -> object:
        others = range(1, self.world) if self.rank == 0 else [0]
        steps = [step(self.signal, peer) for step in (self._receive, self._send) for peer in others]
        for call in steps if self.rank == 0 else reversed(steps):
            call()
        return None

    def gather(self, value: Any) -> list[Any]:
        self.rounds += 1
        mine = self.folder / f"{self.rounds}.{self.rank}"
        written = mine.with_suffix(f".{self.rank}.part")
        written.write_text(json.dumps(value))
        written.rename(mine)
        values = []
        for rank in range(self.world):
            path = self.folder / f"{self.rounds}.{rank}"
            while not path.exists():
                time.sleep(0.001)
            values.append(json.loads(path.read_text()))
        return values

    def close(self) -> None: ...
