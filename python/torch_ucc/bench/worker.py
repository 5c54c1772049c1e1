"""One rank of one peer: times each case it is given; rank 0 writes the figures as JSON.

Run by path, also in environments where neither torch nor torch_ucc is installed: it imports nothing of this
package, and torch or mpi4py only in the class that needs it. That is why it is one long file, with a class
for each library.

A figure is the median over batches of back-to-back calls, each batch counted at its slowest rank.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import importlib
import json
import os
import statistics
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

MIN_BATCHES, MAX_BATCHES = 5, 500

Call = Callable[[], object]


# A call, the buffers that it reads and writes, and what the last one's last part must hold on this rank.
Prepared = tuple[Call, list[Any], "float | None"]

ASYNC_CALLS = 16
# How many messages or operations one call makes, where it is not one. Seconds are those of one.
PER_CALL = {"ping_pong": 2, "any_source": 2, "all_reduce_async": ASYNC_CALLS}


class Library(ABC):
    """The library under test, seen by one rank. Only the calls that `prepare` returns are timed.

    A method `_op(count)` for each op, whose parts have so many float32.
    """

    rank: int
    world: int
    real = True  # else nothing is moved

    def timed(self, call: Call, count: int) -> float:
        """Seconds per call over `count` calls."""
        start = time.perf_counter()
        for _ in repeat(None, count):
            call()
        return (time.perf_counter() - start) / count

    def prepare(self, op: str, nbytes: int) -> Call:
        """A call of `op` with parts of `nbytes`, run once and its result checked.

        Its buffers hold zeros afterwards, so that repeated sums stay finite and every page is mapped.
        """
        prepared: Prepared = getattr(self, f"_{op}")(nbytes // 4)
        call, buffers, expected = prepared
        call()
        if self.real and expected is not None:
            check(buffers[-1][-(nbytes // 4) :], expected, op)
        for buffer in buffers:
            buffer[:] = 0
        return call

    def _barrier(self, _: int) -> Prepared:
        return self.barrier, [], None

    def _ping_pong(self, count: int, *, known: bool = True) -> Prepared:
        """There and back between ranks 0 and 1."""
        data, result = self._own(count), self._empty(count)
        if self.rank > 1:
            return _nothing, [], None
        return partial(_in_turn, *self._there_and_back(data, result, known)), [data, result], 2.0 - self.rank

    def _there_and_back(self, data: Any, result: Any, known: bool) -> list[Call]:
        """What ranks 0 and 1 call, each in its order; `known`: told from whom the message comes."""
        steps = [self._send(data, 1 - self.rank), self._receive(result, 1 - self.rank if known else None)]
        return steps[:: 1 if self.rank == 0 else -1]

    def _any_source(self, count: int) -> Prepared:
        return self._ping_pong(count, known=False)

    @abstractmethod
    def _own(self, count: int) -> Any:
        """So many numbers, each this rank's plus one."""

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
        """Every rank's value, on every rank, by a way of its own that is never timed."""

    @abstractmethod
    def close(self) -> None: ...


