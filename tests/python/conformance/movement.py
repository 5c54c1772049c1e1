"""The cases of what only moves data, and of barriers."""

from __future__ import annotations

import dataclasses

import torch
import torch.distributed as dist
from calls import say, was_said
from layouts import resolved, sliceable
from points import Attempt, Case, Claim, Point, hold, holds
from reference import DTYPES
from torch_ucc._torch import HAS_2_14


def broadcast(p: Point) -> Attempt:
    tensor = p.output(p.values(p.rank))
    return Attempt(
        lambda async_op: [p.calls.broadcast(tensor, p.root, p.group, async_op)],
        [holds("tensor", tensor, p.values(p.root))],
    )


def all_gather(p: Point) -> Attempt:
    return _all_gather(p, [p.numel] * p.size)


def all_gather_uneven(p: Point) -> Attempt:
    return _all_gather(p, p.lengths())


def _all_gather(p: Point, lengths: list[int]) -> Attempt:
    parts = [p.values(rank, 0, numel) for rank, numel in enumerate(lengths)]
    outputs = p.outputs(_own_only(p, parts) if p.in_place else [p.blank(numel) for numel in lengths])
    mine = outputs[p.rank] if p.in_place else p.input(parts[p.rank])
    return Attempt(
        lambda async_op: [p.calls.all_gather(outputs, mine, p.group, async_op)],
        hold("output", outputs, parts),
        [holds("input", mine, parts[p.rank])],
    )


def all_gather_into(p: Point) -> Attempt:
    parts = [p.values(rank) for rank in p.ranks]
    if p.in_place:
        output = p.row(torch.cat(_own_only(p, parts)))
        mine = p.part(output, p.rank)
    else:
        output = p.output(p.blank(p.numel * p.size))
        mine = p.input(parts[p.rank])
    return Attempt(
        lambda async_op: [p.calls.all_gather_into(output, mine, p.group, async_op)],
        [holds("output", output, torch.cat(parts))],
        [holds("input", mine, parts[p.rank])],
    )


def _own_only(p: Point, parts: list[torch.Tensor]) -> list[torch.Tensor]:
    return [part if rank == p.rank else torch.zeros_like(part) for rank, part in enumerate(parts)]


