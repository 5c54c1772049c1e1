"""The tests of torch's own suite that need no operation beyond those we have, one pytest test for each.

All of a world size are run together, by `run.py`, when the first of them is asked for: they share the
import of the suite, which costs more than most of them. Each passed over gloo when the operations were
recorded, so a skip here is a failure too. `run.py` has the whole suite.
BACKEND=gloo runs the same over gloo.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import run

BACKEND = os.environ.get("BACKEND", "ucc")
CASES = [pytest.param(size, test, id=f"{test}-{size}") for size in (2, 3, 4) for test in run.tier(size)]


@pytest.fixture(scope="module")
def rows(request: pytest.FixtureRequest) -> dict[tuple[str, int], run.Row]:
    """The results of all tests of this module that pytest was asked to run."""
    wanted: dict[Any, list[Any]] = {}
    for item in request.session.items:
        if isinstance(item, pytest.Function) and item.function is test_upstream:
            size, test = (item.callspec.params[name] for name in ("world_size", "test"))
            wanted.setdefault(size, []).append(test)
    out = request.config.rootpath / "build" / "upstream-tier"
    out.mkdir(parents=True, exist_ok=True)
    (out / "results.jsonl").unlink(missing_ok=True)
    found = [row for size, tests in wanted.items() for row in run.run(BACKEND, size, out, tests=tests)]
    return {(row["test"], row["world_size"]): row for row in found}


@pytest.mark.parametrize(("world_size", "test"), CASES)
def test_upstream(rows: dict[tuple[str, int], run.Row], world_size: int, test: str) -> None:
    row = rows[test, world_size]
    verdict = run.judge([row], BACKEND)
    if verdict.known:
        pytest.xfail(run.known_failures(BACKEND)[test, world_size])
    assert row["outcome"] == "passed", row["reason"]
    assert not verdict.problems