class TorchLibrary(Library):
    """torch.distributed over one backend; rank and store come from the environment as under torchrun.

    `prefix`: of the keys, where others use that store, too.
    """

    def __init__(self, backend: str, *, init: bool = True, prefix: str = "") -> None:
        self.torch: Any = importlib.import_module("torch")
        self.dist: Any = importlib.import_module("torch.distributed")
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        self.store = self.dist.PrefixStore(prefix, self.dist.TCPStore(*address, is_master=False))
        self.backend, self.real = backend, backend != "fake"
        self.sum = self.world * (self.world + 1) / 2
        self.rounds = 0
        if init:
            self.init()

    def init(self) -> None:
        if not self.real:
            self.init_fake()
            return
        store = self.dist.PrefixStore("group", self.store)
        self.dist.init_process_group(self.backend, store=store, rank=self.rank, world_size=self.world)

    def init_fake(self) -> None:
        store = importlib.import_module("torch.testing._internal.distributed.fake_pg").FakeStore()
        self.dist.init_process_group("fake", store=store, rank=self.rank, world_size=self.world)

    def _own(self, count: int) -> Any:
        return self.torch.full((count,), float(self.rank + 1))

    def _empty(self, count: int) -> Any:
        return self.torch.zeros(count)

    def _parts(self, count: int, own: bool) -> list[Any]:
        return [self._own(count) if own else self._empty(count) for _ in range(self.world)]

    def _all_reduce(self, count: int) -> Prepared:
        data = self._own(count)
        return partial(self.dist.all_reduce, data), [data], self.sum

    def _all_reduce_async(self, count: int) -> Prepared:
        many = [self._own(count) for _ in range(ASYNC_CALLS)]

        def call() -> None:
            for work in [self.dist.all_reduce(data, async_op=True) for data in many]:
                work.wait()

        return call, many, self.sum

    def _broadcast(self, count: int) -> Prepared:
        data = self._own(count)
        return partial(self.dist.broadcast, data, 0), [data], 1.0

    def _reduce(self, count: int) -> Prepared:
        data = self._own(count)
        return partial(self.dist.reduce, data, 0), [data], self.sum if self.rank == 0 else None

    def _all_gather_into_tensor(self, count: int) -> Prepared:
        data, result = self._own(count), self._empty(count * self.world)
        return partial(self.dist.all_gather_into_tensor, result, data), [data, result], float(self.world)

    def _all_gather(self, count: int) -> Prepared:
        data, results = self._own(count), self._parts(count, own=False)
        return partial(self.dist.all_gather, results, data), [data, *results], float(self.world)

    def _reduce_scatter_tensor(self, count: int) -> Prepared:
        data, result = self._own(count * self.world), self._empty(count)
        return partial(self.dist.reduce_scatter_tensor, result, data), [data, result], self.sum

    def _reduce_scatter(self, count: int) -> Prepared:
        parts, result = self._parts(count, own=True), self._empty(count)
        return partial(self.dist.reduce_scatter, result, parts), [*parts, result], self.sum

    def _all_to_all_single(self, count: int) -> Prepared:
        data, result = self._own(count * self.world), self._empty(count * self.world)
        return partial(self.dist.all_to_all_single, result, data), [data, result], float(self.world)

    def _all_to_all(self, count: int) -> Prepared:
        parts, results = self._parts(count, own=True), self._parts(count, own=False)
        return partial(self.dist.all_to_all, results, parts), [*parts, *results], float(self.world)

    def _gather(self, count: int) -> Prepared:
        data, results = self._own(count), self._parts(count, own=False) if self.rank == 0 else None
        expected = float(self.world) if self.rank == 0 else None
        return partial(self.dist.gather, data, results), [data, *(results or [])], expected

    def _scatter(self, count: int) -> Prepared:
        parts = self._parts(count, own=True) if self.rank == 0 else None
        result = self._empty(count)
        return partial(self.dist.scatter, result, parts), [*(parts or []), result], 1.0

    def _send(self, data: Any, peer: int) -> Call:
        return partial(self.dist.send, data, peer)

    def _receive(self, result: Any, peer: int | None) -> Call:
        return partial(self.dist.recv, result, peer)

    def _both_ways(self, count: int) -> Prepared:
        data, result = self._own(count), self._empty(count)
        if self.rank > 1:
            return _nothing, [], None
        pairs = [self.dist.P2POp(self.dist.isend, data, 1 - self.rank)]
        pairs.append(self.dist.P2POp(self.dist.irecv, result, 1 - self.rank))

        def call() -> None:
            for work in self.dist.batch_isend_irecv(pairs):
                work.wait()

        return call, [data, result], 2.0 - self.rank

    def barrier(self) -> object:
        return self.dist.barrier()

    def gather(self, value: Any) -> list[Any]:
        self.rounds += 1
        self.store.set(f"{self.rounds}/{self.rank}", json.dumps(value))
        return [json.loads(self.store.get(f"{self.rounds}/{rank}")) for rank in range(self.world)]

    def close(self) -> None:
        self.dist.destroy_process_group()