def _several(p: Point) -> list[int]:
    """Numbers of elements of the tensors of one coalesced call."""
    return [p.numel, 0, p.numel // 2 + 1]


def all_gather_coalesced(p: Point) -> Attempt:
    lengths = _several(p)
    parts = [[p.values(rank, i, numel) for i, numel in enumerate(lengths)] for rank in p.ranks]
    outputs = [p.outputs([p.blank(numel) for numel in lengths]) for _ in p.ranks]
    inputs = p.inputs(parts[p.rank])
    return Attempt(
        lambda async_op: [p.calls.all_gather_coalesced(outputs, inputs, p.group, async_op)],
        [claim for rank in p.ranks for claim in hold(f"output {rank}", outputs[rank], parts[rank])],
        hold("input", inputs, parts[p.rank]),
    )


def all_gather_into_coalesced(p: Point) -> Attempt:
    p = dataclasses.replace(p, out_layout=resolved(p.out_layout))
    lengths = _several(p)
    parts = [[p.values(rank, i, numel) for rank in p.ranks] for i, numel in enumerate(lengths)]
    outputs = p.outputs([p.blank(numel * p.size) for numel in lengths])
    inputs = p.inputs([each[p.rank] for each in parts])
    return Attempt(
        lambda async_op: [p.calls.all_gather_into_coalesced(outputs, inputs, p.group, async_op)],
        hold("output", outputs, [torch.cat(each) for each in parts]),
        hold("input", inputs, [each[p.rank] for each in parts]),
    )


def gather(p: Point) -> Attempt:
    return _gather(p, [p.numel] * p.size)


def gather_uneven(p: Point) -> Attempt:
    return _gather(p, p.lengths())


def _gather(p: Point, lengths: list[int]) -> Attempt:
    parts = [p.values(rank, 0, numel) for rank, numel in enumerate(lengths)]
    outputs = []
    if p.is_root:
        outputs = p.outputs(_own_only(p, parts) if p.in_place else [p.blank(numel) for numel in lengths])
    mine = outputs[p.rank] if p.in_place and p.is_root else p.input(parts[p.rank])
    return Attempt(
        lambda async_op: [p.calls.gather(outputs, mine, p.root, p.group, async_op)],
        hold("output", outputs, parts if p.is_root else []),
        [holds("input", mine, parts[p.rank])],
    )


def gather_single(p: Point) -> Attempt:
    parts = [p.values(rank) for rank in p.ranks]
    output = torch.empty(0, dtype=p.dtype)
    if p.is_root:
        output = p.there(torch.cat(_own_only(p, parts) if p.in_place else [p.blank(p.numel)] * p.size))
    mine = p.part(output, p.rank) if p.in_place and p.is_root else p.input(parts[p.rank])
    return Attempt(
        lambda async_op: [p.calls.gather_single(output, mine, p.root, p.group, async_op)],
        [holds("output", output, torch.cat(parts))] if p.is_root else [],
        [holds("input", mine, parts[p.rank])],
    )


def scatter(p: Point) -> Attempt:
    return _scatter(p, [p.numel] * p.size)


def scatter_uneven(p: Point) -> Attempt:
    return _scatter(p, p.lengths())


def _scatter(p: Point, lengths: list[int]) -> Attempt:
    parts = [p.values(p.root, slot, numel) for slot, numel in enumerate(lengths)]
    inputs = p.inputs(parts) if p.is_root else []
    output = inputs[p.rank] if p.in_place and p.is_root else p.output(p.blank(lengths[p.rank]))
    return Attempt(
        lambda async_op: [p.calls.scatter(output, inputs, p.root, p.group, async_op)],
        [holds("output", output, parts[p.rank])],
        hold("input", inputs, parts if p.is_root else []),
    )


def all_to_all(p: Point) -> Attempt:
    return _all_to_all(p, [[p.numel] * p.size] * p.size)


def all_to_all_uneven(p: Point) -> Attempt:
    return _all_to_all(p, [p.lengths(2 * rank) for rank in p.ranks])


def _all_to_all(p: Point, lengths: list[list[int]]) -> Attempt:
    """`lengths[a][b]` elements go from a to b."""
    parts = [p.values(p.rank, to, numel) for to, numel in enumerate(lengths[p.rank])]
    expected = [p.values(rank, p.rank, lengths[rank][p.rank]) for rank in p.ranks]
    inputs = p.inputs(parts)
    outputs = p.outputs([torch.zeros_like(each) for each in expected])
    return Attempt(
        lambda async_op: [p.calls.all_to_all(outputs, inputs, p.group, async_op)],
        hold("output", outputs, expected),
        hold("input", inputs, parts),
    )


def all_to_all_single(p: Point) -> Attempt:
    return _all_to_all_single(p, [[p.numel] * p.size] * p.size, split=False)


def all_to_all_single_split(p: Point) -> Attempt:
    return _all_to_all_single(p, [p.lengths(2 * rank) for rank in p.ranks], split=True)


def _all_to_all_single(p: Point, lengths: list[list[int]], split: bool) -> Attempt:
    sent, received = lengths[p.rank], [lengths[rank][p.rank] for rank in p.ranks]
    values = torch.cat([p.values(p.rank, to, numel) for to, numel in enumerate(sent)])
    expected = torch.cat([p.values(rank, p.rank, numel) for rank, numel in enumerate(received)])
    mine = p.there(sliceable(p.layout)(values))
    output = p.row(torch.zeros_like(expected))
    splits = (received, sent) if split else ((), ())
    return Attempt(
        lambda async_op: [p.calls.all_to_all_single(output, mine, p.group, async_op, splits)],
        [holds("output", output, expected)],
        [holds("input", mine, values)],
    )


def all_to_all_single_rows(p: Point) -> Attempt:
    """Splits count rows, of memory that need not be in the order of rows."""
    lengths, width = [p.lengths(2 * rank) for rank in p.ranks], 3
    sent, received = lengths[p.rank], [lengths[rank][p.rank] for rank in p.ranks]
    values = torch.cat([p.values(p.rank, to, width * rows) for to, rows in enumerate(sent)])
    expected = torch.cat([p.values(rank, p.rank, width * rows) for rank, rows in enumerate(received)])
    mine = torch.empty(width, sum(sent), dtype=p.dtype).t()
    mine.copy_(values.view(-1, width))
    mine = p.there(mine)
    output = p.there(torch.zeros(width, sum(received), dtype=p.dtype).t())
    return Attempt(
        lambda async_op: [p.calls.all_to_all_single(output, mine, p.group, async_op, (received, sent))],
        [holds("output", output, expected)],
        [holds("input", mine, values)],
    )


def barrier(p: Point) -> Attempt:
    def start(async_op: bool) -> list[dist.Work]:
        say(_entry(p, "barrier", p.rank))
        return [p.calls.barrier(p.group, async_op)]

    return Attempt(start, [_all_entered(p, "barrier")])


def monitored_barrier(p: Point) -> Attempt:
    def start(async_op: bool) -> list[dist.Work]:
        say(_entry(p, "monitored", p.rank))
        p.calls.monitored_barrier(p.group)
        return []

    return Attempt(start, [_all_entered(p, "monitored")])


def _entry(p: Point, kind: str, rank: int) -> str:
    return f"{p.group.group_name} {kind} {p.salt} entered by {rank}"


def _all_entered(p: Point, kind: str) -> Claim:
    keys = [_entry(p, kind, rank) for rank in p.ranks]
    return Claim("ranks", lambda: None if was_said(*keys) else "left before all had entered")


EVERY = tuple((dtype, "") for dtype in DTYPES)
ONCE = ((torch.float32, ""),)

MOVEMENT: dict[str, tuple[Case, ...]] = {
    "all_gather": (Case(all_gather, EVERY, every_layout=True), Case(all_gather_uneven, EVERY)),
    "all_gather_coalesced": (Case(all_gather_coalesced, EVERY),),
    "all_gather_into_tensor": (Case(all_gather_into, EVERY, every_layout=True),),
    "all_gather_into_tensor_coalesced": (Case(all_gather_into_coalesced, EVERY),),
    "all_to_all": (Case(all_to_all, EVERY), Case(all_to_all_uneven, EVERY)),
    "all_to_all_single": (
        Case(all_to_all_single, EVERY),
        Case(all_to_all_single_split, EVERY),
        Case(all_to_all_single_rows, EVERY),
    ),
    "barrier": (Case(barrier, ONCE),),
    "broadcast": (Case(broadcast, EVERY, every_layout=True),),
    "gather": (Case(gather, EVERY), Case(gather_uneven, EVERY)),
    **({"gather_single": (Case(gather_single, EVERY),)} if HAS_2_14 else {}),
    "monitored_barrier": (Case(monitored_barrier, ONCE),),
    "scatter": (Case(scatter, EVERY), Case(scatter_uneven, EVERY)),
}
