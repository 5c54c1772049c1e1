"""Messages from one rank to another: which is received when, and from whom."""

import random
from collections.abc import Callable
from typing import TypeVar

import pytest
import torch
import torch.distributed as dist
from calls import Report, assert_all_well, hear, recv, recv_any_source, say, send, usable
from messages import MESSAGES
from table import try_all
from torch_ucc.testing import run_ranks

pytestmark = pytest.mark.multirank

T = TypeVar("T")

LARGE = 1 << 20  # elements: sent only once the receiver is ready
NUMELS = (1, 1000, LARGE)


@pytest.fixture(scope="module", params=[1, 2, 3, 4], ids="{} ranks".format)
def reports(request: pytest.FixtureRequest) -> list[dict[str, Report]]:
    return run_ranks(try_all, request.param, list(MESSAGES), timeout=120.0)


@pytest.mark.parametrize("name", MESSAGES)
def test_every_case(reports: list[dict[str, Report]], name: str) -> None:
    cases = MESSAGES[name]
    assert_all_well([report[name] for report in reports], at_least=sum(5 * len(case.pairs) for case in cases))


def filled(value: float, numel: int = 4) -> torch.Tensor:
    return torch.full((numel,), float(value))


def value_of(tensor: torch.Tensor) -> float:
    assert (tensor == tensor[0]).all()
    return float(tensor[0])


def of_each_size(exchange: Callable[[int], list[T]]) -> dict[int, list[T]]:
    found = {}
    for numel in NUMELS:
        found[numel] = exchange(numel)
        dist.barrier()  # a receive from any source must not take what belongs to the next size
    return found


TAGS = (7, 0, 2**31 - 1, 1, 2**16, 2**31 - 2, 3)


def tags(numel: int) -> list[float]:
    """Received in an order that is not the one they were sent in, without waiting for any before."""
    if dist.get_rank() == 0:
        works = [dist.isend(filled(tag % 1000, numel), 1, tag=tag) for tag in TAGS]
        for work in works:
            work.wait()
        return []
    received = {tag: filled(-1, numel) for tag in reversed(TAGS)}
    for tag, tensor in received.items():
        assert dist.recv(tensor, 0, tag=tag) == 0
    return [value_of(received[tag]) for tag in TAGS]


def test_tags_are_exact() -> None:
    _, found = run_ranks(of_each_size, 2, tags)
    assert found == {key: [float(tag % 1000) for tag in TAGS] for key in NUMELS}


def in_order(receive_first: bool) -> list[float]:
    """One tag, from small to large and back, so that they travel in different ways."""
    numels = [1, 100_000, 4, LARGE, 16, 30_000, 0, 2] * 4
    if dist.get_rank() == 0:
        if receive_first:
            hear("posted")
        for i, numel in enumerate(numels):
            dist.isend(filled(i, numel), 1)
        say(f"sent {receive_first}")
        return []
    if not receive_first:
        hear("sent False")
    tensors = [filled(-1, numel) for numel in numels]
    works = [dist.irecv(tensor, 0) for tensor in tensors]
    if receive_first:
        say("posted")
    random.Random(1).shuffle(works)
    for work in works:
        work.wait()
    return [value_of(tensor) if tensor.numel() else float(i) for i, tensor in enumerate(tensors)]


def in_both_orders() -> list[list[float]]:
    return [in_order(receive_first) for receive_first in (False, True)]


def test_order_within_a_tag() -> None:
    assert run_ranks(in_both_orders, 2)[1] == [[float(i) for i in range(32)]] * 2


