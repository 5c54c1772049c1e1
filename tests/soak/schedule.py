"""What a soak does, drawn from its seed alone: every rank draws the same.

A round destroys some groups and creates others, then several threads are at work at once. Each has groups of
its own and makes its calls in one order, the same on all ranks: that is all a program must promise.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from reference import DTYPES, PAIRS, REFUSED_PAIRS

WORLD = 0
"""The number of the group that is never destroyed."""

MAX_BYTES = 2 << 20
MAX_GROUPS = 12
MAX_CREATED = 30_000
"""UCC can tell 32,765 groups of a job apart. Past this, those that are alive stay."""

REFUSED, BATCH = "refused", "batch"
"""Beside the operations of the table: a call that means nothing, and several that are coalesced."""


@dataclass(frozen=True)
class Step:
    number: int  # unlike that of any other step of the run: it tells their data apart
    op: str
    group: int
    dtype: torch.dtype
    reduce: str
    numel: int
    uneven: int  # so many elements more for each rank than for the one before
    pieces: int  # of a coalesced call
    layout: int  # of 1000
    root: int  # of 1000, as is peer
    peer: int
    tag: int
    completion: int
    held: bool  # completed later, after other calls of the thread
    batch: tuple[Step, ...]

    def __str__(self) -> str:
        what = f"step {self.number}: {self.op} of {self.numel} {self.dtype} {self.reduce}, group {self.group}"
        return f"{what}, layout {self.layout}, completion {self.completion}, held {self.held}"


@dataclass(frozen=True)
class Round:
    number: int
    destroyed: list[int]
    created: dict[int, list[int]]  # members by the group's number
    threads: list[list[Step]]


def rounds(seed: int, ranks: int, table: list[str], steps: int = 60) -> Iterator[Round]:
    """Without end. The first one goes through the whole table, on all ranks."""
    draw = random.Random(f"{seed} {ranks}")
    alive = [WORLD]
    numbers = itertools.count()
    groups = 0
    for number in itertools.count():
        destroyed, created = [], {}
        if groups < MAX_CREATED:
            others = alive[1:]
            destroyed = draw.sample(others, draw.randrange(min(3, len(others)) + 1))
            if len(others) > MAX_GROUPS - 4:
                destroyed = draw.sample(others, 4)
            for _ in range(draw.randrange(1, 4)):
                groups += 1
                created[groups] = sorted(draw.sample(range(ranks), draw.randint(1, ranks)))
        alive = [each for each in alive if each not in destroyed] + list(created)
        threads: list[list[Step]] = []
        order = draw.sample(alive, len(alive))
        count = min(draw.randint(1, 4), len(alive))
        for which in range(count):
            mine = order[which::count]
            if number == 0 and WORLD in mine:
                mine = [WORLD]
            length = max(1, steps // count)
            ops = [draw.choice(table) for _ in range(length)]
            if number == 0:
                ops = draw.sample(table, len(table))
            threads.append([])
            for op in ops:
                threads[-1].append(_step(draw, numbers, op, draw.choice(mine), table))
        yield Round(number, destroyed, created, threads)


def _step(draw: random.Random, numbers: Iterator[int], op: str, group: int, table: list[str]) -> Step:
    dtype, reduce = draw.choice(REFUSED_PAIRS if op == REFUSED else PAIRS)
    if op != REFUSED and "reduce" not in op:
        dtype, reduce = draw.choice(DTYPES), ""
    # Sizes by their logarithm: as many between 1 and 2 kB as between 1 and 2 MB.
    size = 0 if draw.random() < 0.03 else int(2 ** draw.uniform(0, MAX_BYTES.bit_length() - 1))
    batch: tuple[Step, ...] = ()
    if op == BATCH:
        within = [each for each in table if each not in (REFUSED, BATCH, "monitored_barrier")]
        batch = tuple(
            _step(draw, numbers, draw.choice(within), group, table) for _ in range(draw.randint(0, 5))
        )
    return Step(
        number=next(numbers),
        op=op,
        group=group,
        dtype=dtype,
        reduce=reduce,
        numel=size // dtype.itemsize if size >= dtype.itemsize else int(size > 0),
        uneven=draw.choice((0, 0, 1, 17)),
        pieces=draw.randint(1, 4),
        layout=draw.randrange(1000) if draw.random() < 0.5 else 0,
        root=draw.randrange(1000),
        peer=draw.randrange(1000),
        tag=draw.choice((0, 1, 2, draw.randrange(2**30, 2**31))),
        completion=draw.choice((0, 0, 0, 1, 1, 2)),
        held=draw.random() < 0.3,
        batch=batch,
    )
