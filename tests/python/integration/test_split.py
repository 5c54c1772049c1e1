"""Groups split from others, their options and timeouts, and what a group's backend says about itself."""

from __future__ import annotations

import contextlib
import copy
from datetime import timedelta
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch_ucc
from torch_ucc._torch import HAS_2_14
from torch_ucc.testing import run_ranks

pytestmark = pytest.mark.multirank

CPU = torch.device("cpu")
LIMIT = timedelta(seconds=2)
SOON = {"TORCH_UCC_CLOSE_TIMEOUT": "500ms"}
"""For groups that cannot close well: the ranks need not wait for each other long."""


def backend_of(group: dist.ProcessGroup) -> dist.Backend:
    return group._get_backend(CPU)


def total(group: dist.ProcessGroup) -> float:
    """Tells who took part. By the group's own method: torch's registry does not know what C++ has split."""
    tensor = torch.full((3,), 2.0 ** dist.get_rank())
    group.allreduce([tensor]).wait()
    assert (tensor == tensor[0]).all()
    return float(tensor[0])


# -- splitting ---------------------------------------------------------------------------------------------


def halves() -> list[float]:
    world = dist.group.WORLD
    rank = world.rank()
    pair = [0, 1] if rank < 2 else [3, 2]
    mine = pair.index(rank) if HAS_2_14 else rank % 2  # torch before 2.14 sorts them
    half = world.split_group(pair, group_name=f"half of {min(pair)}")
    assert half.group_name == f"half of {min(pair)}"
    assert (half.rank(), half.size()) == (mine, 2)
    assert (backend_of(half).name(), backend_of(half).rank(), backend_of(half).size()) == ("ucc", mine, 2)
    sums = [total(half), total(world)]
    single = half.split_group([half.rank()])  # ranks are those of the parent
    sums += [total(single), total(half)]
    half.shutdown()
    return [*sums, total(single), total(world)]


@pytest.mark.parametrize("backend", ["ucc", "cpu:ucc", "cpu:ucc,cuda:ucc"])
def test_split(backend: str) -> None:
    """Also where one backend serves two kinds of devices: torch then splits it once for each."""
    for rank, sums in enumerate(run_ranks(halves, 4, backend=backend)):
        mine, half = 2.0**rank, 3.0 if rank < 2 else 12.0
        assert sums == [half, 15.0, mine, half, mine, 15.0], rank


def split_in_part() -> list[float]:
    """Ranks outside take part in the call and get none; the same ranks can be split again."""
    world = dist.group.WORLD
    sums = []
    for turn in range(3):
        part = world.split_group([0, 2], group_name=f"part {turn}")
        if world.rank() == 1:
            assert part is None
        else:
            sums.append(total(part))
        sums.append(total(world))
    return sums


def test_split_of_some_ranks() -> None:
    assert run_ranks(split_in_part, 3) == [[5.0, 7.0] * 3, [7.0] * 3, [5.0, 7.0] * 3]


def split_by_torch() -> list[float]:
    """dist.split_group wants an accelerator that is bound to the world. The backend here serves one too."""
    dist.group.WORLD.bound_device_id = torch.device("cuda", 0)
    with (
        mock.patch("torch.accelerator.is_available", return_value=True),
        mock.patch("torch.accelerator.current_accelerator", return_value=torch.device("cuda")),
    ):
        half = dist.split_group(split_ranks=[[0, 1], [2]], timeout=timedelta(seconds=50))
        assert backend_of(half).options._timeout == timedelta(seconds=50)
        tensor = torch.full((3,), 2.0 ** dist.get_rank())
        dist.all_reduce(tensor, group=half)
        one = dist.split_group(split_ranks=[[1]])
        outside = one in (None, dist.GroupMember.NON_GROUP_MEMBER)  # None before torch 2.14
        assert outside == (dist.get_rank() != 1)
        # With a bound device torch asks ranks outside a new group to take note of it.
        part = dist.new_group([0, 2])
    sums = [float(tensor[0]), total(dist.group.WORLD)]
    return sums if dist.get_rank() == 1 else [*sums, total(part)]


