"""The cases of point-to-point messages: every rank of the group sends to one and receives from one."""

from __future__ import annotations

import torch.distributed as dist
from movement import EVERY
from points import Attempt, Case, Claim, Point, holds
from reference import exactly


def tag_of(p: Point) -> int:
    """Another for each salt, spread over all that a tag can be."""
    return p.salt * 1_103_515_245 % 2**31


def _ring(p: Point, send_first: bool) -> Attempt:
    """By `root` places round the ring: with 0 of them, every rank to itself."""
    to, source = (p.rank + p.root) % p.size, (p.rank - p.root) % p.size
    values = p.values(p.rank)
    mine, output = p.input(values), p.output(p.blank())

    def send() -> dist.Work:
        return p.calls.send(mine, to, p.group, tag_of(p))

    def recv() -> dist.Work:
        return p.calls.recv(output, source, p.group, tag_of(p))

    return Attempt(
        lambda async_op: [send(), recv()] if send_first else [recv(), send()],
        [holds(f"from {source}", output, p.values(source))],
        [holds("input", mine, values)],
    )


def send(p: Point) -> Attempt:
    return _ring(p, send_first=True)


def recv(p: Point) -> Attempt:
    return _ring(p, send_first=False)


def recv_any_source(p: Point) -> Attempt:
    """The root hears from everybody, itself included, and learns from whom."""
    values = p.values(p.rank)
    mine = p.input(values)
    outputs = p.outputs([p.blank()] * p.size) if p.is_root else []
    received: list[dist.Work] = []

    def start(async_op: bool) -> list[dist.Work]:
        received.extend(p.calls.recv_any_source(output, p.group, tag_of(p)) for output in outputs)
        return [p.calls.send(mine, p.root, p.group, tag_of(p)), *received]

    def wrong_sources() -> str | None:
        sources = [work._source_rank() for work in received]
        return None if sorted(sources) == list(p.ranks if p.is_root else ()) else f"from {sources}"

    def wrong_values(i: int) -> str | None:
        return exactly(p.values(received[i]._source_rank())).wrong(outputs[i])

    return Attempt(
        start,
        [
            Claim("sources", wrong_sources),
            *(Claim(f"output {i}", lambda i=i: wrong_values(i)) for i in range(len(outputs))),
        ],
        [holds("input", mine, values)],
    )


MESSAGES: dict[str, tuple[Case, ...]] = {
    "recv": (Case(recv, EVERY),),
    "recv_any_source": (Case(recv_any_source, EVERY),),
    "send": (Case(send, EVERY),),
}
