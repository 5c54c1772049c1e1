"""What the ranks on the simulated hosts do."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch_ucc
from torch_ucc._torch import all_gather_single, reduce_scatter_single

SHORTEST, LEAST_CALLS, MOST_CALLS = 0.5, 3, 300
"""Seconds and calls for which each operation is timed."""


def call_of(op: str, size: int) -> Callable[[], object]:
    """`size`: bytes of the whole tensor, also where each rank has a part of it."""
    ranks = dist.get_world_size()
    whole = torch.zeros(size // 4 // ranks * ranks)
    part = torch.zeros(whole.numel() // ranks)
    calls: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: dist.all_reduce(whole),
        "reduce": lambda: dist.reduce(whole, 0),
        "reduce_scatter": lambda: reduce_scatter_single(part, whole),
        "all_gather": lambda: all_gather_single(whole, part),
        "broadcast": lambda: dist.broadcast(whole, 0),
        "barrier": dist.barrier,
    }
    return calls[op]


def time_all(cases: list[tuple[str, int]]) -> list[tuple[float, bool]]:
    """For each operation and size: the seconds that the slowest rank took, of all calls the median, and
    whether the calls went in levels."""
    return [_time(call_of(op, size)) for op, size in cases]


def _time(call: Callable[[], object]) -> tuple[float, bool]:
    def in_levels() -> int:
        return int(torch_ucc.stats()["paths"].get("levels", {}).get("calls", 0))

    first = in_levels()
    call()
    taken = in_levels() > first
    calls = torch.tensor([0.0])
    began = time.perf_counter()
    call()
    calls[0] = min(MOST_CALLS, max(LEAST_CALLS, SHORTEST / (time.perf_counter() - began)))
    dist.broadcast(calls, 0)
    times = []
    for _ in range(int(calls)):
        dist.barrier()
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    slowest = torch.tensor(times)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return statistics.median(slowest.tolist()), taken


def latency(other: int) -> float:
    """On rank 0: half of the seconds that 4 bytes take to rank `other` and back."""
    rank, tensor = dist.get_rank(), torch.zeros(1)
    times = []
    for _ in range(500):
        began = time.perf_counter()
        if rank == 0:
            dist.send(tensor, other)
            dist.recv(tensor, other)
        elif rank == other:
            dist.recv(tensor, 0)
            dist.send(tensor, 0)
        times.append(time.perf_counter() - began)
    return statistics.median(times) / 2