def any_source(numel: int) -> list[tuple[int, float]]:
    """Of each sender in its order; who it was is told by the Work and by dist.recv."""
    rank, size, world = dist.get_rank(), dist.get_world_size(), dist.group.WORLD
    if rank != 1:
        for i in range(5):
            dist.send(filled(100 * rank + i, numel), 1, tag=9)
        dist.send(filled(-rank, numel), 1, tag=8)
        return []
    found = []
    for i in range(5 * (size - 1)):
        tensor = filled(-100, numel)
        if i % 2:
            source = dist.recv(tensor, tag=9)
        else:
            work = recv_any_source(tensor, world, 9)
            work.wait()
            source = work._source_rank()
        found.append((source, value_of(tensor)))
    for _ in range(size - 1):  # of another tag, left alone so far
        tensor = filled(-100, numel)
        source = dist.recv(tensor, tag=8)
        assert value_of(tensor) == -source
    return found


def test_any_source() -> None:
    for found in run_ranks(of_each_size, 4, any_source)[1].values():
        for sender in (0, 2, 3):
            values = [value for source, value in found if source == sender]
            assert values == [100.0 * sender + i for i in range(5)], found


def exact_and_any() -> tuple[float, float]:
    """Both wait for the same sender and tag: the first that was posted gets the first message."""
    world = dist.group.WORLD
    if dist.get_rank() == 0:
        hear("posted")
        for value in (1, 2):
            dist.send(filled(value), 1, tag=5)
        return 0.0, 0.0
    first, second = filled(-1), filled(-1)
    works = [recv_any_source(first, world, 5), recv(second, 0, world, 5)]
    say("posted")
    for work in works:
        work.wait()
    return value_of(first), value_of(second)


def test_any_source_and_a_named_one() -> None:
    assert run_ranks(exact_and_any, 2)[1] == (1.0, 2.0)


def empty_messages() -> list[float]:
    """Without a byte they are messages all the same: waited for, in order, from a source."""
    if dist.get_rank() == 0:
        hear("pending")
        dist.send(torch.empty(0), 1, tag=1)
        dist.send(filled(5), 1, tag=1)
        dist.send(torch.empty(0, 3), 1, tag=2)
        return []
    work = dist.irecv(torch.empty(0), 0, tag=1)
    pending = not work.is_completed()
    say("pending")
    work.wait()
    tensor = filled(-1)
    dist.recv(tensor, 0, tag=1)
    return [float(pending), value_of(tensor), float(dist.recv(torch.empty(3, 0), tag=2))]


def test_messages_of_no_bytes() -> None:
    assert run_ranks(empty_messages, 2)[1] == [1.0, 5.0, 0.0]


def to_oneself(numel: int) -> list[float]:
    """By the group's own methods: torch.distributed's refuse it. Sent first, received first."""
    world, rank = dist.group.WORLD, dist.get_rank()
    found = []
    for receive_first in (False, True):
        mine, output = filled(rank + 1, numel), filled(-1, numel)
        calls = [lambda mine=mine: send(mine, rank, world, 4), lambda out=output: recv(out, rank, world, 4)]
        for work in [call() for call in (reversed(calls) if receive_first else calls)]:
            work.wait()
        found.append(value_of(output))
    output = filled(-1, numel)
    works = [send(filled(7, numel), rank, world), recv_any_source(output, world)]
    for work in works:
        work.wait()
    return [*found, value_of(output), float(works[1]._source_rank())]


def test_message_to_oneself() -> None:
    for rank, found in enumerate(run_ranks(of_each_size, 2, to_oneself)):
        assert found == {key: [rank + 1.0, rank + 1.0, 7.0, float(rank)] for key in NUMELS}


