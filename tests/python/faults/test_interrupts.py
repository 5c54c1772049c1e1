"""Ctrl-C, and whatever a program's own handler raises, ends a wait in Python."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch_ucc
from torch_ucc.testing import run_ranks

pytestmark = pytest.mark.multirank

LATE = 10.0
"""Seconds that no load explains. What is promised, one, is asserted of the shortest of the cases."""

WAITS: dict[str, Callable[[], object]] = {
    "all_reduce": lambda: dist.all_reduce(torch.ones(1)),
    "work": lambda: dist.all_reduce(torch.ones(1), async_op=True).wait(),
    "recv": lambda: dist.recv(torch.ones(1), 1),
    "barrier": lambda: dist.barrier(),
    "monitored_barrier": lambda: torch_ucc.monitored_barrier(timeout=timedelta(seconds=60)),
}

DELAYS: list[float] = []


class HandlerError(Exception):
    pass


def _raise(number: int, frame: object) -> None:
    raise HandlerError(number)


def interrupted(wait: str, which: signal.Signals) -> tuple[str, float]:
    dist.all_reduce(torch.ones(1))
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 1:
        store.wait(["interrupted"], timedelta(seconds=60))
        return "", 0.0
    signal.signal(which, signal.default_int_handler if which == signal.SIGINT else _raise)
    sent: list[float] = []

    def send() -> None:
        sent.append(time.monotonic())
        os.kill(os.getpid(), which)

    threading.Timer(0.5, send).start()
    kind = "nothing"
    try:
        WAITS[wait]()
    except (KeyboardInterrupt, HandlerError) as caught:
        kind = type(caught).__name__
    delay = time.monotonic() - sent[0]
    store.set("interrupted", "")
    return kind, delay


@pytest.mark.parametrize(
    ("wait", "which"), [*((wait, signal.SIGINT) for wait in WAITS), ("all_reduce", signal.SIGUSR1)]
)
def test_a_signal_ends_a_wait(wait: str, which: signal.Signals) -> None:
    (kind, delay), _ = run_ranks(
        interrupted, 2, wait, which, group_timeout=60.0, env={"TORCH_UCC_CLOSE_TIMEOUT": "500ms"}
    )
    assert kind == ("KeyboardInterrupt" if which == signal.SIGINT else "HandlerError")
    assert delay < LATE
    DELAYS.append(delay)


def test_it_ends_within_a_second() -> None:
    if not DELAYS:
        pytest.skip("run together with test_a_signal_ends_a_wait, whose delays it looks at")
    assert min(DELAYS) < 1.0, DELAYS
