"""The operations as users of torch.distributed call them, by the signatures of calls.py.

torch itself rewrites some tensors on the way. A call that is not asynchronous returns None.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
import torch_ucc
from calls import Tensors
from reference import reduce_op
from torch.distributed.distributed_c10d import _coalescing_manager, _CoalescingManager
from torch_ucc._torch import all_gather_single, reduce_scatter_single

Started = dist.Work | None


def all_reduce(tensor: torch.Tensor, op: str, group: dist.ProcessGroup, async_op: bool) -> Started:
    return dist.all_reduce(tensor, reduce_op(op), group, async_op)


def all_reduce_coalesced(
    tensors: Tensors, op: str, group: dist.ProcessGroup, async_op: bool
) -> _CoalescingManager | None:
    with _coalescing_manager(group, async_ops=async_op) as batch:
        for tensor in tensors:
            dist.all_reduce(tensor, reduce_op(op), group)
    return batch if async_op else None


def reduce(tensor: torch.Tensor, root: int, op: str, group: dist.ProcessGroup, async_op: bool) -> Started:
    return dist.reduce(tensor, op=reduce_op(op), group=group, async_op=async_op, group_dst=root)


def reduce_scatter(
    output: torch.Tensor, inputs: Tensors, op: str, group: dist.ProcessGroup, async_op: bool
) -> Started:
    return dist.reduce_scatter(output, inputs, reduce_op(op), group, async_op)


def reduce_scatter_tensor(
    output: torch.Tensor, mine: torch.Tensor, op: str, group: dist.ProcessGroup, async_op: bool
) -> Started:
    return reduce_scatter_single(output, mine, reduce_op(op), group, async_op)


def reduce_scatter_tensor_coalesced(
    outputs: Tensors, inputs: Tensors, op: str, group: dist.ProcessGroup, async_op: bool
) -> _CoalescingManager | None:
    with _coalescing_manager(group, async_ops=async_op) as batch:
        for output, mine in zip(outputs, inputs, strict=True):
            reduce_scatter_single(output, mine, reduce_op(op), group)
    return batch if async_op else None


def broadcast(tensor: torch.Tensor, root: int, group: dist.ProcessGroup, async_op: bool) -> Started:
    return dist.broadcast(tensor, group=group, async_op=async_op, group_src=root)


def all_gather(outputs: Tensors, mine: torch.Tensor, group: dist.ProcessGroup, async_op: bool) -> Started:
    return dist.all_gather(outputs, mine, group, async_op)


def all_gather_into(
    output: torch.Tensor, mine: torch.Tensor, group: dist.ProcessGroup, async_op: bool
) -> Started:
    return all_gather_single(output, mine, group, async_op)


def all_gather_coalesced(
    outputs: Sequence[Tensors], inputs: Tensors, group: dist.ProcessGroup, async_op: bool
) -> Started:
    return dist.all_gather_coalesced(outputs, inputs, group, async_op)


def all_gather_into_coalesced(
    outputs: Tensors, inputs: Tensors, group: dist.ProcessGroup, async_op: bool
) -> _CoalescingManager | None:
    with _coalescing_manager(group, async_ops=async_op) as batch:
        for output, mine in zip(outputs, inputs, strict=True):
            all_gather_single(output, mine, group)
    return batch if async_op else None


def gather(
    outputs: Tensors, mine: torch.Tensor, root: int, group: dist.ProcessGroup, async_op: bool
) -> Started:
    return dist.gather(mine, outputs or None, group=group, async_op=async_op, group_dst=root)


def gather_single(
    output: torch.Tensor, mine: torch.Tensor, root: int, group: dist.ProcessGroup, async_op: bool
) -> Started:
    given = output if group.rank() == root else None
    return dist.gather_single(mine, given, group=group, async_op=async_op, group_dst=root)


def scatter(
    output: torch.Tensor, inputs: Tensors, root: int, group: dist.ProcessGroup, async_op: bool
) -> Started:
    return dist.scatter(output, inputs or None, group=group, async_op=async_op, group_src=root)


def all_to_all(outputs: Tensors, inputs: Tensors, group: dist.ProcessGroup, async_op: bool) -> Started:
    return dist.all_to_all(outputs, inputs, group, async_op)


def all_to_all_single(
    output: torch.Tensor,
    mine: torch.Tensor,
    group: dist.ProcessGroup,
    async_op: bool,
    splits: tuple[Sequence[int], Sequence[int]] = ((), ()),
) -> Started:
    return dist.all_to_all_single(output, mine, *(list(each) or None for each in splits), group, async_op)


def send(tensor: torch.Tensor, to: int, group: dist.ProcessGroup, tag: int) -> Started:
    return dist.isend(tensor, group=group, tag=tag, group_dst=to)


def recv(tensor: torch.Tensor, source: int, group: dist.ProcessGroup, tag: int) -> Started:
    return dist.irecv(tensor, group=group, tag=tag, group_src=source)


def recv_any_source(tensor: torch.Tensor, group: dist.ProcessGroup, tag: int) -> Started:
    return dist.irecv(tensor, group=group, tag=tag)


def barrier(group: dist.ProcessGroup, async_op: bool) -> Started:
    return dist.barrier(group, async_op)


def monitored_barrier(group: dist.ProcessGroup) -> None:
    torch_ucc.monitored_barrier(group)