def opposite(numel: int) -> list[float]:
    """Whatever both sides do first, and whatever each waits for first, nobody waits for ever."""
    rank, other = dist.get_rank(), 1 - dist.get_rank()
    found = []
    for round_, sends_first in enumerate(((0, 1), (), (0,))):
        output = filled(-1, numel)

        def start_send(value: int = 10 * round_ + rank) -> dist.Work:
            return dist.isend(filled(value, numel), other, tag=1)

        def start_recv(output: torch.Tensor = output) -> dist.Work:
            return dist.irecv(output, other, tag=1)

        for wait_reversed in (False, True):
            order = (start_send, start_recv) if rank in sends_first else (start_recv, start_send)
            works = [call() for call in order]
            for work in reversed(works) if wait_reversed else works:
                work.wait()
            found.append(value_of(output))
            output.fill_(-1)
    first, second = filled(-1, numel), filled(-1, numel)
    if rank == 0:  # the second message is asked for, and waited for, before the first
        works = [dist.isend(filled(tag, numel), other, tag=tag) for tag in (1, 2)]
    else:
        dist.recv(second, other, tag=2)
        works = [dist.irecv(first, other, tag=1)]
    for work in works:
        work.wait()
    return [*found, *([] if rank == 0 else [value_of(first), value_of(second)])]


def test_opposite_order() -> None:
    for rank, found in enumerate(run_ranks(of_each_size, 2, opposite)):
        expected = [10.0 * round_ + 1 - rank for round_ in range(3) for _ in range(2)]
        assert found == dict.fromkeys(NUMELS, expected + ([1.0, 2.0] if rank else []))


def outstanding(count: int) -> int:
    """Messages of one rank before they are received, those of the other after; then in any order."""
    rank, other = dist.get_rank(), 1 - dist.get_rank()
    outputs = [filled(-1, 1 + i % 9) for i in range(count)]

    def receive() -> list[dist.Work]:
        return [dist.irecv(output, other, tag=i % 7) for i, output in enumerate(outputs)]

    works = receive() if rank == 0 else []
    works += [dist.isend(filled(i, 1 + i % 9), other, tag=i % 7) for i in range(count)]
    say(f"sent by {rank}")
    if rank == 1:
        hear("sent by 0")
        works += receive()
    random.Random(rank).shuffle(works)
    for work in works:
        work.wait()
    return sum(value_of(output) == i for i, output in enumerate(outputs))


def test_thousands_outstanding() -> None:
    assert run_ranks(outstanding, 2, 5000) == [5000, 5000]


def groups_apart() -> list[float]:
    """The same ranks, tags and sizes in several groups, and collectives between: nothing gets mixed up."""
    groups = [dist.new_group([1, 0]), dist.new_group([0, 1])]
    rank, other = dist.get_rank(), 1 - dist.get_rank()
    outputs = [filled(-1), filled(-1), filled(-1)]
    works = [dist.irecv(outputs[i], other, group=group) for i, group in enumerate(groups)]
    works.append(dist.irecv(outputs[2], other))
    collected = [torch.zeros(4) for _ in range(2)]
    dist.gather(filled(50 + rank), collected if rank == 0 else None)
    assert usable(groups[0]) and usable(groups[1])
    for value, group in ((3, None), (2, groups[1]), (1, groups[0])):
        works.append(dist.isend(filled(value), other, group=group))
    for work in works:
        work.wait()
    return [*map(value_of, outputs), *(map(value_of, collected) if rank == 0 else ())]


def test_groups_and_collectives_are_kept_apart() -> None:
    assert run_ranks(groups_apart, 2) == [[1.0, 2.0, 3.0, 50.0, 51.0], [1.0, 2.0, 3.0]]


def ranks_of_a_group() -> tuple[int, int, float]:
    """Sources are ranks of the group to its own methods, and of the world to torch.distributed's."""
    group = dist.new_group([1, 2])
    rank = dist.get_rank()
    tensor = filled(rank)
    if rank == 1:
        send(tensor, 1, group, 3).wait()
        dist.send(tensor, 2, group=group)
    if rank != 2:
        return -1, -1, -1.0
    work = recv_any_source(tensor, group, 3)
    work.wait()
    return work._source_rank(), dist.recv(tensor, group=group), value_of(tensor)


def test_ranks_within_a_group() -> None:
    assert run_ranks(ranks_of_a_group, 3)[2] == (0, 1, 1.0)
