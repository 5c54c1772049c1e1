"""torch's abort hooks, of torch 2.14 and later: called once when a group ends, and free to take the GIL."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from deaths import failure
from torch_ucc._torch import HAS_2_14
from torch_ucc.testing import run_ranks

pytestmark = [
    pytest.mark.multirank,
    pytest.mark.skipif(not HAS_2_14, reason="torch before 2.14 has no abort hooks"),
]

CPU = torch.device("cpu")


def backend() -> Any:
    return dist.group.WORLD._get_backend(CPU)


class Told:
    """A hook that counts its calls, and can be waited for."""

    def __init__(self) -> None:
        self.calls = 0
        self.event = threading.Event()

    def __call__(self) -> None:
        self.calls += 1
        self.event.set()


def after(end: Callable[[], object]) -> tuple[int, int, int]:
    """How often hooks were called that are registered, replaced and taken back."""
    hooks = [Told(), Told(), Told()]
    backend().register_abort_hook(1, hooks[0])
    backend().register_abort_hook(2, hooks[1])
    backend().register_abort_hook(1, hooks[2])
    backend().unregister_abort_hook(2)
    end()
    assert hooks[2].event.wait(30)
    backend().abort()  # the hooks have run already, and do not run again
    return hooks[0].calls, hooks[1].calls, hooks[2].calls


def at_a_timeout() -> tuple[int, int, int]:
    def end() -> None:
        if dist.get_rank() == 0:
            failure(lambda: dist.recv(torch.ones(1), 1))
        else:
            failure(lambda: dist.recv(torch.ones(1), 0))

    backend().set_timeout(timedelta(seconds=1))
    return after(end)


def at_an_abort() -> tuple[int, int, int]:
    return after(lambda: backend().abort())


@pytest.mark.parametrize("end", [at_a_timeout, at_an_abort])
def test_hooks_are_called_once(end: Callable[[], tuple[int, int, int]]) -> None:
    assert run_ranks(end, 2) == [(0, 0, 1)] * 2


def never() -> int:
    told = Told()
    backend().register_abort_hook(1, told)
    dist.all_reduce(torch.ones(4))
    dist.destroy_process_group()
    return told.calls


def test_hooks_are_not_called_at_a_good_end() -> None:
    assert run_ranks(never, 2) == [0, 0]


def raising() -> tuple[str, int]:
    def broken() -> None:
        raise RuntimeError("no")

    told = Told()
    backend().register_abort_hook(1, broken)
    backend().register_abort_hook(2, told)
    backend().abort()
    return failure(lambda: dist.barrier())[0], told.calls


def test_a_hook_that_raises_stops_no_other() -> None:
    assert run_ranks(raising, 2) == [("DistBackendError", 1)] * 2