class NumpyLibrary(Library):
    """Of an environment without torch.

    numpy asks for huge pages from 4 MB on and torch does not. That is worth more than the choice of a library
    (64 MB both ways by CMA: 10 ms, with huge pages 4 ms), so numpy is kept from it.
    """

    def __init__(self) -> None:
        os.environ["NUMPY_MADVISE_HUGEPAGE"] = "0"  # read when numpy is imported
        self.numpy: Any = importlib.import_module("numpy")

    def _own(self, count: int) -> Any:
        return self.numpy.full(count, self.rank + 1, dtype=self.numpy.float32)

    def _empty(self, count: int) -> Any:
        return self.numpy.zeros(count, dtype=self.numpy.float32)


class MpiLibrary(NumpyLibrary):
    """Whatever MPI this environment's mpi4py loads."""

    def __init__(self) -> None:
        super().__init__()
        self.mpi: Any = importlib.import_module("mpi4py.MPI")
        self.comm = self.mpi.COMM_WORLD
        self.rank, self.world = self.comm.rank, self.comm.size
        self.sum = self.world * (self.world + 1) / 2

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
            return _nothing, [], None
        other = 1 - self.rank
        return partial(self.comm.Sendrecv, data, other, 0, result, other), [data, result], 2.0 - self.rank

    def barrier(self) -> object:
        return self.comm.Barrier()

    def gather(self, value: Any) -> list[Any]:
        return list(self.comm.allgather(value))

    def close(self) -> None: ...


class UcxLibrary(NumpyLibrary):
    """UCX by its Python package UCXX: messages, and nothing else. Ranks meet in `folder`."""

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
            return _nothing, [], None
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


class Collective(ctypes.Structure):
    """As ci/lib/alone.cc has it."""

    _fields_ = (
        ("type", ctypes.c_uint64),
        ("source", ctypes.c_void_p),
        ("source_count", ctypes.c_uint64),
        ("destination", ctypes.c_void_p),
        ("destination_count", ctypes.c_uint64),
    )


class Message(ctypes.Structure):
    """As ci/lib/alone.cc has it."""

    _fields_ = (
        ("peer", ctypes.c_int64),
        ("is_sent", ctypes.c_int64),
        ("buffer", ctypes.c_void_p),
        ("bytes", ctypes.c_uint64),
    )


@dataclass(frozen=True)
class SelfTimed:
    """A call that is repeated by what it is made of, C but for torch's dispatch, and timed there."""

    repeat: Callable[[int], float]  # so many times; returns the seconds
    memory: tuple[Any, ...]  # that it works on
    parts: tuple[Callable[[], float], ...]  # what each call of a program would do of it; returns the seconds

    def __call__(self) -> None:
        self.repeat(1)


def timed_in_turn(pairs: Sequence[tuple[Call, Callable[[], float]]], count: int) -> float:
    """Each call of torch's and then its part in C, so many times: each finds the caches as others left them.

    What Python takes to call C is not counted.
    """
    seconds = 0.0
    for _ in repeat(None, count):
        for dispatch, in_c in pairs:
            start = time.perf_counter()
            dispatch()
            seconds += time.perf_counter() - start
            seconds += in_c()
    return seconds


