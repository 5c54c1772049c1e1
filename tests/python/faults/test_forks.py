"""A process that was forked from a rank is no rank: whatever it calls is refused, and its parent goes on."""

from __future__ import annotations

import atexit
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch_ucc
from deaths import note, only_these_die
from torch_ucc.testing import run_ranks

pytestmark = pytest.mark.multirank

LATE = 20.0
"""Seconds that no load explains, for what shall return at once."""


def refusal(call: Callable[[], object]) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def says_forked(text: str) -> bool:
    return text.startswith("DistBackendError") and "was forked from" in text


def _calls() -> dict[str, Callable[[], object]]:
    one = torch.ones(1)
    return {
        "all_reduce": lambda: dist.all_reduce(one),
        "isend": lambda: dist.isend(one, 1 - dist.get_rank()),
        "barrier": lambda: dist.barrier(),
        "monitored_barrier": lambda: torch_ucc.monitored_barrier(),
        "new_group": lambda: dist.new_group([dist.get_rank()]),
    }


def _child(ended: dist.Work, in_flight: dist.Work) -> list[str]:
    """What is wrong in the child."""
    began = time.monotonic()
    calls = {
        **_calls(),
        "wait": lambda: in_flight.wait(),
        "future": lambda: in_flight.get_future().wait(),
    }
    wrong = [f"{name}: {text}" for name, call in calls.items() if not says_forked(text := refusal(call))]
    if not in_flight.is_completed() or in_flight.exception() is None:
        wrong.append("the Work of the parent looks as if it could still end well")
    if not ended.is_completed() or ended.exception() is not None or not ended.wait():
        wrong.append("the Work that had ended well has not")
    dist.destroy_process_group()
    if dist.is_initialized():
        wrong.append("the group is still there")
    if time.monotonic() - began > LATE:
        wrong.append("it took long")
    return wrong


def forks() -> list[str]:
    """Rank 0 forks beside an operation in flight, and both ranks go on and close."""
    rank, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
    wrong = []
    for round_ in range(3):
        tensor, key = torch.ones(50_000), f"test/forked/{round_}"
        ended = dist.all_reduce(torch.ones(1), async_op=True)
        ended.wait()
        if rank == 1:
            store.wait([key])
            dist.all_reduce(tensor)
        else:
            work = dist.all_reduce(tensor, async_op=True)
            reads, writes = os.pipe()
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    os.write(writes, "\n".join(_child(ended, work)).encode())
                    status = 0
                finally:
                    os._exit(status)
            os.close(writes)
            with os.fdopen(reads) as told:
                wrong += told.read().splitlines()
            _, status = os.waitpid(child, 0)
            if status != 0:
                wrong.append(f"the child ended with status {status}")
            store.set(key, "")
            work.wait()
        total = torch.ones(3)
        dist.all_reduce(total)
        if total.tolist() != [2.0] * 3 or not bool((tensor == 2).all()):
            wrong.append(f"the parent's group gives {total.tolist()} and {tensor[:2].tolist()}")
    return wrong


def test_a_child_is_refused_and_its_parent_goes_on() -> None:
    assert run_ranks(forks, 2) == [[], []]


def forks_beside_a_callback() -> int:
    """The child ends through Python, which waits for callbacks that run: none of them does there."""
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 1:
        store.wait(["test/callback"])
        dist.all_reduce(torch.ones(1))
        return 0
    runs, may_end = threading.Event(), threading.Event()

    def callback(_: object) -> None:
        runs.set()
        assert may_end.wait(60)

    future = dist.all_reduce(torch.ones(1), async_op=True).get_future().then(callback)
    store.set("test/callback", "is there")
    assert runs.wait(60)
    child = os.fork()
    if child == 0:
        atexit._run_exitfuncs()
        os._exit(0)
    began = time.monotonic()
    while not (ended := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < began + LATE:
        time.sleep(0.05)
    if not ended[0]:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        ended = child, -1
    may_end.set()
    future.wait()
    return ended[1]


def test_a_child_ends_though_a_callback_runs_in_its_parent() -> None:
    assert run_ranks(forks_beside_a_callback, 2) == [0, 0]


def dies_after_a_fork(folder: str, is_killed: bool) -> None:
    """The parent still learns who ends after its child has closed what it had, or was killed."""
    rank = dist.get_rank()
    dist.all_reduce(torch.ones(1))
    if rank == 0:
        child = os.fork()
        if child == 0:
            try:
                if is_killed:
                    os.kill(os.getpid(), signal.SIGKILL)
                dist.destroy_process_group()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
    group = dist.new_group([0, 1])
    dist.all_reduce(torch.ones(1), group=group)
    dist.barrier()
    if rank == 1:
        os._exit(0)
    note(folder, refusal(lambda: dist.all_reduce(torch.ones(1))))


@pytest.mark.parametrize("is_killed", [False, True])
def test_the_parent_still_notices_who_ends(tmp_path: Path, is_killed: bool) -> None:
    with only_these_die(1):
        run_ranks(dies_after_a_fork, 2, str(tmp_path), is_killed, group_timeout=60.0, grace=60.0)
    refused = json.loads((tmp_path / "0").read_text())
    assert "rank 1 (host" in refused and "timed out" not in refused, refused
