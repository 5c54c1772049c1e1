"""What the tests of dying ranks share."""

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch_ucc.testing import RankError, run_ranks

GRACE = 60.0
"""Seconds that the others have left once a rank died: far above what a loaded machine makes of it."""


@contextlib.contextmanager
def only_these_die(*ranks: int) -> Iterator[None]:
    """Around ranks that run: these ended without a result, and all others with one."""
    with pytest.raises(RankError) as caught:
        yield
    assert set(caught.value.errors) == set(ranks) and not caught.value.unended, caught.value


def run_while_die(dead: int, *args: object, **kwargs: object) -> None:
    """As `run_ranks`, for ranks of which one dies."""
    with only_these_die(dead):
        run_ranks(*args, **{"group_timeout": 60.0, "grace": GRACE, **kwargs})


def meet() -> None:
    """Once in a world: a collective that all ranks have ended. Who dies then leaves nobody behind in it."""
    dist.all_reduce(torch.ones(1))
    store = dist.distributed_c10d._get_default_store()
    store.add("met", 1)
    while store.add("met", 0) < dist.get_world_size():
        time.sleep(0.001)


def failure(call: Callable[[], object]) -> tuple[str, str, float]:
    """What it raised, or "nothing", with its text, and when."""
    try:
        call()
    except Exception as error:
        return type(error).__name__, str(error), time.monotonic()
    return "nothing", "", time.monotonic()


def note(folder: str, found: object) -> None:
    """For the test to read, also if this rank dies: in a file of the rank's number, whole or not there."""
    path = Path(folder, str(dist.get_rank()))
    path.with_suffix(".part").write_text(json.dumps(found))
    path.with_suffix(".part").rename(path)


def wait_for(*paths: Path) -> None:
    """Until all are there."""
    deadline = time.monotonic() + 240
    while missing := [path.name for path in paths if not path.exists()]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"there is no note of {', '.join(missing)}")
        time.sleep(0.01)