def test_split_by_torchs_own_function() -> None:
    assert run_ranks(split_by_torch, 3) == [[3.0, 7.0, 5.0], [3.0, 7.0], [4.0, 7.0, 5.0]]


# -- what a backend says -----------------------------------------------------------------------------------


def says() -> None:
    backend = backend_of(dist.group.WORLD)
    assert backend.name() == "ucc"
    assert backend.supports_splitting
    assert backend.supports_coalescing
    assert backend.perform_nocolor_split(CPU) is None
    assert isinstance(backend.options, torch_ucc.Options)
    assert backend.options._timeout == timedelta(seconds=60)
    assert total(dist.group.WORLD) == 3.0


def test_what_a_backend_says() -> None:
    run_ranks(says, 2)


def sequence() -> list[int]:
    backend = backend_of(dist.group.WORLD)
    other = backend_of(dist.new_group())
    backend._set_sequence_number_for_group()
    seen = [backend._get_sequence_number_for_group()]
    for call in (
        lambda: dist.all_reduce(torch.ones(2)),
        lambda: dist.broadcast(torch.empty(0), 0),  # sends nothing, and counts
        lambda: dist.all_reduce(torch.ones(2), dist.ReduceOp.BAND),  # refused, and does not
        lambda: dist.barrier(),
    ):
        with contextlib.suppress(NotImplementedError):
            call()
        seen.append(backend._get_sequence_number_for_group())
    assert other._get_sequence_number_for_group() == 0
    return seen


def test_sequence_numbers() -> None:
    assert run_ranks(sequence, 2) == [[0, 1, 2, 2, 3]] * 2


# -- options and timeouts ----------------------------------------------------------------------------------


def test_options() -> None:
    options = torch_ucc.Options(timeout=timedelta(seconds=3))
    assert options.backend == "ucc"
    assert options._timeout == timedelta(seconds=3)
    twin = copy.deepcopy(options)
    assert type(twin) is torch_ucc.Options
    assert (twin._timeout, twin.backend) == (timedelta(seconds=3), "ucc")
    twin._timeout = timedelta(seconds=4)
    assert options._timeout == timedelta(seconds=3)


def timeouts() -> dict[str, float]:
    """What groups say is their timeout; the world's is 60 s."""
    world = dist.group.WORLD
    ten = timedelta(seconds=10)
    groups = {
        "world": world,
        "argument": dist.new_group(timeout=ten),
        "options": dist.new_group(pg_options=torch_ucc.Options(timeout=ten)),
        "argument and options of no say": dist.new_group(timeout=ten, pg_options=torch_ucc.Options()),
        "parent": world.split_group([0, 1], group_name="a"),
        "split": world.split_group([0, 1], timeout=ten, group_name="b"),
        "split with options": world.split_group([0, 1], opts=torch_ucc.Options(timeout=ten), group_name="c"),
    }
    return {how: backend_of(group).options._timeout.total_seconds() for how, group in groups.items()}


def test_where_a_timeout_comes_from() -> None:
    for found in run_ranks(timeouts, 2):
        assert found.pop("world") == found.pop("parent") == 60.0
        assert set(found.values()) == {10.0}, found


def left_alone(how: str) -> str:
    """Rank 1 never comes to a group whose own timeout is short; the world's is not."""
    default = dist.distributed_c10d._get_default_store()
    dist.barrier()
    if how == "options":
        group = dist.new_group(pg_options=torch_ucc.Options(timeout=LIMIT))
    else:
        group = dist.new_group()
        if how == "set_timeout":
            group.set_timeout(LIMIT)
        else:
            backend_of(group)._set_default_timeout(LIMIT)
    if dist.get_rank() == 1:
        default.wait(["test/failed"])
        return ""
    try:
        group.allreduce([torch.ones(2)]).wait()
    except dist.DistBackendError as error:
        default.set("test/failed", "1")
        return str(error)
    return "no error"


@pytest.mark.parametrize("how", ["options", "set_timeout", "_set_default_timeout"])
def test_a_timeout_strikes(how: str) -> None:
    """The world's is 60 s, which is where the limit of the test strikes."""
    text, _ = run_ranks(left_alone, 2, how, env=SOON)
    assert "all_reduce seq 1" in text and "timed out" in text, text
