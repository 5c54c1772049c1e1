"""The cases of what reduces."""

from __future__ import annotations

import dataclasses
import math

import torch
from layouts import resolved
from points import Attempt, Case, Claim, Point, hold, holds, is_reduced
from reference import FLOAT8, PAIRS, reduced


def all_reduce(p: Point) -> Attempt:
    tensor = p.output(p.values(p.rank))
    return Attempt(
        lambda async_op: [p.calls.all_reduce(tensor, p.reduce, p.group, async_op)],
        [is_reduced("tensor", tensor, p.reduced)],
    )


def all_reduce_coalesced(p: Point) -> Attempt:
    lengths = [p.numel, 0, p.numel // 2 + 1]
    tensors = p.outputs([p.values(p.rank, i, numel) for i, numel in enumerate(lengths)])
    return Attempt(
        lambda async_op: [p.calls.all_reduce_coalesced(tensors, p.reduce, p.group, async_op)],
        [
            is_reduced(f"tensor {i}", tensors[i], lambda i=i: p.reduced(i, lengths[i]))
            for i in range(len(lengths))
        ],
    )


def reduce(p: Point) -> Attempt:
    """Only the root's tensor changes."""
    values = p.values(p.rank)
    tensor = p.output(values) if p.is_root else p.input(values)
    call = Attempt(lambda async_op: [p.calls.reduce(tensor, p.root, p.reduce, p.group, async_op)], [])
    if p.is_root:
        call.outputs.append(is_reduced("tensor", tensor, p.reduced))
    else:
        call.inputs.append(holds("input", tensor, values))
    return call


def reduce_scatter(p: Point) -> Attempt:
    return _reduce_scatter(p, [p.numel] * p.size)


def reduce_scatter_uneven(p: Point) -> Attempt:
    return _reduce_scatter(p, p.lengths())


def _reduce_scatter(p: Point, lengths: list[int]) -> Attempt:
    values = [p.values(p.rank, slot, numel) for slot, numel in enumerate(lengths)]
    inputs = p.inputs(values)
    output = inputs[p.rank] if p.in_place else p.output(p.blank(lengths[p.rank]))
    only_read = [slot for slot in p.ranks if not (p.in_place and slot == p.rank)]
    return Attempt(
        lambda async_op: [p.calls.reduce_scatter(output, inputs, p.reduce, p.group, async_op)],
        [is_reduced("output", output, lambda: p.reduced(p.rank, lengths[p.rank]))],
        [holds(f"input {slot}", inputs[slot], values[slot]) for slot in only_read],
    )


def reduce_scatter_tensor(p: Point) -> Attempt:
    values = [p.values(p.rank, slot) for slot in p.ranks]
    if p.in_place:
        mine = p.row(torch.cat(values))
        output = p.part(mine, p.rank)
        only_read = [
            holds(f"input {slot}", p.part(mine, slot), values[slot]) for slot in p.ranks if slot != p.rank
        ]
    else:
        mine = p.input(torch.cat(values))
        output = p.output(p.blank())
        only_read = [holds("input", mine, torch.cat(values))]
    return Attempt(
        lambda async_op: [p.calls.reduce_scatter_tensor(output, mine, p.reduce, p.group, async_op)],
        [is_reduced("output", output, lambda: p.reduced(p.rank))],
        only_read,
    )


def reduce_scatter_tensor_coalesced(p: Point) -> Attempt:
    p = dataclasses.replace(p, out_layout=resolved(p.out_layout))
    lengths = [p.numel, 0, p.numel // 2 + 1]
    slots = [[p.size * i + slot for slot in p.ranks] for i in range(len(lengths))]
    values = [
        torch.cat([p.values(p.rank, slot, numel) for slot in of_one])
        for of_one, numel in zip(slots, lengths, strict=True)
    ]
    inputs = p.inputs(values)
    outputs = p.outputs([p.blank(numel) for numel in lengths])
    return Attempt(
        lambda async_op: [
            p.calls.reduce_scatter_tensor_coalesced(outputs, inputs, p.reduce, p.group, async_op)
        ],
        [
            is_reduced(f"output {i}", outputs[i], lambda i=i: p.reduced(slots[i][p.rank], lengths[i]))
            for i in range(len(lengths))
        ],
        hold("input", inputs, values),
    )


def sparse_all_reduce(p: Point) -> Attempt:
    """Each rank has elements of its own and some that others have too; the last of several has none.

    As in an embedding's gradient the first dimension is sparse. Half of the tensors have a dense one too.
    """
    shape = (p.numel, 2) if p.salt % 2 else (p.numel,)

    def has(rank: int) -> torch.Tensor:
        return torch.arange(p.numel) % (rank + 2) == (p.numel if 0 < rank == p.size - 1 else 0)

    def dense(rank: int) -> torch.Tensor:
        values = p.values(rank, 0, math.prod(shape)).view(shape)
        values[~has(rank)] = 0
        return values

    values = dense(p.rank)[has(p.rank)]
    tensor = torch.sparse_coo_tensor(has(p.rank).nonzero().t(), values, shape, check_invariants=True)
    tensor = tensor.to(p.device)

    def wrong() -> str | None:
        if tensor.layout is not torch.sparse_coo:
            return f"the tensor is {tensor.layout}"
        inputs = [dense(rank).flatten() for rank in p.ranks]
        return reduced(p.reduce, inputs, math.prod(shape)).wrong(tensor.cpu().to_dense())

    return Attempt(
        lambda async_op: [p.calls.all_reduce(tensor, p.reduce, p.group, async_op)], [Claim("tensor", wrong)]
    )


NEVER_SPARSE = (*FLOAT8, torch.complex32, torch.uint16, torch.uint32, torch.uint64)  # in torch itself
SPARSE_PAIRS = tuple((dtype, op) for dtype, op in PAIRS if op in ("SUM", "AVG") and dtype not in NEVER_SPARSE)

REDUCTIONS: dict[str, tuple[Case, ...]] = {
    "all_reduce": (Case(all_reduce, PAIRS, every_layout=True),),
    "all_reduce_coalesced": (Case(all_reduce_coalesced, PAIRS),),
    "reduce": (Case(reduce, PAIRS),),
    "reduce_scatter": (Case(reduce_scatter, PAIRS), Case(reduce_scatter_uneven, PAIRS)),
    "reduce_scatter_tensor": (Case(reduce_scatter_tensor, PAIRS),),
    "reduce_scatter_tensor_coalesced": (Case(reduce_scatter_tensor_coalesced, PAIRS),),
    "sparse_all_reduce": (Case(sparse_all_reduce, SPARSE_PAIRS),),
}
