"""The campaign itself: that its plans are what they say, that it can fail, and a short run of it."""

from __future__ import annotations

import dataclasses
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from chaos import campaign, leaks, model, rank
from chaos.schedule import KINDS, Plan, Schedule

ROOT = Path(__file__).parents[2]
NAMES = ["a", "b", "c"]
FAULTS = 9


def plans(seed: int, count: int, ranks: int = 3) -> list[Plan]:
    schedule = Schedule(seed, ranks)
    return [schedule.next(NAMES[: 1 + i % 2], NAMES[1 + i % 2 : ranks]) for i in range(count)]


def test_schedule() -> None:
    """The same for the same seed; every kind comes; a victim is a member, and not all of them end."""
    many = plans(3, 60)
    assert many == plans(3, 60) != plans(4, 60)
    assert {order.kind for plan in many for order in plan.orders} == set(KINDS)
    assert {len(plan.members) for plan in many} == {2, 3}
    for plan in many:
        ends = [plan.ends(each) for each in range(len(plan.members))]
        assert None in ends
        assert all(0 <= order.victim < len(ends) and order.step < plan.steps for order in plan.orders)
    assert not any(KINDS[order.kind].ranks > 2 for plan in plans(3, 60, 2) for order in plan.orders)


def test_parameters_do_not_depend_on_the_number_of_ranks() -> None:
    parameters, trajectory = model.initial(), model.Trajectory()
    for step in range(6):
        size = 1 + step % 3
        parts = [model.gradient(parameters, step, range(each, model.SHARDS, size)) for each in range(size)]
        parameters = model.updated(parameters, torch.stack(parts).sum(0))
        assert model.digest(parameters) == trajectory.digest(step + 1)
    assert len({trajectory.digest(step) for step in range(7)}) == 7


def test_what_leaks() -> None:
    start = leaks.Held(failures=1, descriptors=30, threads=5)
    assert leaks.grown([start, leaks.Held(1, 30 + leaks.SLACK, 5)]) is None
    assert leaks.grown([start, leaks.Held(3, 30 + 2 * leaks.KEPT, 5)]) is None  # two more failures
    assert leaks.grown([start, leaks.Held(1, 30 + leaks.KEPT, 5)]) is not None
    assert leaks.grown([start, leaks.Held(9, 30, 6 + leaks.SLACK)]) is not None


def test_what_is_judged(tmp_path: Path) -> None:
    """Wrong parameters, results that a rank found wrong, and an error that no fault explains."""
    judge = campaign.Campaign(1, 3, 5.0, tmp_path)
    judge._alive["a"] = campaign.Member("a", None)  # type: ignore[arg-type]  # there is no process
    right = rank.Report(0, model.digest(model.initial()), 0.0, leaks.held(0))
    quiet = Plan(5, [], ["a"])

    def found(plan: Plan, **changes: Any) -> list[str]:
        judge.totals = campaign.Totals()
        judge._judge("a", dataclasses.replace(right, **changes), plan)
        return [column for column, problems in judge.totals.problems.items() if problems]

    assert found(quiet) == []
    assert found(quiet, digest="another") == ["wrong results"]
    assert found(quiet, wrong=["broadcast"]) == ["wrong results"]
    assert found(quiet, error="DistBackendError: timed out") == ["errors without cause"]
    harmful = next(plan for plan in plans(3, 60) if not plan.harmless())
    assert found(harmful, error="DistBackendError: has died") == []


@pytest.mark.slow
@pytest.mark.multirank
def test_short_run() -> None:
    """Some faults, of as many kinds: all survived, and nothing is left."""
    ran = subprocess.run(
        [ROOT / "ci" / "chaos", "--faults", str(FAULTS), "--seed", "1"],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert ran.returncode == 0, ran.stdout
    lines = (re.search(rf"^{kind} +(\d+) +(\d+)$", ran.stdout, re.MULTILINE) for kind in KINDS)
    counts = [(int(found[1]), int(found[2])) for found in lines if found]
    assert len(counts) == len(KINDS) and all(happened == survived for happened, survived in counts), (
        ran.stdout
    )
    assert sum(happened > 0 for happened, _ in counts) >= FAULTS, ran.stdout
    assert ran.stdout.startswith("seed 1\n") and ran.stdout.endswith("passed\n"), ran.stdout
