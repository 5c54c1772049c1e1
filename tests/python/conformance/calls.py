"""The collectives, called on any tensor and completed in any of the ways there are."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
import torch.distributed as dist
from reference import reduce_op
from torch._C._distributed_c10d import AllgatherOptions

SIZES = (0, 1, 3, 1000, 70_000)
PIECE_BYTES = 1 << 20


def sizes_of(dtype: torch.dtype) -> tuple[int, ...]:
    """Numbers of elements that matter: the last is sent as several pieces, with a short one at the end."""
    return (*SIZES, PIECE_BYTES // min(dtype.itemsize, 4) + 5)


def _target(group: dist.ProcessGroup, *tensors: torch.Tensor) -> dist.ProcessGroup:
    """The group; or its backend where a tensor is conjugated or negated only in name.

    torch's dispatcher resolves such a tensor into a copy before a backend sees it, and the result ends there.
    """
    if any(tensor.is_conj() or tensor.is_neg() for tensor in tensors):
        return group._get_backend(torch.device("cpu"))
    return group


def all_reduce(tensor: torch.Tensor, op: str, group: dist.ProcessGroup, async_op: bool = True) -> dist.Work:
    """By the group's own method: dist.all_reduce shows a backend no complex tensor."""
    options = dist.AllreduceOptions()
    options.reduceOp = reduce_op(op)
    options.asyncOp = async_op
    return _target(group, tensor).allreduce([tensor], options)


def broadcast(tensor: torch.Tensor, root: int, group: dist.ProcessGroup, async_op: bool = True) -> dist.Work:
    """`root` is a rank of the group. By the group's own method: dist.broadcast shows float8 as bytes."""
    options = dist.BroadcastOptions()
    options.rootRank = root
    options.rootTensor = 0
    options.asyncOp = async_op
    return _target(group, tensor).broadcast([tensor], options)


def all_gather(
    outputs: list[torch.Tensor], mine: torch.Tensor, group: dist.ProcessGroup, async_op: bool = True
) -> dist.Work:
    options = AllgatherOptions()
    options.asyncOp = async_op
    return _target(group, mine, *outputs).allgather([outputs], [mine], options)


def all_gather_into(
    output: torch.Tensor, mine: torch.Tensor, group: dist.ProcessGroup, async_op: bool = True
) -> dist.Work:
    options = AllgatherOptions()
    options.asyncOp = async_op
    return _target(group, mine, output)._allgather_base(output, mine, options)


def by_wait(work: dist.Work) -> None:
    work.wait()


def by_future(work: dist.Work) -> None:
    work.get_future().wait()


def by_polling(work: dist.Work) -> None:
    while not work.is_completed():
        pass
    assert work.is_success()


COMPLETIONS: tuple[Callable[[dist.Work], None], ...] = (by_wait, by_future, by_polling)


class Failures:
    """What went wrong on this rank: the first few in words, all of them counted."""

    def __init__(self) -> None:
        self.count = 0
        self.first: list[str] = []
        self.checked = 0
        self._lock = threading.Lock()

    def note(self, case: object, wrong: str | None) -> None:
        with self._lock:
            self.checked += 1
            if wrong is not None:
                self.count += 1
                if len(self.first) < 20:
                    self.first.append(f"{case}: {wrong}")

    def report(self) -> tuple[int, int, list[str]]:
        return self.checked, self.count, self.first


def assert_all_well(reports: list[tuple[int, int, list[str]]], at_least: int) -> None:
    """Of all ranks: each did at least so many checks, and none failed."""
    for rank, (checked, count, first) in enumerate(reports):
        assert count == 0, f"rank {rank}: {count} of {checked} checks failed\n" + "\n".join(first)
        assert checked >= at_least, f"rank {rank} did only {checked} checks"
