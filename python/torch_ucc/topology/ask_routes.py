"""Asks UCC and UCX which way a call goes, by making it: in a process of its own, since both are told only
once how much to say."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from torch_ucc._native import extension
from torch_ucc._torch import reduce_scatter_single
from torch_ucc.topology import routes
from torch_ucc.topology.routes import Protocol, Route


def listen(folder: Path) -> None:
    """Have the libraries write there what they choose. Before the first group of the process."""
    if torch.distributed.is_initialized():
        raise RuntimeError("UCC and UCX have started already, so what they log cannot be changed")
    mine = os.getpid()
    os.environ.update(
        UCC_LOG_FILE=str(folder / f"ucc-{mine}"),
        UCC_LOG_LEVEL="debug",  # where it shows by which function each range of sizes goes
        UCC_COLL_TRACE="info",
        UCX_LOG_FILE=str(folder / f"ucx-{mine}"),
        UCX_PROTO_INFO="y",
    )


def ask(op: str, size: int, folder: Path) -> Route:
    """Which way a call of `op` with a tensor of `size` bytes goes, in the default group of a process that
    called `listen(folder)`. Collective; what comes back on rank 0 counts. Raises ValueError."""
    ranks = dist.get_world_size()
    if op not in CALLS:
        raise ValueError(f"{op!r} is not one of {', '.join(CALLS)}")
    if op in _SHARED_OUT and size % ranks:
        raise ValueError(
            f"{op} divides a tensor evenly among the ranks: {size} bytes are no multiple of {ranks}"
        )
    before = len(heard(folder, "ucc"))
    CALLS[op](size)
    log = heard(folder, "ucc")
    backend = extension.backend_of(dist.group.WORLD)
    way = routes.ways(not backend.why_not_through_memory, backend.has_levels, backend.has_even_levels)[op]
    told: list[list[Protocol]] = [[]] * ranks
    dist.all_gather_object(told, routes.protocols(heard(folder, "ucx"), way))
    message = None if way != routes.BY_MESSAGES else size // ranks if op in _SHARED_OUT else size
    given = tuple(routes.collectives(log[before:], log))
    rows = [row for row in routes.merged(told) if message is None or row.covers(message)]
    return Route(op, size, ranks, way, given, message, tuple(rows))


def heard(folder: Path, library: str) -> str:
    """What the library has said in this process since `listen`."""
    ctypes.CDLL(None).fflush(None)
    file = folder / f"{library}-{os.getpid()}"
    return file.read_text(errors="replace") if file.exists() else ""


def _bytes(count: int) -> torch.Tensor:
    return torch.zeros(count, dtype=torch.uint8)


def _each(count: int) -> list[torch.Tensor]:
    return [_bytes(count) for _ in range(dist.get_world_size())]


def _at_root(tensors: list[torch.Tensor]) -> list[torch.Tensor] | None:
    return tensors if dist.get_rank() == 0 else None


def _send(size: int) -> None:
    """Everybody to the next, and rank 0 to all: where there are several hosts, also to another one."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    pairs = sorted({(i, (i + 1) % ranks) for i in range(ranks)} | {(0, i) for i in range(ranks)})
    calls = [dist.P2POp(dist.isend, _bytes(size), to) for one, to in pairs if rank == one != to]
    calls += [dist.P2POp(dist.irecv, _bytes(size), one) for one, to in pairs if rank == to != one]
    for work in dist.batch_isend_irecv(calls) if calls else []:
        work.wait()


def _reduce_scatter(size: int) -> None:
    reduce_scatter_single(_bytes(size // dist.get_world_size()), _bytes(size))


CALLS: dict[str, Callable[[int], object]] = {
    "all_reduce": lambda size: dist.all_reduce(_bytes(size)),
    "reduce": lambda size: dist.reduce(_bytes(size), 0),
    "reduce_scatter_tensor": _reduce_scatter,
    "broadcast": lambda size: dist.broadcast(_bytes(size), 0),
    "all_gather": lambda size: dist.all_gather(_each(size), _bytes(size)),
    "barrier": lambda size: dist.barrier(),
    "all_to_all_single": lambda size: dist.all_to_all_single(_bytes(size), _bytes(size)),
    "gather": lambda size: dist.gather(_bytes(size), _at_root(_each(size)), 0),
    "scatter": lambda size: dist.scatter(_bytes(size), _at_root(_each(size)), 0),
    "send": _send,
}
"""With a tensor of so many bytes: the one that is reduced or sent, the input of what is gathered or shared
out, the part of what is scattered."""

_SHARED_OUT = ("reduce_scatter_tensor", "all_to_all_single")
