"""Messages that are large, or of another size than expected, and many at once in a batch."""

import itertools
import re
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from calls import hear, recv_any_source, refusal, say, usable
from reference import exactly, sample
from torch_ucc.testing import run_ranks

pytestmark = pytest.mark.multirank

LARGE = 1 << 20  # elements: sent only once the receiver is ready

Error = tuple[str, str] | None  # type and text


def both_ways(numel: int) -> list[str | None]:
    rank, other = dist.get_rank(), 1 - dist.get_rank()
    output = torch.zeros(numel)
    works = [dist.isend(sample(torch.float32, rank, 1, numel), other), dist.irecv(output, other)]
    for work in works:
        work.wait()
    return [exactly(sample(torch.float32, other, 1, numel)).wrong(output)]


def test_64_mb_both_ways_at_once() -> None:
    assert run_ranks(both_ways, 2, 16 << 20) == [[None], [None]]


SIZES = [(16, 8), (8, 16), (0, 4), (4, 0), (LARGE, LARGE // 2), (LARGE // 2, LARGE), (LARGE, 4), (4, LARGE)]


def of_another_size(receive_first: bool, any_source: bool) -> list[tuple[Error, float, bool]]:
    """The receiver is told; the sender has done its part; what comes after is not disturbed."""
    found = []
    for sent, expected in SIZES:
        case = f"{receive_first} {any_source} {sent} {expected}"
        after = torch.zeros(3)
        if dist.get_rank() == 0:
            if receive_first:
                hear(f"posted {case}")
            works = [dist.isend(torch.ones(sent), 1, tag=5), dist.isend(torch.full((3,), 2.0), 1, tag=5)]
            say(f"sent {case}")
            error = refusal(lambda works=works: [work.wait() for work in works])
        else:
            if not receive_first:
                hear(f"sent {case}")
            output = torch.zeros(expected)
            if any_source:
                work = recv_any_source(output, dist.group.WORLD, 5)
            else:
                work = dist.irecv(output, 0, tag=5)
            say(f"posted {case}")
            error = refusal(work.wait)
            dist.recv(after, 0, tag=5)
            assert refusal(work.wait) == error  # and it stays so
        found.append((error, float(after[0]), usable()))
    return found


WAYS_TO_RECEIVE = list(itertools.product([False, True], [False, True]))

BySize = dict[tuple[bool, bool], list[tuple[Error, float, bool]]]


def received_in_each_way() -> BySize:
    return {way: of_another_size(*way) for way in WAYS_TO_RECEIVE}


@pytest.fixture(scope="module")
def another_size() -> list[BySize]:
    return run_ranks(received_in_each_way, 2)


@pytest.mark.parametrize("way", WAYS_TO_RECEIVE, ids="receive first {0[0]}, any source {0[1]}".format)
def test_message_of_another_size(another_size: list[BySize], way: tuple[bool, bool]) -> None:
    by_sender, by_receiver = (found[way] for found in another_size)
    assert by_sender == [(None, 0.0, True)] * len(SIZES)
    for (sent, expected), (error, after, still_usable) in zip(SIZES, by_receiver, strict=True):
        assert error is not None, f"{sent} elements sent, {expected} expected: accepted"
        assert (error[0], after, still_usable) == ("ValueError", 2.0, True), error
        assert {str(4 * sent), str(4 * expected)} <= set(re.findall(r"\d+", error[1])), error
        name = "recv_any_source" if way[1] else "recv from rank 0"
        assert re.search(rf"^{name} tag 5 .*of group '.+' on rank 1 of 2", error[1]), error
        assert "message from rank 0" in error[1], error


def mismatched(sent: int) -> dict[str, tuple[Error, bool]]:
    """Rank 1 sends rank 0 so many elements, and 8 are expected there: rank 0 alone is told."""
    rank = dist.get_rank()
    ours, theirs = torch.zeros(8), torch.ones(sent)  # of rank 0, of rank 1
    own = [torch.zeros(5), torch.zeros(5)]  # what each rank keeps to itself, and what 1 gets from 0
    gathered = [torch.zeros(8), ours] if rank == 0 else None
    scattered = [theirs, torch.ones(5)] if rank == 1 else None
    lists = ([own[0], ours], [torch.ones(5)] * 2) if rank == 0 else (own, [theirs, torch.ones(5)])
    splits = ([5, 8], [5, 5]) if rank == 0 else ([5, 5], [sent, 5])
    calls: dict[str, Callable[[], object]] = {
        "gather": lambda: dist.gather(theirs if rank else torch.ones(8), gathered),
        "scatter": lambda: dist.scatter(own[0] if rank else ours, scattered, 1),
        "all_to_all": lambda: dist.all_to_all(*lists),
        "all_to_all_single": lambda: dist.all_to_all_single(
            torch.zeros(sum(splits[0])), torch.ones(sum(splits[1])), *splits
        ),
    }
    return {name: (refusal(call), usable()) for name, call in calls.items()}


PARTS = (7, 9, LARGE)


def mismatched_parts() -> dict[int, dict[str, tuple[Error, bool]]]:
    return {sent: mismatched(sent) for sent in PARTS}


@pytest.fixture(scope="module")
def another_part() -> list[dict[int, dict[str, tuple[Error, bool]]]]:
    return run_ranks(mismatched_parts, 2)


@pytest.mark.parametrize("sent", PARTS)
def test_collective_with_a_part_of_another_size(
    another_part: list[dict[int, dict[str, tuple[Error, bool]]]], sent: int
) -> None:
    first, second = (found[sent] for found in another_part)
    for name, (error, still_usable) in first.items():
        assert error is not None and error[0] == "ValueError" and still_usable, (name, error)
        assert error[1].startswith(f"{name} seq ") and re.search("rank 1 (sends|has) ", error[1]), error
        assert {str(4 * sent), "32"} <= set(re.findall(r"\d+", error[1])), error
    assert second == dict.fromkeys(first, (None, True))


def batches() -> dict[str, list[float]]:
    """Several messages to and from every other rank in one batch, some of a tag of their own."""
    rank, size = dist.get_rank(), dist.get_world_size()
    found = {}
    for order in ("mixed", "sends first", "receives first", "each its own"):
        sends, receives, outputs = [], [], {}
        for peer in range(size):
            for i, tag in enumerate((0, 0, 2**31 - 1) if peer != rank else ()):
                outputs[peer, i] = torch.zeros(5)
                receives.append(dist.P2POp(dist.irecv, outputs[peer, i], peer, tag=tag))
                value = 100.0 * rank + 10 * peer + i
                sends.append(dist.P2POp(dist.isend, torch.full((5,), value), peer, tag=tag))
        mixed = [op for pair in zip(sends, receives, strict=True) for op in pair]
        orders = {"mixed": mixed, "sends first": sends + receives, "receives first": receives + sends}
        for work in dist.batch_isend_irecv(orders.get(order, list(orders.values())[rank])):
            work.wait()
        values = {of: float(output.unique().item()) for of, output in outputs.items()}
        found[order] = [value - (100 * peer + 10 * rank + i) for (peer, i), value in values.items()]
    return found


def test_batch_isend_irecv() -> None:
    for found in run_ranks(batches, 3):
        assert len(found) == 4 and all(each == [0.0] * 6 for each in found.values()), found


def batch_of_another_size() -> tuple[Error, float, bool]:
    """One receive of a batch is wrong: the batch says so, and the others have come all the same."""
    other = 1 - dist.get_rank()
    good, bad = torch.zeros(1000), torch.zeros(7 if dist.get_rank() else 9)
    ops = [
        dist.P2POp(dist.irecv, bad, other, tag=1),
        dist.P2POp(dist.isend, torch.ones(9), other, tag=1),
        dist.P2POp(dist.irecv, good, other, tag=2),
        dist.P2POp(dist.isend, torch.ones(1000), other, tag=2),
    ]
    error = refusal(lambda: [work.wait() for work in dist.batch_isend_irecv(ops)])
    return error, float(good.sum()), usable()


def test_batch_with_a_message_of_another_size() -> None:
    first, second = run_ranks(batch_of_another_size, 2)
    assert first == (None, 1000.0, True)
    error, total, still_usable = second
    assert error is not None and error[0] == "ValueError" and "36" in error[1] and "28" in error[1], error
    assert (total, still_usable) == (1000.0, True)


def objects() -> list[object]:
    rank = dist.get_rank()
    if rank == 0:
        dist.send_object_list([{"from": 0}, "x" * 100_000], 1)
        return []
    found: list[object] = [None, None]
    source = dist.recv_object_list(found, src=0)
    return [*found, source]


def test_objects() -> None:
    assert run_ranks(objects, 2)[1] == [{"from": 0}, "x" * 100_000, 0]


HUGE = 2**31 + 8
MARKS = (0, 1, HUGE // 2, 2**31 - 1, 2**31, HUGE - 1)


def beyond_int() -> list[tuple[list[int], int]]:
    """Elements that 32 bits cannot count, one byte each: sent from rank 0 to 1, then broadcast back."""
    marks = torch.tensor(MARKS)
    tensor = torch.zeros(HUGE, dtype=torch.int8)
    if dist.get_rank() == 0:
        tensor[marks] = torch.arange(1, 1 + len(MARKS), dtype=torch.int8)
        dist.send(tensor, 1)
        tensor.zero_()
    else:
        dist.recv(tensor, 0)
    found = [(tensor[marks].tolist(), int(torch.count_nonzero(tensor)))]
    dist.broadcast(tensor, 1)
    return [*found, (tensor[marks].tolist(), int(torch.count_nonzero(tensor)))]


@pytest.mark.slow
def test_more_than_two_to_the_31_elements() -> None:
    marked, cleared = ([1, 2, 3, 4, 5, 6], len(MARKS)), ([0] * 6, 0)
    assert run_ranks(beyond_int, 2, timeout=120.0) == [[cleared, marked], [marked, marked]]
