"""Measures oneCCL by its interface in C, in the environment that ci/bench makes for it."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from .library import Call, Prepared
from .over_mpi import LaunchedByMpi

# onecclDataType_t and onecclRedOp_t of oneapi/ccl/v2/types.h.
DATATYPES = {"int64": 4, "float16": 6, "float32": 7, "bfloat16": 9}
SUM = 0
UNIQUE_ID_BYTES = 4096


class UniqueId(ctypes.Structure):
    """onecclUniqueId, which is passed by value."""

    _fields_ = (("data", ctypes.c_ubyte * UNIQUE_ID_BYTES),)


def open_library(_: str, __: Path) -> OneCclLibrary:
    return OneCclLibrary()


class OneCclLibrary(LaunchedByMpi):
    """oneCCL between the ranks that the launcher of Intel MPI started.

    oneCCL sends over that MPI: between processes of one host its own transport is a thousand times slower
    with 4 B. Every operation is complete when the function in C returns. The interface of oneCCL in C has no
    barrier, so the one that is not timed is that of MPI.
    """

    def __init__(self) -> None:
        super().__init__()
        os.environ.update(CCL_ATL_TRANSPORT="mpi", CCL_PLUGIN="ONECCL_LEGACY_CPU")
        # oneCCL opens its plugin by name, which finds a library that is already loaded.
        folder = Path(sys.prefix, "lib")
        for name in ("libccl.so.2", "libccl.so.1", "libccl_legacy_cpu.so"):
            ctypes.CDLL(str(folder / name), mode=ctypes.RTLD_GLOBAL)
        self.c = ctypes.CDLL(str(folder / "libccl.so.2"))
        self.handle = self._open()

    def _open(self) -> ctypes.c_void_p:
        """The communicator of all ranks. Rank 0 makes its id."""
        unique = UniqueId()
        if self.rank == 0:
            succeed(self.c.onecclGetUniqueId, ctypes.byref(unique))
        unique = UniqueId.from_buffer_copy(self.comm.bcast(bytes(unique), 0))
        handle = ctypes.c_void_p()
        self.c.onecclCommInitRank.argtypes = (ctypes.c_void_p, ctypes.c_size_t, UniqueId, ctypes.c_int)
        succeed(self.c.onecclCommInitRank, ctypes.byref(handle), self.world, unique, self.rank)
        return handle

    def _bound(self, name: str, arrays: tuple[Any, ...], count: int, *more: int) -> Call:
        """The function `name` on these arrays, with `count` items and what else it takes before the
        communicator. The pointers keep the arrays allocated."""
        pointers = (array.ctypes.data_as(ctypes.c_void_p) for array in arrays)
        arguments = (*pointers, ctypes.c_size_t(count), DATATYPES[self.dtype], *more, self.handle, None)
        return partial(succeed, getattr(self.c, name), *arguments)

    def _all_reduce(self, count: int) -> Prepared:
        data = self._own(count)
        return self._bound("onecclAllReduce", (data, data), count, SUM), [data], self.sum

    def _broadcast(self, count: int) -> Prepared:
        data = self._own(count)
        return self._bound("onecclBroadcast", (data, data), count, 0), [data], 1.0

    def _reduce(self, count: int) -> Prepared:
        data, result = self._own(count), self._empty(count)
        call = self._bound("onecclReduce", (data, result), count, SUM, 0)
        return call, [data, result], self.sum if self.rank == 0 else None

    def _all_gather_into_tensor(self, count: int) -> Prepared:
        data, result = self._own(count), self._empty(count * self.world)
        return self._bound("onecclAllGather", (data, result), count), [data, result], float(self.world)

    def _reduce_scatter_tensor(self, count: int) -> Prepared:
        data, result = self._own(count * self.world), self._empty(count)
        return self._bound("onecclReduceScatter", (data, result), count, SUM), [data, result], self.sum

    def _all_to_all_single(self, count: int) -> Prepared:
        data, result = self._own(count * self.world), self._empty(count * self.world)
        return self._bound("onecclAllToAll", (data, result), count), [data, result], float(self.world)

    def _send(self, data: Any, peer: int) -> Call:
        return self._bound("onecclSend", (data,), len(data), peer)

    def _receive(self, result: Any, peer: int | None) -> Call:
        assert peer is not None
        return self._bound("onecclRecv", (result,), len(result), peer)

    def close(self) -> None:
        succeed(self.c.onecclCommDestroy, self.handle)


def succeed(function: Callable[..., int], *arguments: Any) -> None:
    """Calls a function of oneCCL. Raises RuntimeError for a result that is not onecclSuccess."""
    if result := function(*arguments):
        raise RuntimeError(f"oneCCL: a call returned onecclResult_t {result}")
