"""torch_ucc.monitored_barrier tells which ranks did not come. torch's own function is for gloo alone."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch_ucc
from torch_ucc.testing import run_ranks

pytestmark = pytest.mark.multirank

LIMIT = timedelta(seconds=1)
SOON = {"TORCH_UCC_CLOSE_TIMEOUT": "500ms"}
"""For groups that cannot close well: the ranks need not wait for each other long."""


def store() -> dist.Store:
    return dist.distributed_c10d._get_default_store()


def total(group: dist.ProcessGroup | None = None) -> float:
    tensor = torch.full((3,), 2.0 ** dist.get_rank())
    dist.all_reduce(tensor, group=group)
    return float(tensor[0])


def all_come() -> list[float]:
    """Among other operations, on the world and on a part of it; as a barrier it lets nobody through early."""
    sums = []
    for turn in range(10):
        store().add("test/came", 1)
        torch_ucc.monitored_barrier(wait_all_ranks=turn % 2 == 0)
        assert store().add("test/came", 0) >= 3 * (turn + 1)
        sums.append(total())
    group = dist.new_group([0, 2])
    if dist.get_rank() != 1:
        torch_ucc.monitored_barrier(group, timedelta(seconds=50))
        sums.append(total(group))
    dist.barrier()
    return sums


def test_everybody_comes() -> None:
    assert run_ranks(all_come, 3) == [[7.0] * 10 + [5.0], [7.0] * 10, [7.0] * 10 + [5.0]]


CASES = {
    "one": ([2], False),
    "all": ([1, 3], True),
    "first": ([1, 3], False),
}
"""Who is absent, and wait_all_ranks."""


def refusal(group: dist.ProcessGroup, *args: object) -> str:
    try:
        torch_ucc.monitored_barrier(group, *args)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "passed"


def absences() -> dict[str, str]:
    """Each on a group of its own: one that has failed need not be good for anything any more.

    Rank 0, whose time counts, comes when the others who come are there.
    """
    told = {}
    rank = dist.get_rank()
    for case, (absent, wait_all_ranks) in CASES.items():
        group = dist.new_group()
        if rank in absent:
            store().wait([f"test/{case} told"])
            continue
        if rank == 0:
            store().wait([f"test/{case} {other}" for other in range(1, 4) if other not in absent])
        else:
            store().set(f"test/{case} {rank}", "1")
        told[case] = refusal(group, LIMIT, wait_all_ranks)
        if rank == 0:
            store().set(f"test/{case} told", "1")
    assert total() == 15.0
    return told


def test_who_is_absent_is_named() -> None:
    """By rank 0, and by the others who came: none of them goes on as if all had."""
    texts = run_ranks(absences, 4, env=SOON)
    for rank in (0, 1, 3):
        text = texts[rank]["one"]
        assert "Rank 2 failed to pass monitoredBarrier in 1000 ms" in text, (rank, text)
        assert text.startswith("DistBackendError"), (rank, text)
    for rank in (0, 2):
        text = texts[rank]["all"]
        assert "Ranks 1, 3 failed to pass monitoredBarrier in 1000 ms" in text, (rank, text)
        text = texts[rank]["first"]
        assert "Rank 1 failed to pass monitoredBarrier in 1000 ms" in text, (rank, text)


def after_a_failure() -> list[str]:
    """An operation of rank 0 timed out, of which the others know nothing; one rank does not come."""
    rank, group = dist.get_rank(), dist.new_group(timeout=LIMIT)
    if rank == 0:
        with pytest.raises(dist.DistBackendError, match="timed out"):
            dist.all_reduce(torch.ones(1), group=group)
        store().set("test/failed", "1")
    store().wait(["test/failed"])
    told = [refusal(group, timedelta(seconds=50))]
    if rank != 2:
        told.append(refusal(group, LIMIT))
        store().add("test/told", 1)
    while store().add("test/told", 0) < 2:
        pass
    return told


def test_a_group_that_failed_on_one_rank() -> None:
    """Its operations cannot go on, but who comes can be told."""
    first, second, third = run_ranks(after_a_failure, 3, env=SOON)
    assert third == ["passed"]
    for told in (first, second):
        assert told[0] == "passed"
        assert "Rank 2 failed to pass monitoredBarrier in 1000 ms" in told[1], told


def limit_of_the_group() -> str:
    """Without a limit of the call, the group's."""
    group = dist.new_group()
    group.set_timeout(LIMIT)
    if dist.get_rank() == 1:
        store().wait(["test/told"])
        return ""
    text = refusal(group)
    store().set("test/told", "1")
    return text


def test_limit_of_the_group() -> None:
    text, _ = run_ranks(limit_of_the_group, 2, env=SOON)
    assert "Rank 1 failed to pass monitoredBarrier in 1000 ms" in text, text