class AloneLibrary(TorchLibrary):
    """UCC and UCX by themselves, told what our plan tells them, in loops of C: the floor that we stand on.

    torch holds the memory. Collectives are UCC's, messages UCX's. One thread uses UCC, and says so, while we
    say that several may.
    """

    # ucc_coll_type_t
    ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, BARRIER, BROADCAST = 1 << 0, 1 << 2, 1 << 3, 1 << 5, 1 << 6
    GATHER, REDUCE, REDUCE_SCATTER = 1 << 9, 1 << 11, 1 << 12

    def __init__(self) -> None:
        super().__init__("alone", init=False)
        compiled = importlib.import_module("torch_ucc._native.extension").compiled()
        plan: Any = importlib.import_module("torch_ucc._group.planning")
        exchange = functools.partial(
            compiled.exchange, self.store, self.rank, self.world, timedelta(minutes=1)
        )
        chosen = plan.choose(exchange, self.rank, range(self.world))
        for prefix, options in (("UCX_", chosen.ucx), ("UCC_", chosen.ucc)):
            os.environ.update({prefix + name: value for name, value in options})
        self.c = ctypes.CDLL(os.environ["TORCH_UCC_BENCH_PEERS"] + "/alone/libalone.so")
        for name in ("begin", "end", "collectives", "messages"):
            getattr(self.c, f"alone_{name}").restype = ctypes.c_double
        self.is_crowded = self.world > len(os.sched_getaffinity(0))
        kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
        self.allgather = kind(self._allgather)  # kept: C calls it

    def open(self) -> None:
        self.c.alone_open(self.rank, self.world, int(self.is_crowded), self.allgather)

    def open_further(self, number: int) -> None:
        """A group of torch's `fake`, which must be initialised, and a team of UCC, whose id the first rank
        tells the others."""
        self.dist.new_group()
        if self.rank == 0:
            self.store.set(f"team/{number}", str(number))
        self.c.alone_team(int(self.store.get(f"team/{number}")))

    def _allgather(self, own: int, nbytes: int, everyone: int) -> None:
        """Called by C, which no exception would reach."""
        try:
            parts = self.gather(ctypes.string_at(own, nbytes).hex())
            ctypes.memmove(everyone, bytes.fromhex("".join(parts)), nbytes * self.world)
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    def init_fake(self) -> None:
        """`fake` takes a batch of messages at once but does not say so. torch would then call each by itself,
        which is less than what it does for us."""
        super().init_fake()
        importlib.import_module("torch._C._distributed_c10d").FakeProcessGroup.supports_coalescing = True

    def behind_dispatch(self, op: str, call: Call) -> Call:
        """What a program calls of torch's `fake`, which must be initialised, and after each call its part of
        `call`."""
        if not isinstance(call, SelfTimed):
            return call
        pairs = list(zip(self._dispatches(op), call.parts, strict=True))
        return SelfTimed(partial(timed_in_turn, pairs), call.memory, ())

    def _dispatches(self, op: str) -> list[Call]:
        """`fake` has no receive from any source; one from a known source goes the same way."""
        if op == "barrier":
            return [super().barrier]
        if op == "all_reduce_async":
            return self._in_flight()
        if op in ("ping_pong", "any_source"):
            return self._there_and_back(self._empty(1), self._empty(1), known=True)
        return [getattr(super(), f"_{op}")(1)[0]]

    def _in_flight(self) -> list[Call]:
        data, works = self._empty(1), list[Any]()

        def begin() -> None:
            works.append(self.dist.all_reduce(data, async_op=True))

        def wait() -> None:
            for work in works:
                work.wait()
            works.clear()

        return [*repeat(begin, ASYNC_CALLS), wait]

    def timed(self, call: Call, count: int) -> float:
        return call.repeat(count) / count if isinstance(call, SelfTimed) else super().timed(call, count)

    def _collectives(self, kind: int, *sides: tuple[Any, Any]) -> SelfTimed:
        """All at once, each from one tensor to another; from rank 0 or to it, where there is a root."""
        wanted = (Collective * len(sides))(*(Collective(kind, *span(a), *span(b)) for a, b in sides))
        repeated = partial(self.c.alone_collectives, wanted, len(sides))
        if len(sides) == 1:
            return SelfTimed(repeated, sides, (partial(repeated, 1),))
        begun = (partial(self.c.alone_begin, ctypes.byref(each)) for each in wanted)
        return SelfTimed(repeated, sides, (*begun, self.c.alone_end))

    def all_reduce(self, tensor: Any) -> SelfTimed:
        return self._collectives(self.ALL_REDUCE, (tensor, tensor))

    def _whole(self, kind: int, prepared: Prepared) -> Prepared:
        """From the first of the buffers that torch's call would have to the last."""
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
        """By messages, since UCC 1.9 has none. Rank 0 leaves its own part where it is, which others copy."""
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
            return _nothing, [], None
        both = [(1 - self.rank, True, data), (1 - self.rank, False, result)]
        call = self._messages(both[:: 1 if self.rank == 0 else -1], at_once=at_once)
        return call, [data, result], 2.0 - self.rank

    def _messages(self, wanted: Sequence[tuple[int, bool, Any]], *, at_once: bool = True) -> SelfTimed:
        """Each to a peer if it is sent, else from it; each after the other unless `at_once`."""
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
    """Where it lies and how many numbers it has."""
    return (0, 0) if tensor is None else (tensor.data_ptr(), tensor.numel())


