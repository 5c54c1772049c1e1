"""The order of calls on a group is the order of their effects, also where they share memory."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch_ucc._torch import all_gather_single
from torch_ucc.testing import run_ranks

pytestmark = pytest.mark.multirank

SIZES = [1, 50_000, 1_000_000]
"""Elements: in one message, in several, in several pieces."""

CPU = torch.device("cpu")


def _each_size(body: Callable[[int], list[float]]) -> list[list[float]]:
    return [body(numel) for numel in SIZES]


def thrice(dtype: torch.dtype) -> list[list[float]]:
    def body(numel: int) -> list[float]:
        tensor = torch.ones(numel, dtype=dtype)
        works = [dist.all_reduce(tensor, async_op=True) for _ in range(3)]
        for work in reversed(works):
            work.wait()
        return tensor.unique().tolist()

    return _each_size(body)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_one_tensor_in_several_operations(dtype: torch.dtype) -> None:
    """Gloo starts two of them at once, in two threads, and gives 5, 6 or 8."""
    expected = [[8.0]] * len(SIZES)
    assert run_ranks(thrice, 2, dtype) == [expected, expected]


def sparse() -> list[list[float]]:
    """Each call reads what the one before it wrote, or what it is about to write."""
    twice = torch.eye(4).to_sparse()
    works = [dist.all_reduce(twice, async_op=True) for _ in range(3)]
    of_values = torch.eye(200).to_sparse()
    works.append(dist.all_reduce(of_values._values(), async_op=True))
    works.append(dist.all_reduce(of_values, async_op=True))
    for work in works:
        work.wait()
    return [tensor.to_dense().unique().tolist() for tensor in (twice, of_values)]


def test_a_sparse_tensor_in_several_operations() -> None:
    assert run_ranks(sparse, 2) == [[[0.0, 8.0], [0.0, 4.0]]] * 2


def sparse_twice_in_one_call() -> str:
    tensor = torch.eye(2).to_sparse()
    try:
        with dist._coalescing_manager(dist.group.WORLD, CPU, async_ops=True):
            backend = dist.group.WORLD._get_backend(CPU)
            backend.allreduce([tensor], dist.AllreduceOptions())
            backend.allreduce([tensor], dist.AllreduceOptions())
    except ValueError as error:
        return str(error)
    return ""


def test_a_sparse_tensor_twice_in_one_coalescing() -> None:
    assert all(
        "shares memory with a tensor of another call" in each
        for each in run_ranks(sparse_twice_in_one_call, 2)
    )


MANY = 3000


def many() -> list[float]:
    """Doubled and halved in turns."""
    tensor = torch.full((200,), 3.0)
    half = dist._make_nccl_premul_sum(0.5 / dist.get_world_size())
    works = []
    for call in range(MANY):
        works.append(dist.all_reduce(tensor, half if call % 2 else dist.ReduceOp.SUM, async_op=True))
    for work in works:
        work.wait()
    return tensor.unique().tolist()


def test_thousands_of_operations_on_one_tensor() -> None:
    """They take minutes if each of them looks at all earlier ones whenever one of them is polled."""
    assert run_ranks(many, 2) == [[3.0 if MANY % 2 == 0 else 6.0]] * 2


def write_behind_a_line() -> list[list[float]]:
    """Rank 0 broadcasts into what it also sends, in a message that stands behind others in its line.

    One of those waits for data that rank 1 sends only after the broadcast.
    """
    numel = 4_000_000  # a broadcast for which the root waits
    first, second = torch.full((numel,), -1.0), torch.full((numel,), -2.0)
    if dist.get_rank() == 0:
        works = [
            dist.irecv(second, 1, tag=2),
            dist.irecv(first, 1, tag=0),
            dist.isend(second, 1, tag=3),
            dist.isend(first, 1, tag=1),
            dist.broadcast(first, 1, async_op=True),
        ]
        for work in works:
            work.wait()
    else:
        dist.send(torch.full((numel,), 5.0), 0, tag=0)
        dist.broadcast(torch.full((numel,), 9.0), 1)
        dist.send(torch.full((numel,), 7.0), 0, tag=2)
        dist.recv(second, 0, tag=3)
        dist.recv(first, 0, tag=1)
    return [first.unique().tolist(), second.unique().tolist()]


def test_a_write_to_what_a_message_sends_that_waits_in_line() -> None:
    assert run_ranks(write_behind_a_line, 2) == [[[9.0], [7.0]], [[5.0], [7.0]]]


def message_after_barrier() -> list[float]:
    """Rank 1 calls the barrier once it has the message, which rank 0 sends after its call of it."""
    tensor, message = torch.ones(4), torch.full((4,), 7.0)
    if dist.get_rank() == 0:
        works = [
            dist.all_reduce(tensor, async_op=True),
            dist.barrier(async_op=True),
            dist.isend(message, 1),
        ]
    else:
        message.zero_()
        dist.recv(message, 0)
        works = [dist.all_reduce(tensor, async_op=True), dist.barrier(async_op=True)]
    for work in works:
        work.wait()
    return [*message.unique().tolist(), *tensor.unique().tolist()]


def test_a_message_does_not_wait_for_a_barrier() -> None:
    assert run_ranks(message_after_barrier, 2, group_timeout=30.0) == [[7.0, 2.0]] * 2


def written_before_it_is_sent(writer: str) -> list[list[float]]:
    """Rank 0 sends what comes in part from an operation before, and writes the rest of it later."""
    store = dist.distributed_c10d._get_default_store()
    tensor, got = torch.full((8,), -1.0), torch.zeros(8)
    if dist.get_rank() == 0:
        works = [dist.irecv(tensor[:4], 1, tag=0), dist.isend(tensor, 1, tag=1)]
        if writer == "broadcast":
            works.append(dist.broadcast(tensor[4:], 1, async_op=True))
        else:
            works.append(dist.irecv(tensor[4:], 1, tag=2))
        time.sleep(0.3)  # in which it must not be written
        store.set("written", "perhaps")
    else:
        if writer == "broadcast":
            dist.broadcast(torch.full((4,), 9.0), 1)
        else:
            dist.send(torch.full((4,), 9.0), 0, tag=2)
        store.wait(["written"])
        dist.send(torch.full((4,), 5.0), 0, tag=0)
        works = [dist.irecv(got, 0, tag=1)]
    for work in works:
        work.wait()
    return [tensor.tolist(), got.tolist()]


@pytest.mark.parametrize("writer", ["broadcast", "irecv"])
def test_a_later_write_does_not_reach_a_message(writer: str) -> None:
    (mine, _), (_, got) = run_ranks(written_before_it_is_sent, 2, writer, group_timeout=30.0)
    assert mine == [5.0] * 4 + [9.0] * 4
    assert got == [5.0] * 4 + [-1.0] * 4


def chain() -> list[list[float]]:
    """Each operation reads what the one before wrote, in whole or in part, and by other views."""

    def body(numel: int) -> list[float]:
        rank = dist.get_rank()
        matrix = torch.full((2, numel), float(rank + 1))
        works = [
            dist.all_reduce(matrix[0], async_op=True),  # 3, r + 1
            dist.broadcast(matrix[:, 0], 1, async_op=True),  # a column: 3, 2
            dist.all_reduce(matrix.t()[:, 1], async_op=True),  # 3, 4 then 3
        ]
        gathered = torch.zeros(2 * 2 * numel)
        works.append(all_gather_single(gathered, matrix.view(-1), async_op=True))
        works.append(dist.all_reduce(gathered, op=dist.ReduceOp.MAX, async_op=True))
        parts = [matrix[0], matrix[1]]
        works.append(dist.all_gather(parts, torch.full((numel,), 10.0 * rank), async_op=True))
        for work in works:
            work.wait()
        first, second = gathered.view(2, 2, numel)
        assert bool((first == second).all())
        return [*first[:, 0].tolist(), *first[:, -1].tolist(), *matrix[:, 0].tolist()]

    return _each_size(body)


def test_operations_see_what_earlier_ones_wrote() -> None:
    expected = [[3.0, 4.0, 3.0, 4.0, 0.0, 10.0]] + [[3.0, 4.0, 3.0, 3.0, 0.0, 10.0]] * (len(SIZES) - 1)
    assert run_ranks(chain, 2) == [expected, expected]


def synchronous_after_asynchronous() -> list[list[float]]:
    def body(numel: int) -> list[float]:
        tensor = torch.ones(numel)
        work = dist.all_reduce(tensor, async_op=True)
        dist.all_reduce(tensor)
        seen = tensor.unique().tolist()
        work.wait()
        return [*seen, *tensor.unique().tolist()]

    return _each_size(body)


def test_a_synchronous_call_comes_after_an_asynchronous_one() -> None:
    expected = [[4.0, 4.0]] * len(SIZES)
    assert run_ranks(synchronous_after_asynchronous, 2) == [expected, expected]


def on_one_rank_only() -> list[list[float]]:
    """Only rank 0 uses one tensor twice: what it has to wait for must not change which calls meet."""

    def body(numel: int) -> list[float]:
        rank = dist.get_rank()
        shared = torch.ones(numel)
        tensors = [shared, shared if rank == 0 else torch.ones(numel), torch.full((numel,), 5.0)]
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        for work in works:
            work.wait()
        return [tensor.unique().item() for tensor in tensors]

    return _each_size(body)


def test_operations_that_wait_on_one_rank_meet_the_same_calls() -> None:
    first, second = run_ranks(on_one_rank_only, 2)
    # Rank 0 sends 1, then the sum 2; rank 1 sends 1 and 1.
    assert first == [[3.0, 3.0, 10.0]] * len(SIZES)
    assert second == [[2.0, 3.0, 10.0]] * len(SIZES)


def sent_and_received() -> list[list[float]]:
    """Both ranks send a tensor and receive into it before the message has left."""

    def body(numel: int) -> list[float]:
        rank = dist.get_rank()
        tensor = torch.full((numel,), float(rank))
        works = [dist.isend(tensor, 1 - rank), dist.irecv(tensor, 1 - rank)]
        for work in works:
            assert work is not None
            work.wait()
        return tensor.unique().tolist()

    return _each_size(body)


def test_a_message_is_sent_as_it_was_when_it_was_called() -> None:
    assert run_ranks(sent_and_received, 2) == [[[1.0]] * len(SIZES), [[0.0]] * len(SIZES)]


def received_and_sent_on() -> list[list[float]]:
    """A message that is not there yet is sent on by a call that does not wait for it, from a view."""

    def body(numel: int) -> list[float]:
        rank, size = dist.get_rank(), dist.get_world_size()
        matrix = torch.zeros(numel, 2)
        if rank == 0:
            matrix[:, 1] = 7.0
            dist.send(matrix[:, 1], 1)
            dist.recv(matrix[:, 0], size - 1)
        else:
            work = dist.irecv(matrix[:, 1], rank - 1)
            sent = dist.isend(matrix[:, 1], (rank + 1) % size)
            for each in (sent, work):
                assert each is not None
                each.wait()
        return matrix[:, 0 if rank == 0 else 1].unique().tolist()

    return _each_size(body)


def test_a_message_is_sent_on_as_it_was_received() -> None:
    assert run_ranks(received_and_sent_on, 3) == [[[7.0]] * len(SIZES)] * 3


# --- lists and batches ------------------------------------------------------------------------------------


def the_same_twice() -> list[list[float]]:
    def body(numel: int) -> list[float]:
        rank = dist.get_rank()
        tensor = torch.full((numel,), float(rank + 1))
        dist.all_reduce_coalesced([tensor, tensor])
        return tensor.unique().tolist()

    return _each_size(body)


@pytest.mark.parametrize("backend", ["ucc", "gloo"])
def test_a_tensor_that_is_twice_in_a_list_is_reduced_once(backend: str) -> None:
    expected = [[3.0]] * len(SIZES)
    assert run_ranks(the_same_twice, 2, backend=backend) == [expected, expected]


def overlapping_slices() -> list[list[float]]:
    """What is written last stands where slices overlap."""

    def body(numel: int) -> list[float]:
        rank = dist.get_rank()
        whole = torch.cat([torch.full((numel,), 1.0 + rank), torch.full((numel,), 10.0)])
        dist.all_reduce_coalesced([whole, whole[:numel]])
        target = torch.zeros(2 * numel + 1)
        slices = [target[1:], target[:-1]]
        dist.all_gather(slices, torch.full((2 * numel,), float(rank + 1)))
        return [whole[0].item(), whole[-1].item(), target[0].item(), target[-2].item(), target[-1].item()]

    return _each_size(body)


@pytest.mark.parametrize("backend", ["ucc", "gloo"])
def test_overlapping_slices_of_a_list_are_written_in_order(backend: str) -> None:
    expected = [[3.0, 20.0, 2.0, 2.0, 1.0]] * len(SIZES)
    assert run_ranks(overlapping_slices, 2, backend=backend) == [expected, expected]


def sent_between_writes(how: str) -> list[list[float]]:
    """Rank 1 sends what an earlier operation has yet to bring, and a later one overwrites."""
    rank = dist.get_rank()

    def body(numel: int) -> list[float]:
        tensor, got = torch.full((numel,), 7.0 if rank == 0 else 1.0), torch.zeros(numel)
        if rank == 0:
            time.sleep(0.2)  # the broadcast of rank 1 is in flight when it calls the others
        works = [dist.broadcast(tensor, 0, async_op=True)]
        if how == "batch":
            calls = [dist.P2POp(dist.isend, tensor, 1 - rank), dist.P2POp(dist.irecv, got, 1 - rank)]
            works += dist.batch_isend_irecv(calls)
        elif rank == 1:
            works.append(dist.isend(tensor, 0))
        else:
            works.append(dist.irecv(got, 1))
        works.append(dist.all_reduce(tensor, async_op=True))
        for work in works:
            work.wait()
        return [*got.unique().tolist(), *tensor.unique().tolist()]

    return _each_size(body)


@pytest.mark.parametrize("how", ["message", "batch"])
def test_what_is_sent_between_two_writes(how: str) -> None:
    first, second = run_ranks(sent_between_writes, 2, how)
    assert first == [[7.0, 14.0]] * len(SIZES)
    assert second == [[7.0 if how == "batch" else 0.0, 14.0]] * len(SIZES)


def own_part_and_a_later_write() -> list[list[float]]:
    """A rank's part for itself is copied at the end, also if a later call is to overwrite it."""
    rank = dist.get_rank()

    def body(numel: int) -> list[float]:
        part = torch.full((2 * numel,), 3.0 + rank)
        sources = [torch.full((2 * numel,), 1.0)[::2], torch.full((2 * numel,), 1.0)[::2]]
        sources[rank] = part[::2]
        outputs = [torch.zeros(numel), torch.zeros(numel)]
        if rank == 0:
            work = dist.all_to_all(outputs, sources, async_op=True)
            dist.broadcast(part, 0)
            time.sleep(0.1)
        else:
            time.sleep(0.1)  # the all_to_all of rank 0 cannot end before
            work = dist.all_to_all(outputs, sources, async_op=True)
            dist.broadcast(part, 0)
        work.wait()
        return [value for output in outputs for value in output.unique().tolist()]

    return _each_size(body)


