"""Measures UCC and UCX by themselves, in the loops of C of ci/lib/alone.cc: what there is to reach."""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
import traceback
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import torch.distributed as dist

from .in_c import InC, SelfTimed
from .library import ASYNC_CALLS, Call, Library, Prepared, nothing


def open_library(_: str, __: Path) -> Library:
    library = AloneLibrary()
    library.init_fake()
    library.open()
    return library


class Collective(ctypes.Structure):
    """The same struct as in ci/lib/alone.cc: one collective, of float32."""

    _fields_ = (
        ("type", ctypes.c_uint64),
        ("source", ctypes.c_void_p),
        ("source_count", ctypes.c_uint64),
        ("destination", ctypes.c_void_p),
        ("destination_count", ctypes.c_uint64),
    )


class Message(ctypes.Structure):
    """The same struct as in ci/lib/alone.cc: one message, sent or received."""

    _fields_ = (
        ("peer", ctypes.c_int64),
        ("is_sent", ctypes.c_int64),
        ("buffer", ctypes.c_void_p),
        ("bytes", ctypes.c_uint64),
    )


class AloneLibrary(InC):
    """UCC and UCX in loops of C, configured as our plan configures them.

    UCC does the collectives, UCX the messages. UCC is configured for one thread here;
    the backend configures it for several.
    """

    # ucc_coll_type_t
    ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, BARRIER, BROADCAST = 1 << 0, 1 << 2, 1 << 3, 1 << 5, 1 << 6
    GATHER, REDUCE, REDUCE_SCATTER = 1 << 9, 1 << 11, 1 << 12

    def __init__(self) -> None:
        super().__init__("alone")
        # Imported here, since programs that measure only a torch backend import this module, too: what the
        # backend imports for its first group counts as part of its start.
        compiled = importlib.import_module("torch_ucc._native.extension").compiled()
        plan: Any = importlib.import_module("torch_ucc._group.planning")
        exchange = functools.partial(
            compiled.exchange, self.store, self.rank, self.world, timedelta(minutes=1)
        )
        chosen = plan.choose(exchange, self.rank, range(self.world))
        for prefix, options in (("UCX_", chosen.ucx), ("UCC_", chosen.ucc)):
            os.environ.update({prefix + name: value for name, value in options})
        self.c = self.load("begin", "end", "collectives", "messages")  # UCX reads its environment then
        kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
        self.allgather = kind(self._allgather)  # kept: C calls it

    def open(self) -> None:
        self.c.alone_open(self.rank, self.world, int(self.is_crowded), self.allgather)

    def open_further(self, number: int) -> None:
        """Makes a group of torch's `fake`, which must be initialised, and a team of UCC. Rank 0 chooses the
        team's id and tells it to the others."""
        dist.new_group()
        if self.rank == 0:
            self.store.set(f"team/{number}", str(number))
        self.c.alone_team(int(self.store.get(f"team/{number}")))

    def _allgather(self, own: int, nbytes: int, everyone: int) -> None:
        """C calls this function, and no exception passes through C: a failure ends the process."""
        try:
            parts = self.gather(ctypes.string_at(own, nbytes).hex())
            ctypes.memmove(everyone, bytes.fromhex("".join(parts)), nbytes * self.world)
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    def _dispatches(self, op: str) -> list[Call]:
        """`fake` has no receive from any source; one from a known source goes the same way."""
        if op == "all_reduce_async":
            return self._in_flight()
        if op in ("ping_pong", "any_source"):
            return self._there_and_back(self._empty(1), self._empty(1), known=True)
        return super()._dispatches(op)

    def _in_flight(self) -> list[Call]:
        data, works = self._empty(1), list[Any]()

        def begin() -> None:
            works.append(dist.all_reduce(data, async_op=True))

        def wait() -> None:
            for work in works:
                work.wait()
            works.clear()

        return [*repeat(begin, ASYNC_CALLS), wait]

    def _collectives(self, kind: int, *sides: tuple[Any, Any]) -> SelfTimed:
        """A collective for each of `sides`, a source and a destination; all in flight at once. The root, if
        there is one, is rank 0."""
        wanted = (Collective * len(sides))(*(Collective(kind, *span(a), *span(b)) for a, b in sides))
        repeated = partial(self.c.alone_collectives, wanted, len(sides))
        if len(sides) == 1:
            return SelfTimed(repeated, sides, (partial(repeated, 1),))
        begun = (partial(self.c.alone_begin, ctypes.byref(each)) for each in wanted)
        return SelfTimed(repeated, sides, (*begun, self.c.alone_end))

    def all_reduce(self, tensor: Any) -> SelfTimed:
        return self._collectives(self.ALL_REDUCE, (tensor, tensor))

    def _whole(self, kind: int, prepared: Prepared) -> Prepared:
        """One collective, from the first buffer of torch's call to its last."""
        _, buffers, expected = prepared
        return self._collectives(kind, (buffers[0], buffers[-1])), buffers, expected

    def _all_reduce(self, count: int) -> Prepared:
        return self._whole(self.ALL_REDUCE, super()._all_reduce(count))

    def _all_reduce_async(self, count: int) -> Prepared:
        _, many, expected = super()._all_reduce_async(count)
        return self._collectives(self.ALL_REDUCE, *zip(many, many, strict=True)), many, expected

    def _broadcast(self, count: int) -> Prepared:
        _, (data,), expected = super()._broadcast(count)
        return self._collectives(self.BROADCAST, (data, None)), [data], expected

    def _reduce(self, count: int) -> Prepared:
        _, (data,), expected = super()._reduce(count)
        return self._collectives(self.REDUCE, (data, data if self.rank == 0 else None)), [data], expected

    def _all_gather_into_tensor(self, count: int) -> Prepared:
        return self._whole(self.ALL_GATHER, super()._all_gather_into_tensor(count))

    def _reduce_scatter_tensor(self, count: int) -> Prepared:
        return self._whole(self.REDUCE_SCATTER, super()._reduce_scatter_tensor(count))

    def _all_to_all_single(self, count: int) -> Prepared:
        return self._whole(self.ALL_TO_ALL, super()._all_to_all_single(count))

    def _gather(self, count: int) -> Prepared:
        if self.rank == 0:  # into one tensor, where torch has a list
            return self._whole(self.GATHER, super()._all_gather_into_tensor(count))
        _, (data,), expected = super()._gather(count)
        return self._collectives(self.GATHER, (data, None)), [data], expected

    def _scatter(self, count: int) -> Prepared:
        """By messages, since UCC 1.9 has no scatter. Rank 0 leaves its own part where it is; other libraries
        copy it."""
        _, (*parts, result), expected = super()._scatter(count)
        if self.rank == 0:
            return self._messages([(peer, True, parts[peer]) for peer in range(1, self.world)]), parts, None
        return self._messages([(0, False, result)]), [result], expected

    def _ping_pong(self, count: int, *, known: bool = True) -> Prepared:
        return self._pair(count, at_once=False)  # UCX is not told from whom, the tag says it

    def _both_ways(self, count: int) -> Prepared:
        return self._pair(count, at_once=True)

    def _pair(self, count: int, *, at_once: bool) -> Prepared:
        data, result = self._own(count), self._empty(count)
        if self.rank > 1:
            return nothing, [], None
        both = [(1 - self.rank, True, data), (1 - self.rank, False, result)]
        call = self._messages(both[:: 1 if self.rank == 0 else -1], at_once=at_once)
        return call, [data, result], 2.0 - self.rank

    def _messages(self, wanted: Sequence[tuple[int, bool, Any]], *, at_once: bool = True) -> SelfTimed:
        """A message for each of `wanted`: the peer, whether this rank sends it, and its tensor. One after the
        other, unless `at_once`."""
        messages = (Message * len(wanted))(
            *(Message(peer, sent, each.data_ptr(), 4 * each.numel()) for peer, sent, each in wanted)
        )
        repeated = partial(self.c.alone_messages, messages, len(wanted), int(at_once))
        if at_once:
            return SelfTimed(repeated, tuple(wanted), (partial(repeated, 1),))
        each = (partial(self.c.alone_messages, ctypes.byref(message), 1, 1, 1) for message in messages)
        return SelfTimed(repeated, tuple(wanted), tuple(each))

    def barrier(self) -> object:
        return self._collectives(self.BARRIER, (None, None))()

    def _barrier(self, _: int) -> Prepared:
        return self._collectives(self.BARRIER, (None, None)), [], None

    def close(self) -> None: ...


def span(tensor: Any) -> tuple[int, int]:
    """The address of the tensor and how many numbers it has; 0 and 0 if there is none."""
    return (0, 0) if tensor is None else (tensor.data_ptr(), tensor.numel())