def _nothing() -> None:
    """What a rank calls that has no part in a case."""


def _in_turn(first: Call, second: Call) -> None:
    first()
    second()


def check(part: Any, expected: float, op: str) -> None:
    """Each number of a part."""
    if wrong := int((part != expected).sum()):
        raise RuntimeError(f"{op} gave {wrong} wrong numbers of {len(part)}: they must be {expected}")


def warm_up(library: Library, call: Call, batch_seconds: float) -> float:
    """Doubles the number of calls until they fill a batch; returns what one took, the same on all ranks."""
    count = 1
    while True:
        seconds: float = max(library.gather(library.timed(call, count)))
        if count >= 4 and count * seconds >= batch_seconds:
            return seconds
        count *= 2


def measure(library: Library, call: Call, case_seconds: float, batch_seconds: float) -> tuple[float, int]:
    """Calls for about `case_seconds`, the warm-up not counted: the seconds that one took, and how many."""
    estimate = warm_up(library, call, batch_seconds)
    size = max(1, round(batch_seconds / estimate))
    batches = min(MAX_BATCHES, max(MIN_BATCHES, round(case_seconds / (size * estimate))))
    seconds = []
    for _ in range(batches):
        library.barrier()
        seconds.append(library.timed(call, size))
    slowest = [max(of_ranks) for of_ranks in zip(*library.gather(seconds), strict=True)]
    return statistics.median(slowest), size * batches


def measure_all(
    library: Library, cases: Sequence[str], case_seconds: float, batch_seconds: float
) -> list[dict[str, Any]]:
    """Of cases such as "all_reduce:4"."""
    rows = []
    for op, nbytes in (case.split(":") for case in cases):
        call, per_call = library.prepare(op, int(nbytes)), PER_CALL.get(op, 1)
        seconds, calls = measure(library, call, case_seconds, batch_seconds)
        rows.append({"op": op, "bytes": int(nbytes), "seconds": seconds / per_call, "calls": calls})
        if isinstance(library, AloneLibrary):
            both = library.behind_dispatch(op, call)
            rows[-1]["with_dispatch"] = measure(library, both, case_seconds, batch_seconds)[0] / per_call
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", help="a torch backend, ucxx or alone; without it, MPI")
    parser.add_argument("--cases", required=True, help="op:bytes,op:bytes,...")
    parser.add_argument("--case-seconds", type=float, required=True)
    parser.add_argument("--batch-seconds", type=float, required=True)
    parser.add_argument("--output", required=True)
    args = parser.parse_args()

    library: Library
    if args.backend == "ucxx":
        library = UcxLibrary(Path(args.output).parent)
    elif args.backend == "alone":
        library = AloneLibrary()
        library.init_fake()
        library.open()
    else:
        library = TorchLibrary(args.backend) if args.backend else MpiLibrary()
    results = measure_all(library, args.cases.split(","), args.case_seconds, args.batch_seconds)
    if library.rank == 0:
        Path(args.output).write_text(json.dumps(results))
    library.close()


if __name__ == "__main__":
    main()
