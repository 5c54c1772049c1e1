"""Hosts with two cables, each to a network of its own."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch_ucc
from torch_ucc.testing.hosts import Hosts, hosts

pytestmark = pytest.mark.multirank

ELEMENTS = 4 << 20  # 16 MB


@pytest.fixture
def twice_joined(hosts_allowed: None) -> Iterator[Hosts]:
    with hosts(2, rate="1gbit", cables=2) as made:
        yield made


def all_reduce(mine: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(mine)
    return mine


def all_gather(mine: torch.Tensor) -> torch.Tensor:
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, mine)
    return torch.stack(parts).sum(0)


def send_and_receive(mine: torch.Tensor) -> torch.Tensor:
    """Between pairs of ranks on different hosts."""
    half = dist.get_world_size() // 2
    other = (dist.get_rank() + half) % (2 * half)
    theirs = torch.empty_like(mine)
    sends = dist.isend(mine, other)
    dist.recv(theirs, other)
    assert sends is not None
    sends.wait()
    return mine + theirs


def result(operation: Callable[[torch.Tensor], torch.Tensor]) -> tuple[float, float, dict[str, Any]]:
    got = operation(torch.full((ELEMENTS,), float(dist.get_rank())))
    return float(got.min()), float(got.max()), torch_ucc.describe()


@pytest.mark.parametrize("per_host", [1, 2])
@pytest.mark.parametrize("operation", [all_reduce, all_gather, send_and_receive])
def test_large_data_goes_over_both_cables(
    twice_joined: Hosts, operation: Callable[[torch.Tensor], torch.Tensor], per_host: int
) -> None:
    values = twice_joined.run(result, operation, per_host=per_host)
    for rank, (least, most, about) in enumerate(values):
        total = sum(range(2 * per_host))
        if operation is send_and_receive:
            total = rank + (rank + per_host) % (2 * per_host)
        assert least == most == total
        assert [each["names"] for each in about["plan"]["devices"]] == [("eth0", "eth1")] * 2 * per_host
        assert about["differences"] == []
    for i in range(2):
        sent = [twice_joined.sent(i, cable) for cable in range(2)]
        assert sum(sent) > 4 * ELEMENTS and min(sent) > sum(sent) / 3, sent


def test_a_cable_that_does_not_lead_to_the_other_host_is_not_used(twice_joined: Hosts) -> None:
    twice_joined.cut(1, cable=1)
    for least, most, about in twice_joined.run(result, all_reduce, per_host=2):
        assert least == most == 6.0
        assert {each["names"] for each in about["plan"]["devices"]} == {("eth0",)}
        reason = about["plan"]["devices"][0]["reason"]
        assert reason.endswith("A host could not connect to the next one over 10.78.0.0/24")
        assert about["transports"]["other host"] == ["tcp/eth0"]
    assert all(twice_joined.sent(i, cable=1) < 1 << 16 for i in range(2))


def test_what_the_user_set_decides_over_the_rails(twice_joined: Hosts) -> None:
    values = twice_joined.run(result, all_reduce, env={"UCX_NET_DEVICES": "eth1"})
    assert all(about["transports"]["other host"] == ["tcp/eth1"] for _, _, about in values)
    assert all(twice_joined.sent(i, cable=1) > 4 * ELEMENTS for i in range(2))


SIZES = (1, 1000, 16383, 16385, 40000, 65537, 100000, 300000, 900001)
"""In elements of 4 bytes: less and more than segments of TCP and than what UCX sends without being asked."""


def wrong_messages(late: bool) -> list[int]:
    """Exchanges messages of these sizes and returns the sizes of those that arrived wrong. With `late`, the
    receives are posted after the sends, in another order."""
    other = 1 - dist.get_rank()
    sizes = [*SIZES, *reversed(SIZES)]
    sent = [torch.arange(size, dtype=torch.int32) + 1000 * tag for tag, size in enumerate(sizes)]
    received = [torch.zeros_like(each) for each in sent]

    def receive() -> list[dist.Work | None]:
        order = list(enumerate(received))
        return [dist.irecv(each, other, tag=tag) for tag, each in (reversed(order) if late else order)]

    works = [] if late else receive()
    works += [dist.isend(each, other, tag=tag) for tag, each in enumerate(sent)]
    if late:
        dist.barrier()
        works += receive()
    for work in works:
        assert work is not None
        work.wait()
    return [
        size
        for size, mine, theirs in zip(sizes, sent, received, strict=True)
        if not torch.equal(mine, theirs)
    ]


@pytest.mark.parametrize("late", [False, True], ids=["awaited", "not awaited"])
def test_messages_of_all_sizes_arrive_whole(twice_joined: Hosts, late: bool) -> None:
    assert twice_joined.run(wrong_messages, late) == [[], []]
    assert all(twice_joined.sent(i, cable=1) > 1 << 20 for i in range(2))


def until_it_is_cut() -> str:
    dist.all_reduce(torch.ones(ELEMENTS))
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    store.set(f"ready{dist.get_rank()}", "")
    store.wait(["cut"])
    dist.group.WORLD._get_backend(torch.device("cpu"))._set_default_timeout(timedelta(seconds=5))  # type: ignore[union-attr]
    try:
        dist.all_reduce(torch.ones(ELEMENTS))
    except dist.DistBackendError as error:
        return str(error)
    return "nothing happened"


def test_if_a_cable_is_cut_operations_that_use_it_time_out(twice_joined: Hosts) -> None:
    with twice_joined.started(until_it_is_cut) as ranks:
        ranks.store.wait(["ready0", "ready1"])
        twice_joined.cut(1, cable=1)
        ranks.store.set("cut", "")
        for text in ranks.values():
            assert re.search("all_reduce seq 2 .* timed out", text), text
