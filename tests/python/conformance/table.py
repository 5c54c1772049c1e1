"""Every operation with its cases, and the points at which they are tried."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import torch.distributed as dist
from calls import COMPLETIONS, Failures, Report, by_wait
from layouts import contiguous, layouts_of
from messages import MESSAGES
from movement import MOVEMENT
from points import Case, Pair, Point
from reductions import REDUCTIONS

TABLE: dict[str, tuple[Case, ...]] = {**MOVEMENT, **REDUCTIONS, **MESSAGES}
CASES: tuple[Case, ...] = tuple(case for cases in TABLE.values() for case in cases)

SMALL = (0, 1, 3, 1000)
MEDIUM = 70_000
PIECE_BYTES = 1 << 20

Way = tuple[bool, Callable[[dist.Work], None]]  # async_op, and how to wait
WAYS: tuple[Way, ...] = ((False, by_wait), *((True, complete) for complete in COMPLETIONS))


def at_random(
    pair: Pair,
    numel: int,
    salt: int,
    chance: random.Random,
    group: dist.ProcessGroup,
    members: Sequence[int] | None = None,
) -> Point:
    """The ranks draw it alike. Of the calls in flight on a group, each has a salt of its own."""
    dtype, reduce = pair
    layouts = layouts_of(dtype, numel)
    return Point(
        group=group,
        members=members or range(group.size()),
        dtype=dtype,
        reduce=reduce,
        numel=numel,
        layout=chance.choice(layouts),
        out_layout=chance.choice(layouts),
        in_place=chance.random() < 0.4,
        one_storage=chance.random() < 0.4,
        root=chance.randrange(group.size()),
        salt=salt,
    )


def points(case: Case, group: dist.ProcessGroup) -> Iterator[tuple[Point, Way]]:
    """Every pair of the case at every size, contiguous and in other layouts.

    What is left to chance is the same in every run, and another for each size of the group.
    """
    chance = random.Random(f"{case.name} {group.size()}")
    salts = itertools.count()
    for number, pair in enumerate(case.pairs):
        dtype, _ = pair
        for numel in _sizes(case, number + group.size(), dtype.itemsize):
            layouts = layouts_of(dtype, numel)
            if case.every_layout and group.size() <= 2:  # beyond, what a layout changes is each rank's own
                both = list(zip(layouts, layouts[1:] + layouts[:1], strict=True))
            else:
                both = [(chance.choice(layouts), chance.choice(layouts))]
            if case.every_layout or (numel in SMALL and group.size() <= 2):
                both.append((contiguous, contiguous))
            for layout, out_layout in both:
                point = at_random(pair, numel, next(salts), chance, group)
                yield replace(point, layout=layout, out_layout=out_layout), chance.choice(WAYS)


def _sizes(case: Case, number: int, itemsize: int) -> tuple[int, ...]:
    """Numbers of elements. A large tensor is reduced in several pieces, with a short one at the end."""
    large = PIECE_BYTES // min(itemsize, 4) + 5
    if case.every_layout:
        return (*SMALL, MEDIUM, large)
    return (*SMALL, (MEDIUM, large)[number % 2])


def try_all(names: Iterable[str]) -> dict[str, Report]:
    """Each case of these operations, at each of its points, in the default group; a report by operation."""
    return {name: _try_cases(TABLE[name]) for name in names}


def _try_cases(cases: tuple[Case, ...]) -> Report:
    failures = Failures()
    for case in cases:
        for point, way in points(case, dist.group.WORLD):
            attempt(case, point, way, failures)
    return failures.report()


def attempt(case: Case, point: Point, way: Way, failures: Failures) -> None:
    """One call, checked. What it raises is noted as well, and the others go on."""
    async_op, complete = way
    label = (case.name, *point.label(), "async" if async_op else "sync", complete.__name__)
    try:
        call = case.build(point)
        for work in call.start(async_op):
            waits_itself = not async_op and case.name not in MESSAGES
            assert (work is None) == waits_itself, "the call itself waits unless it is asynchronous"
            if work is not None:
                complete(work)
    except Exception as error:
        failures.note(label, f"{type(error).__name__}: {error}")
        return
    for what, wrong in call.wrongs():
        failures.note((what, *label), wrong)
