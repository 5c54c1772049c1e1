"""torch's ephemeral timeouts, of torch 2.14 and later: more time, until the first operation has ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch_ucc._torch import HAS_2_14
from torch_ucc.testing import run_ranks

pytestmark = [
    pytest.mark.multirank,
    pytest.mark.skipif(
        not HAS_2_14,
        reason="torch before 2.14 ignores ephemeral timeouts",
    ),
]

LIMIT = timedelta(milliseconds=500)


def backend() -> Any:
    return dist.group.WORLD._get_backend(torch.device("cpu"))


def extend(by: timedelta) -> None:
    dist.distributed_c10d._add_ephemeral_timeout_for_all_pgs(by)


def seconds_until_timeout(call: Callable[[], object]) -> float:
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="timed out"):
        call()
    return time.monotonic() - began


def receive() -> None:
    dist.recv(torch.ones(1), 1 - dist.get_rank())


def extended() -> float:
    backend().set_timeout(LIMIT)
    extend(timedelta(seconds=1))
    extend(timedelta(seconds=1))
    return seconds_until_timeout(receive)


def test_extensions_add_up() -> None:
    for seconds in run_ranks(extended, 2):
        assert 2.4 < seconds < 30


def used_up() -> tuple[float, float]:
    """While the first receive is under way, every operation has more time; once it has ended, none has."""
    extend(timedelta(seconds=100))
    backend().set_timeout(LIMIT)
    works = [dist.irecv(torch.ones(1), 1 - dist.get_rank(), tag=tag) for tag in (1, 2)]
    dist.all_reduce(torch.ones(1))
    time.sleep(1)  # twice the timeout
    early = any(work.is_completed() for work in works)
    dist.barrier()  # so that nobody has sent before
    for tag in (1, 2):
        dist.send(torch.ones(1), 1 - dist.get_rank(), tag=tag)
    for work in works:
        work.wait()
    return early, seconds_until_timeout(receive)


def test_an_extension_ends_with_the_first_operation_after_it() -> None:
    for early, seconds in run_ranks(used_up, 2):
        assert not early
        assert 0.4 < seconds < 30
