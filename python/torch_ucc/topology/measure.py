"""Measures the constants of this host that an estimate needs. Takes about three seconds.

A server process that has only imported torch starts the processes that measure, so the caller may have
threads. They run on the CPUs that the caller may use.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import multiprocessing
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any

from torch_ucc.topology import cores as cpus
from torch_ucc.topology.estimate import Host

_CHUNK = 256 << 10
"""Bytes: as long as a slot of the memory that ranks share."""
_LEAST, _MOST = 1 << 20, 32 << 20
"""Bytes of the source of a process. A larger source does not stay in the caches."""
_ROUNDS, _ROUND_SECONDS = 5, 0.1
_TURNS = 2000
_Work = Callable[[int], Callable[[], int]]
"""Allocates so many bytes and returns a function that works through them once and counts them."""
_Call = tuple[Callable[..., None], tuple[Any, ...]]
_LIMIT = 60.0
"""Seconds, far more than it takes to start the processes and to measure."""


def host_here(ranks: int, size: int, cores: float | None = None) -> Host:
    """The constants of a host like this one, with `ranks` ranks that have `size` bytes each.

    `cores` is how many the ranks may use: by default as many as this process, and a fraction if this
    machine simulates several hosts. If ranks and cores outnumber the cores here, the measured rates are
    multiplied. Raises RuntimeError if the measurement fails.
    """
    usable = cpus.usable_here()
    cores = cores or usable
    at_work = min(float(ranks), cores)
    processes = max(1, min(usable, math.floor(at_work)))
    context = _context()
    copied = _rate(context, _copy, processes, size)
    reduced = _rate(context, _reduce, processes, size)
    crowded = ranks > cores or usable == 1
    one_way = _notification(context, crowded)
    return Host(
        cores=cores,
        copy=copied * at_work / processes,
        reduce=reduced * at_work / processes,
        tcp=_tcp(context) * at_work,
        step=one_way * max(1, math.ceil(ranks / cores)),
    )


def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", __name__])
    return context


def _measured(context: ForkServerContext, calls: Sequence[_Call], wanted: int) -> list[Any]:
    """Start a process for each call, with a queue as its last argument, and return `wanted` results from
    this queue. No process outlives the call. Raises RuntimeError if a result does not come."""
    results = context.Queue()
    processes: list[ForkServerProcess] = []
    deadline = time.monotonic() + _LIMIT
    try:
        for target, arguments in calls:
            process = context.Process(target=target, args=(*arguments, results), daemon=True)
            process.start()
            processes.append(process)
        found: list[Any] = []
        while len(found) < wanted:
            try:
                found.append(results.get(timeout=0.2))
            except queue.Empty:
                failed = [each.exitcode for each in processes if each.exitcode]
                if failed or time.monotonic() > deadline:
                    why = f"one ended with status {failed[0]}" if failed else f"not in {_LIMIT:.0f} s"
                    raise RuntimeError(
                        f"the processes that measure this host gave no result: {why}"
                    ) from None
        return found
    finally:
        for process in processes:
            process.kill()
            process.join()


def _rate(context: ForkServerContext, work: _Work, processes: int, size: int) -> float:
    """Bytes in a second that the processes do together, in the median round."""
    bytes_each = max(_LEAST, min(size, _MOST)) // _CHUNK * _CHUNK
    together = context.Barrier(processes)
    calls: list[_Call] = [(_worker, (work, bytes_each, together))] * processes
    rounds = _measured(context, calls, processes)
    return sorted(map(sum, zip(*rounds, strict=True)))[_ROUNDS // 2]


def _worker(work: _Work, bytes_each: int, together: Any, results: Any) -> None:
    once = work(bytes_each)
    once()
    rates = []
    for _ in range(_ROUNDS):
        together.wait(_LIMIT)
        began, done = time.perf_counter(), 0
        while time.perf_counter() - began < _ROUND_SECONDS:
            done += once()
        rates.append(done / (time.perf_counter() - began))
    results.put(rates)


def _copy(size: int) -> Callable[[], int]:
    """Copy as a rank copies its data to its slots."""
    source, slot = ctypes.create_string_buffer(b"1" * size, size), ctypes.create_string_buffer(_CHUNK)
    begin = ctypes.addressof(source)

    def once() -> int:
        for at in range(begin, begin + ctypes.sizeof(source), _CHUNK):
            ctypes.memmove(slot, at, _CHUNK)
        return size

    return once


def _reduce(size: int) -> Callable[[], int]:
    """Add two float32 sources, one of which is a slot."""
    import torch

    torch.set_num_threads(1)
    chunks = torch.ones(size // _CHUNK, _CHUNK // 4).unbind()
    slot, result = torch.ones(_CHUNK // 4), torch.empty(_CHUNK // 4)

    def once() -> int:
        for chunk in chunks:
            torch.add(chunk, slot, out=result)
        return 2 * size

    return once


def _tcp(context: ForkServerContext) -> float:
    """Bytes that one core sends and receives in a second."""
    (rates,) = _measured(context, [(_talk, ())], 1)
    return float(sorted(rates)[_ROUNDS // 2])


def _talk(results: Any) -> None:
    """Send to this process itself, by TCP and on one core."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        receiver, _ = server.accept()
    data, landing = bytes(_CHUNK), bytearray(_CHUNK)

    def send() -> None:
        with contextlib.suppress(OSError):  # the receiver has gone
            while True:
                sender.sendall(data)

    threading.Thread(target=send, daemon=True).start()
    rates = []
    for _ in range(_ROUNDS):
        began, received = time.perf_counter(), 0
        while time.perf_counter() - began < _ROUND_SECONDS:
            received += receiver.recv_into(landing)
        rates.append(2 * received / (time.perf_counter() - began))
    receiver.close()
    results.put(rates)


def _notification(context: ForkServerContext, crowded: bool) -> float:
    """Seconds from a store to shared memory until another process goes on. If `crowded`, both processes
    use one core, so the kernel must switch between them."""
    flags = context.RawArray(ctypes.c_uint64, 16)
    allowed = sorted(os.sched_getaffinity(0))
    places = [allowed[0], allowed[0] if crowded else allowed[-1]]
    calls: list[_Call] = [(_bounce, (flags, mine, place, crowded)) for mine, place in enumerate(places)]
    (times,) = _measured(context, calls, 1)
    return float(sorted(times)[len(times) // 2]) / 2


def _bounce(flags: Any, mine: int, cpu: int, crowded: bool, results: Any) -> None:
    """Set the own flag and wait for the flag of the other process, many times. Each flag has a cache line
    of its own. Process 0 reports how long each turn took, there and back."""
    os.sched_setaffinity(0, {cpu})
    own, other = 8 * mine, 8 * (1 - mine)
    times = []
    for turn in range(1, _TURNS + 1):
        began = time.perf_counter()
        if mine == 0:
            flags[own] = turn
        while flags[other] < turn:
            if crowded:
                os.sched_yield()
        if mine == 1:
            flags[own] = turn
        times.append(time.perf_counter() - began)
    if mine == 0:
        results.put(times)
