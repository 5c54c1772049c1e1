"""The soak itself: that it can fail, that its schedule is what it says, and a short run of it."""

from __future__ import annotations

import itertools
import subprocess
from collections import Counter
from pathlib import Path

import pytest
import torch
from calls import Failures
from reference import exactly

from soak import memory, operations, part, ranks
from soak.__main__ import problems
from soak.schedule import BATCH, REFUSED, WORLD, rounds

ROOT = Path(__file__).parents[2]
TABLE = [*sorted(operations.TABLE), REFUSED, BATCH]
MB = 2**20


def samples(*held: float, seconds: float = 600.0) -> list[memory.Sample]:
    """So many megabytes, at equal distances in time."""
    return [memory.Sample(seconds * i / (len(held) - 1), int(each * MB)) for i, each in enumerate(held)]


def report(**changes: object) -> ranks.Report:
    done = Counter(dict.fromkeys(TABLE, 1))
    values = {
        "checked": 5,
        "wrong": 0,
        "first": [],
        "rounds": 1,
        "groups": 1,
        "samples": samples(*[100.0] * 90),
    }
    return ranks.Report(**{**values, "done": done, **changes})


def test_what_is_judged() -> None:
    assert problems(0, report()) == []
    assert "2 of 5 checks failed" in problems(1, report(wrong=2, first=["a", "b"]))[0]
    assert "never called: send" in problems(1, report(done=Counter(set(TABLE) - {"send"})))[0]
    assert "within 1%" in problems(1, report(samples=samples(*range(100, 190))))[0]


def test_growth() -> None:
    start = [80.0 + i / 10 for i in range(100)]  # the first half does not count
    assert memory.grown(samples(*start, *[100.0] * 100)) is None
    assert memory.grown(samples(*start, *[100.0, 100.5] * 50)) is None
    assert memory.grown(samples(*start, *[100.0] * 50, 150.0, *[100.0] * 50)) is None  # one moment
    steady = [100 + i * 0.03 for i in range(100)]
    assert memory.grown(samples(*start, *steady)) is not None
    assert memory.grown(samples(*start, *[100.0] * 90, *[98.0] * 10)) is not None
    assert memory.grown(samples(100.0, 100.0)) is not None  # too few to tell


def test_a_wrong_result_is_noticed() -> None:
    step = next(rounds(1, 3, TABLE)).threads[0][0]
    failures = Failures()
    for value in (1.0, 2.0):
        result = part.Result(step, torch.tensor([1.0, value]), lambda: exactly(torch.tensor([1.0, 2.0])))
        part.Started(step, [], [result], []).complete(failures)
    assert (failures.checked, failures.count) == (2, 1)
    assert f"step {step.number}" in failures.first[0]


def test_schedule() -> None:
    """The same for every rank; the whole table at first; no group in two threads; groups come and go."""
    many = list(itertools.islice(rounds(5, 3, TABLE), 200))
    assert many == list(itertools.islice(rounds(5, 3, TABLE), 200))
    assert many != list(itertools.islice(rounds(6, 3, TABLE), 200))
    assert all({step.op for step in thread} == set(TABLE) for thread in many[0].threads)
    assert {step.op for thread in many[0].threads for step in thread if step.group == WORLD} == set(TABLE)
    alive = {WORLD}
    for each in many:
        assert set(each.destroyed) <= alive - {WORLD}
        alive = (alive - set(each.destroyed)) | set(each.created)
        used = [{step.group for step in thread} for thread in each.threads]
        assert set().union(*used) <= alive
        assert sum(map(len, used)) == len(set().union(*used))
    numbers = [
        step.number
        for each in many
        for thread in each.threads
        for top in thread
        for step in (top, *top.batch)
    ]
    assert len(numbers) == len(set(numbers))


@pytest.mark.slow
@pytest.mark.multirank
def test_short_run() -> None:
    """Every operation at least once on every rank, every result right."""
    ran = subprocess.run(
        [ROOT / "ci" / "soak", "--minutes", "0.3"],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert ran.returncode == 0, ran.stdout
    assert ran.stdout.startswith("seed ") and ran.stdout.endswith("passed\n"), ran.stdout
