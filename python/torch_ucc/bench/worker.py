"""One rank of one peer: times each case it is given; rank 0 writes the figures as JSON.

Run by path, also in environments where neither torch nor torch_ucc is installed: it imports nothing of this
package, and torch or mpi4py only in the class that needs it.

A figure is the median over batches of back-to-back calls, each batch counted at its slowest rank.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any, Protocol

MIN_BATCHES, MAX_BATCHES = 5, 500

Call = Callable[[], object]


class Library(Protocol):
    """The library under test, seen by one rank. Only the calls that `prepare` returns are timed."""

    rank: int
    world: int

    def prepare(self, op: str, nbytes: int) -> Call:
        """A call of `op` on `nbytes` of float32 a rank, run once and its result checked.

        Its buffers hold zeros afterwards, so that repeated sums stay finite and every page is mapped.
        """

    def barrier(self) -> object: ...

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, on every rank, by a way of its own that is never timed."""

    def close(self) -> None: ...


def check(actual: float, expected: float, op: str) -> None:
    if actual != expected:
        raise RuntimeError(f"{op} gave {actual}, expected {expected}")


class TorchLibrary:
    """torch.distributed over one backend; rank and store come from the environment as under torchrun."""

    def __init__(self, backend: str) -> None:
        self.torch: Any = importlib.import_module("torch")
        self.dist: Any = importlib.import_module("torch.distributed")
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        self.store = self.dist.TCPStore(*address, is_master=False)
        self.real = backend != "fake"
        if self.real:
            store = self.dist.PrefixStore("group", self.store)
        else:
            store = importlib.import_module("torch.testing._internal.distributed.fake_pg").FakeStore()
        self.dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.world)
        self.rounds = 0

    def prepare(self, op: str, nbytes: int) -> Call:
        torch, dist = self.torch, self.dist
        if op == "barrier":
            dist.barrier()
            return self.barrier
        data = torch.full((nbytes // 4,), float(self.rank + 1))
        call: Call
        if op == "all_reduce":
            result, expected = data, self.world * (self.world + 1) / 2
            call = partial(dist.all_reduce, data)
        elif op == "broadcast":
            result, expected = data, 1.0
            call = partial(dist.broadcast, data, 0)
        elif op == "all_gather_into_tensor":
            result, expected = torch.zeros(data.numel() * self.world), float(self.world)
            call = partial(dist.all_gather_into_tensor, result, data)
        else:
            raise ValueError(f"unknown op {op}")
        call()
        if self.real:
            check(result[-1].item(), expected, op)
        data.zero_()
        return call

    def barrier(self) -> object:
        return self.dist.barrier()

    def gather(self, value: Any) -> list[Any]:
        self.rounds += 1
        self.store.set(f"{self.rounds}/{self.rank}", json.dumps(value))
        return [json.loads(self.store.get(f"{self.rounds}/{rank}")) for rank in range(self.world)]

    def close(self) -> None:
        self.dist.destroy_process_group()


class MpiLibrary:
    """Whatever MPI this environment's mpi4py loads."""

    def __init__(self) -> None:
        self.numpy: Any = importlib.import_module("numpy")
        self.mpi: Any = importlib.import_module("mpi4py.MPI")
        self.comm = self.mpi.COMM_WORLD
        self.rank, self.world = self.comm.rank, self.comm.size

    def prepare(self, op: str, nbytes: int) -> Call:
        numpy, comm = self.numpy, self.comm
        if op == "barrier":
            comm.Barrier()
            return self.barrier
        data = numpy.full(nbytes // 4, self.rank + 1, dtype=numpy.float32)
        call: Call
        if op == "all_reduce":
            result, expected = data, self.world * (self.world + 1) / 2
            call = partial(comm.Allreduce, self.mpi.IN_PLACE, data)
        elif op == "broadcast":
            result, expected = data, 1.0
            call = partial(comm.Bcast, data, 0)
        elif op == "all_gather_into_tensor":
            result, expected = numpy.zeros(data.size * self.world, dtype=numpy.float32), float(self.world)
            call = partial(comm.Allgather, data, result)
        else:
            raise ValueError(f"unknown op {op}")
        call()
        check(float(result[-1]), expected, op)
        data.fill(0)
        return call

    def barrier(self) -> object:
        return self.comm.Barrier()

    def gather(self, value: Any) -> list[Any]:
        return list(self.comm.allgather(value))

    def close(self) -> None: ...


def timed(call: Call, count: int) -> float:
    """Seconds per call over `count` calls."""
    start = time.perf_counter()
    for _ in repeat(None, count):
        call()
    return (time.perf_counter() - start) / count


def warm_up(library: Library, call: Call, batch_seconds: float) -> float:
    """Doubles the number of calls until they fill a batch; returns what one took, the same on all ranks."""
    count = 1
    while True:
        seconds: float = max(library.gather(timed(call, count)))
        if count >= 4 and count * seconds >= batch_seconds:
            return seconds
        count *= 2


def measure(
    library: Library, op: str, nbytes: int, case_seconds: float, batch_seconds: float
) -> dict[str, Any]:
    """Runs one case for about `case_seconds`, its warm-up not counted."""
    call = library.prepare(op, nbytes)
    estimate = warm_up(library, call, batch_seconds)
    size = max(1, round(batch_seconds / estimate))
    batches = min(MAX_BATCHES, max(MIN_BATCHES, round(case_seconds / (size * estimate))))
    seconds = []
    for _ in range(batches):
        library.barrier()
        seconds.append(timed(call, size))
    slowest = [max(of_ranks) for of_ranks in zip(*library.gather(seconds), strict=True)]
    return {"op": op, "bytes": nbytes, "seconds": statistics.median(slowest), "calls": size * batches}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", help="a torch backend; without it, MPI")
    parser.add_argument("--cases", required=True, help="op:bytes,op:bytes,...")
    parser.add_argument("--case-seconds", type=float, required=True)
    parser.add_argument("--batch-seconds", type=float, required=True)
    parser.add_argument("--output", required=True)
    args = parser.parse_args()

    library: Library = TorchLibrary(args.backend) if args.backend else MpiLibrary()
    results = []
    for case in args.cases.split(","):
        op, nbytes = case.split(":")
        results.append(measure(library, op, int(nbytes), args.case_seconds, args.batch_seconds))
    if library.rank == 0:
        Path(args.output).write_text(json.dumps(results))
    library.close()


if __name__ == "__main__":
    main()
