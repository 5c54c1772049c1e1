"""Measures three collectives through shared memory, in the loops of C of ci/lib/floor.cc.

The times show what the ranks of one host can reach.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from functools import partial
from pathlib import Path
from typing import Any

from .in_c import InC, SelfTimed
from .library import Library, Prepared


def open_library(_: str, __: Path) -> Library:
    return FloorLibrary()


class FloorLibrary(InC):
    """Slots and flags in memory that the ranks share. Its numbers are all of float32."""

    def __init__(self) -> None:
        super().__init__("floor")
        self.init_fake()
        self.c = self.load("all_reduce", "broadcast", "barrier")
        self.c.floor_bytes.restype = ctypes.c_uint64
        self.memory = self._share(self.c.floor_bytes(self.world))
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.c.floor_open(self.rank, self.world, int(self.is_crowded), ctypes.c_void_p(address))

    def _share(self, nbytes: int) -> mmap.mmap:
        """Memory of rank 0, of zeros, on every rank. It has no name, so that nothing is left of it when the
        ranks end."""
        own = os.memfd_create("floor") if self.rank == 0 else -1
        if self.rank == 0:
            os.ftruncate(own, nbytes)
        of_rank_0 = self.gather(f"/proc/{os.getpid()}/fd/{own}")[0]
        shared = os.open(of_rank_0, os.O_RDWR)
        memory = mmap.mmap(shared, nbytes)
        self.gather(None)  # rank 0 keeps its descriptor until the others have opened theirs
        for descriptor in {shared, own} - {-1}:
            os.close(descriptor)
        return memory

    def _collective(self, name: str, data: Any = None) -> SelfTimed:
        where, count = (None, 0) if data is None else (data.data_ptr(), data.numel())
        call = partial(getattr(self.c, f"floor_{name}"), ctypes.c_void_p(where), ctypes.c_uint64(count))
        return SelfTimed(call, (data,), (partial(call, 1),))

    def _all_reduce(self, count: int) -> Prepared:
        _, (data,), expected = super()._all_reduce(count)
        return self._collective("all_reduce", data), [data], expected

    def _broadcast(self, count: int) -> Prepared:
        _, (data,), expected = super()._broadcast(count)
        return self._collective("broadcast", data), [data], expected

    def _barrier(self, _: int) -> Prepared:
        return self._collective("barrier"), [], None

    def barrier(self) -> object:
        return self._collective("barrier")()

    def close(self) -> None: ...
