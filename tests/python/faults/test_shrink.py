"""torch's shrink_group: the survivors go on in a group without those that they name."""

from __future__ import annotations

import os
import signal

import pytest
import torch
import torch.distributed as dist
from deaths import failure, meet, run_while_die
from torch_ucc.testing import run_ranks

pytestmark = pytest.mark.multirank


def shrinks(dies: bool, flags: int, sub: bool) -> None:
    group = dist.new_group([0, 1, 2]) if sub else dist.group.WORLD
    dist.all_reduce(torch.ones(1), group=group)
    meet()
    if dist.get_rank() == 1:
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()
        return
    works = []
    if dies:
        assert failure(lambda: dist.all_reduce(torch.ones(1), group=group))[0] == "DistBackendError"
    elif flags:
        works.append(dist.all_reduce(torch.ones(1), group=group, async_op=True))
    smaller = dist.shrink_group([1], group=None if not sub else group, shrink_flags=flags)
    assert smaller.size() == 2
    tensor = torch.full((3,), float(smaller.rank() + 1))
    dist.all_reduce(tensor, group=smaller)
    assert tensor.tolist() == [3.0] * 3
    assert all(failure(work.wait)[0] == "DistBackendError" for work in works)
    if sub and not dies:
        dist.barrier()  # of the world, as before


@pytest.mark.parametrize("sub", [False, True])
@pytest.mark.parametrize("flags", [0, 1])
def test_after_a_death(sub: bool, flags: int) -> None:
    run_while_die(1, shrinks, 3, True, flags, sub)


@pytest.mark.parametrize("flags", [0, 1])
def test_of_a_living_group(flags: int) -> None:
    run_ranks(shrinks, 3, False, flags, True, group_timeout=60.0)
