"""Measures the MPI that mpi4py loads in this environment."""

from __future__ import annotations

import importlib
from functools import partial
from pathlib import Path
from typing import Any

from .library import ASYNC_CALLS, Call, Library, Prepared, nothing
from .numpy_buffers import NumpyLibrary


def open_library(_: str, __: Path) -> Library:
    return MpiLibrary()


class LaunchedByMpi(NumpyLibrary):
    """Ranks that the launcher of an MPI started, and that mpi4py connects."""

    def __init__(self) -> None:
        super().__init__()
        self.mpi: Any = importlib.import_module("mpi4py.MPI")
        self.comm = self.mpi.COMM_WORLD
        self.rank, self.world = self.comm.rank, self.comm.size
        self.sum = self.world * (self.world + 1) / 2

    def barrier(self) -> object:
        return self.comm.Barrier()

    def gather(self, value: Any) -> list[Any]:
        return list(self.comm.allgather(value))


class MpiLibrary(LaunchedByMpi):
    """MPI by its Python package mpi4py."""

    def _all_reduce(self, count: int) -> Prepared:
        data = self._own(count)
        return partial(self.comm.Allreduce, self.mpi.IN_PLACE, data), [data], self.sum

    def _all_reduce_async(self, count: int) -> Prepared:
        many = [self._own(count) for _ in range(ASYNC_CALLS)]

        def call() -> None:
            self.mpi.Request.Waitall([self.comm.Iallreduce(self.mpi.IN_PLACE, data) for data in many])

        return call, many, self.sum

    def _broadcast(self, count: int) -> Prepared:
        data = self._own(count)
        return partial(self.comm.Bcast, data, 0), [data], 1.0

    def _reduce(self, count: int) -> Prepared:
        data = self._own(count)
        if self.rank == 0:
            return partial(self.comm.Reduce, self.mpi.IN_PLACE, data), [data], self.sum
        return partial(self.comm.Reduce, data, None), [data], None

    def _all_gather_into_tensor(self, count: int) -> Prepared:
        data, result = self._own(count), self._empty(count * self.world)
        return partial(self.comm.Allgather, data, result), [data, result], float(self.world)

    def _reduce_scatter_tensor(self, count: int) -> Prepared:
        data, result = self._own(count * self.world), self._empty(count)
        return partial(self.comm.Reduce_scatter_block, data, result), [data, result], self.sum

    def _all_to_all_single(self, count: int) -> Prepared:
        data, result = self._own(count * self.world), self._empty(count * self.world)
        return partial(self.comm.Alltoall, data, result), [data, result], float(self.world)

    def _gather(self, count: int) -> Prepared:
        data, result = self._own(count), self._empty(count * self.world) if self.rank == 0 else None
        if result is None:
            return partial(self.comm.Gather, data, None), [data], None
        return partial(self.comm.Gather, data, result), [data, result], float(self.world)

    def _scatter(self, count: int) -> Prepared:
        data, result = self._own(count * self.world) if self.rank == 0 else None, self._empty(count)
        return partial(self.comm.Scatter, data, result), [*([] if data is None else [data]), result], 1.0

    def _send(self, data: Any, peer: int) -> Call:
        return partial(self.comm.Send, data, peer)

    def _receive(self, result: Any, peer: int | None) -> Call:
        return partial(self.comm.Recv, result, self.mpi.ANY_SOURCE if peer is None else peer)

    def _both_ways(self, count: int) -> Prepared:
        data, result = self._own(count), self._empty(count)
        if self.rank > 1:
            return nothing, [], None
        other = 1 - self.rank
        return partial(self.comm.Sendrecv, data, other, 0, result, other), [data, result], 2.0 - self.rank

    def close(self) -> None: ...
