"""The operations, called on any tensor and completed in any of the ways there are.

By the group's own methods: torch.distributed's functions show a backend no complex tensor and no float8, and
refuse some calls themselves. Roots and peers are ranks of the group.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
import torch.distributed as dist
import torch_ucc
from reference import reduce_op
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllToAllOptions,
    BarrierOptions,
    GatherOptions,
    ReduceScatterOptions,
)

Tensors = Sequence[torch.Tensor]
Started = dist.Work | None  # nothing from a call that is not asynchronous: it has waited
Options = TypeVar("Options")

CPU = torch.device("cpu")


def _target(group: dist.ProcessGroup, *tensors: torch.Tensor) -> dist.ProcessGroup:
    """The group; or its backend where a tensor is conjugated or negated only in name.

    torch's dispatcher resolves such a tensor into a copy before a backend sees it, and the result ends there.
    """
    if any(tensor.is_conj() or tensor.is_neg() for tensor in tensors):
        return group._get_backend(CPU)
    return group


def _options(kind: type[Options], async_op: bool, **fields: object) -> Options:
    options = kind()
    for name, value in {"asyncOp": async_op, **fields}.items():
        setattr(options, name, value)
    return options


def all_reduce(tensor: torch.Tensor, op: str, group: dist.ProcessGroup, async_op: bool = True) -> Started:
    options = _options(dist.AllreduceOptions, async_op, reduceOp=reduce_op(op))
    return _target(group, tensor).allreduce([tensor], options)


def all_reduce_coalesced(
    tensors: Tensors, op: str, group: dist.ProcessGroup, async_op: bool = True
) -> Started:
    options = _options(dist.AllreduceCoalescedOptions, async_op, reduceOp=reduce_op(op))
    return _target(group, *tensors).allreduce_coalesced(tensors, options)


def reduce(
    tensor: torch.Tensor, root: int, op: str, group: dist.ProcessGroup, async_op: bool = True
) -> Started:
    options = _options(dist.ReduceOptions, async_op, reduceOp=reduce_op(op), rootRank=root, rootTensor=0)
    return _target(group, tensor).reduce([tensor], options)


def reduce_scatter(
    output: torch.Tensor, inputs: Tensors, op: str, group: dist.ProcessGroup, async_op: bool = True
) -> Started:
    options = _options(ReduceScatterOptions, async_op, reduceOp=reduce_op(op))
    return _target(group, output, *inputs).reduce_scatter([output], [inputs], options)


def reduce_scatter_tensor(
    output: torch.Tensor, mine: torch.Tensor, op: str, group: dist.ProcessGroup, async_op: bool = True
) -> Started:
    options = _options(ReduceScatterOptions, async_op, reduceOp=reduce_op(op))
    return _target(group, output, mine)._reduce_scatter_base(output, mine, options)


def reduce_scatter_tensor_coalesced(
    outputs: Tensors, inputs: Tensors, op: str, group: dist.ProcessGroup, async_op: bool = True
) -> Started:
    """Python sees no such method of a backend, so no output may be conjugated or negated only in name."""
    options = _options(ReduceScatterOptions, async_op, reduceOp=reduce_op(op))
    return group.reduce_scatter_tensor_coalesced(outputs, inputs, options)


def broadcast(tensor: torch.Tensor, root: int, group: dist.ProcessGroup, async_op: bool = True) -> Started:
    options = _options(dist.BroadcastOptions, async_op, rootRank=root, rootTensor=0)
    return _target(group, tensor).broadcast([tensor], options)


def all_gather(
    outputs: Tensors, mine: torch.Tensor, group: dist.ProcessGroup, async_op: bool = True
) -> Started:
    options = _options(AllgatherOptions, async_op)
    return _target(group, mine, *outputs).allgather([outputs], [mine], options)


def all_gather_into(
    output: torch.Tensor, mine: torch.Tensor, group: dist.ProcessGroup, async_op: bool = True
) -> Started:
    return _target(group, mine, output)._allgather_base(output, mine, _options(AllgatherOptions, async_op))


def all_gather_coalesced(
    outputs: Sequence[Tensors], inputs: Tensors, group: dist.ProcessGroup, async_op: bool = True
) -> Started:
    """`outputs[rank][i]` becomes the i-th input of that rank."""
    target = _target(group, *inputs, *(each for of_rank in outputs for each in of_rank))
    return target.allgather_coalesced(outputs, inputs, _options(AllgatherOptions, async_op))


def all_gather_into_coalesced(
    outputs: Tensors, inputs: Tensors, group: dist.ProcessGroup, async_op: bool = True
) -> Started:
    """As for reduce_scatter_tensor_coalesced, no output may be conjugated or negated only in name."""
    return group.allgather_into_tensor_coalesced(outputs, inputs, _options(AllgatherOptions, async_op))


def gather(
    outputs: Tensors, mine: torch.Tensor, root: int, group: dist.ProcessGroup, async_op: bool = True
) -> Started:
    """`outputs` is empty but on the root."""
    options = _options(GatherOptions, async_op, rootRank=root)
    return _target(group, mine, *outputs).gather([outputs] if outputs else [], [mine], options)


def gather_single(
    output: torch.Tensor, mine: torch.Tensor, root: int, group: dist.ProcessGroup, async_op: bool = True
) -> Started:
    """Of torch 2.14 and later. `output` is used on the root only."""
    options = _options(GatherOptions, async_op, rootRank=root)
    return _target(group, mine, output).gather_single(output, mine, options)


def scatter(
    output: torch.Tensor, inputs: Tensors, root: int, group: dist.ProcessGroup, async_op: bool = True
) -> Started:
    """`inputs` is empty but on the root."""
    options = _options(dist.ScatterOptions, async_op, rootRank=root)
    return _target(group, output, *inputs).scatter([output], [inputs] if inputs else [], options)


def all_to_all(outputs: Tensors, inputs: Tensors, group: dist.ProcessGroup, async_op: bool = True) -> Started:
    return _target(group, *outputs, *inputs).alltoall(outputs, inputs, _options(AllToAllOptions, async_op))


def all_to_all_single(
    output: torch.Tensor,
    mine: torch.Tensor,
    group: dist.ProcessGroup,
    async_op: bool = True,
    splits: tuple[Sequence[int], Sequence[int]] = ((), ()),
) -> Started:
    """`splits` of the output and of the input, in rows; none: even."""
    options = _options(AllToAllOptions, async_op)
    return _target(group, output, mine).alltoall_base(output, mine, *splits, options)


def send(tensor: torch.Tensor, to: int, group: dist.ProcessGroup, tag: int = 0) -> dist.Work:
    return _target(group, tensor).send([tensor], to, tag)


def recv(tensor: torch.Tensor, source: int, group: dist.ProcessGroup, tag: int = 0) -> dist.Work:
    return _target(group, tensor).recv([tensor], source, tag)


def recv_any_source(tensor: torch.Tensor, group: dist.ProcessGroup, tag: int = 0) -> dist.Work:
    return _target(group, tensor).recv_anysource([tensor], tag)


def barrier(group: dist.ProcessGroup, async_op: bool = True) -> Started:
    return group.barrier(_options(BarrierOptions, async_op))


def monitored_barrier(group: dist.ProcessGroup) -> None:
    torch_ucc.monitored_barrier(group)


def by_wait(work: dist.Work) -> None:
    work.wait()


def by_future(work: dist.Work) -> None:
    work.get_future().wait()


def by_polling(work: dist.Work) -> None:
    while not work.is_completed():
        time.sleep(0)
    assert work.is_success()


COMPLETIONS: tuple[Callable[[dist.Work], None], ...] = (by_wait, by_future, by_polling)


def _store() -> dist.Store:
    return dist.distributed_c10d._get_default_store()


def say(what: str) -> None:
    """Rank order without time: what one rank says, others hear, in whatever state their groups are."""
    _store().add(f"test/{what}", 1)  # unlike set(), it returns only once the store has it


def hear(what: str) -> None:
    _store().wait([f"test/{what}"])


def was_said(*whats: str) -> bool:
    return _store().check([f"test/{what}" for what in whats])


def refusal(call: Callable[[], object]) -> tuple[str, str] | None:
    """Type and text of what the call raises."""
    try:
        call()
    except Exception as error:
        return type(error).__name__, str(error)
    return None


def usable(group: dist.ProcessGroup | None = None) -> bool:
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=group)
    return bool((tensor == dist.get_world_size(group)).all())


Report = tuple[int, int, list[str]]


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

    def report(self) -> Report:
        return self.checked, self.count, self.first


def assert_all_well(reports: Sequence[Report], at_least: int) -> None:
    """Of all ranks: each did at least so many checks, and none failed."""
    for rank, (checked, count, first) in enumerate(reports):
        assert count == 0, f"rank {rank}: {count} of {checked} checks failed\n" + "\n".join(first)
        assert checked >= at_least, f"rank {rank} did only {checked} checks"