def test_a_part_for_oneself_is_what_it_was_when_called() -> None:
    found = run_ranks(own_part_and_a_later_write, 2)
    assert found == [[[3.0, 1.0]] * len(SIZES), [[1.0, 4.0]] * len(SIZES)]


def all_to_all_into_one() -> list[list[float]]:
    def body(numel: int) -> list[float]:
        rank = dist.get_rank()
        output = torch.zeros(numel)
        inputs = [torch.full((numel,), 10.0 * rank + to) for to in range(2)]
        dist.all_to_all([output, output], inputs)
        return output.unique().tolist()

    return _each_size(body)


def test_the_last_of_several_outputs_in_one_memory_stands() -> None:
    assert run_ranks(all_to_all_into_one, 2) == [[[10.0]] * len(SIZES), [[11.0]] * len(SIZES)]


def batch_in_one_memory(kind: str) -> tuple[list[str], list[float]]:
    """Refused by name before anything is sent; the group goes on."""
    rank, found = dist.get_rank(), []
    tensor, other = torch.full((8,), float(rank)), torch.zeros(8)
    peer = 1 - rank
    try:
        match kind:
            case "messages":
                ops = [dist.P2POp(dist.isend, tensor, peer), dist.P2POp(dist.irecv, tensor[:4], peer)]
                dist.batch_isend_irecv(ops)
            case "collectives":
                group = dist.group.WORLD
                assert group is not None
                with dist._coalescing_manager(group, CPU):
                    dist.broadcast(tensor, 0)
                    dist.broadcast(tensor, 1)
    except ValueError as error:
        found.append(str(error))
    ops = [dist.P2POp(dist.isend, tensor, peer), dist.P2POp(dist.irecv, other, peer)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    total = torch.ones(3)
    dist.all_reduce(total)
    return found, [*other.unique().tolist(), *tensor.unique().tolist(), *total.tolist()]


@pytest.mark.parametrize("kind", ["messages", "collectives"])
def test_a_batch_in_one_memory_is_refused(kind: str) -> None:
    for rank, (found, values) in enumerate(run_ranks(batch_in_one_memory, 2, kind)):
        (text,) = found
        assert "shares memory" in text and f"on rank {rank} of 2" in text, text
        assert values == [1.0 - rank, float(rank), 2.0, 2.0, 2.0]


# --- barrier ----------------------------------------------------------------------------------------------


def behind_a_barrier() -> list[float]:
    tensors = [torch.full((100 * 4**i % 300_000 + 1,), float(i)) for i in range(16)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    dist.barrier()
    found = [tensor.unique().tolist() for tensor in tensors]
    for work in works:
        work.wait()
    return [value for values in found for value in values]


@pytest.mark.parametrize("backend", ["ucc", "gloo"])
def test_a_barrier_comes_after_the_collectives_before_it(backend: str) -> None:
    for found in run_ranks(behind_a_barrier, 2, backend=backend):
        assert found == [2.0 * i for i in range(16)]


def barrier_beside_a_message() -> float:
    """A receive that only a later call of the peer ends does not hold the barrier up."""
    rank, tensor = dist.get_rank(), torch.zeros(1)
    if rank == 0:
        work = dist.irecv(tensor, 1)
        dist.barrier()
        assert work is not None
        work.wait()
        return tensor.item()
    dist.barrier()
    dist.send(torch.full((1,), 5.0), 0)
    return 5.0


@pytest.mark.parametrize("backend", ["ucc", "gloo"])
def test_a_barrier_does_not_wait_for_messages(backend: str) -> None:
    assert run_ranks(barrier_beside_a_message, 2, backend=backend) == [5.0, 5.0]
