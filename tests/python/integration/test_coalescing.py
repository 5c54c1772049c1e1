"""Calls between the start and the end of coalescing: any mix of them, completed as one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager
from torch_ucc._torch import all_gather_single, reduce_scatter_single
from torch_ucc.testing import run_ranks

pytestmark = pytest.mark.multirank

CPU = torch.device("cpu")


def filled(value: float, numel: int = 3) -> torch.Tensor:
    return torch.full((numel,), float(value))


def one_kind(async_ops: bool) -> dict[str, list[list[float]]]:
    """Without a device torch collects the calls and makes one of them."""
    rank, size = dist.get_rank(), dist.get_world_size()
    found: dict[str, list[list[float]]] = {}

    tensors = [filled(rank + 10 * i, numel) for i, numel in enumerate((1, 0, 5, 70_000))]
    with _coalescing_manager(async_ops=async_ops) as batch:
        for tensor in tensors:
            dist.all_reduce(tensor)
    if async_ops:
        batch.wait()
    found["all_reduce"] = [tensor.unique().tolist() for tensor in tensors]

    inputs = [filled(rank + 10 * i, 1 + i) for i in range(3)]
    outputs = [torch.empty(size * (1 + i)) for i in range(3)]
    with _coalescing_manager(async_ops=async_ops) as batch:
        for output, mine in zip(outputs, inputs, strict=True):
            all_gather_single(output, mine)
    if async_ops:
        batch.wait()
    found["all_gather_into_tensor"] = [output.tolist() for output in outputs]

    inputs = [torch.arange(float(size * (1 + i))) + rank for i in range(3)]
    outputs = [torch.empty(1 + i) for i in range(3)]
    with _coalescing_manager(async_ops=async_ops) as batch:
        for output, mine in zip(outputs, inputs, strict=True):
            reduce_scatter_single(output, mine)
    if async_ops:
        batch.wait()
    found["reduce_scatter_tensor"] = [output.tolist() for output in outputs]
    return found


def temporaries() -> list[list[float]]:
    """What each call sends is gone once it is called, and its memory is the next call's."""
    rank, size, found = dist.get_rank(), dist.get_world_size(), []
    group = dist.group.WORLD
    assert group is not None
    for numel in (1000, 70_000):
        outputs = []
        group._start_coalescing(CPU)
        for i in range(6):
            outputs.append(torch.empty(numel * size))
            column = torch.full((numel, 2), float(rank + 10 * i))[:, 0]
            group._allgather_base(outputs[-1], column)
            outputs.append(torch.full((numel,), float(rank)))
            group.allreduce([outputs[-1]])
        group._end_coalescing(CPU).wait()
        found += [output.view(-1, numel).unique(dim=1).flatten().tolist() for output in outputs]
    return found


def test_what_is_sent_may_go_once_it_was_called() -> None:
    gathered = [[[10.0 * i, 10.0 * i + 1], [1.0]] for i in range(6)]
    expected = [each for pair in gathered for each in pair] * 2
    assert run_ranks(temporaries, 2) == [expected, expected]


def both(body: Callable[[bool], object]) -> list[object]:
    return [body(async_ops) for async_ops in (False, True)]


def test_one_kind() -> None:
    for rank, found in enumerate(run_ranks(both, 3, one_kind)):
        each = {
            "all_reduce": [[3.0], [], [63.0], [93.0]],
            "all_gather_into_tensor": [
                [float(r + 10 * i) for r in range(3) for _ in range(1 + i)] for i in range(3)
            ],
            "reduce_scatter_tensor": [
                [3.0 * (rank * (1 + i) + j) + 3.0 for j in range(1 + i)] for i in range(3)
            ],
        }
        assert found == [each, each], rank


def any_mix(async_op: bool, async_ops: bool) -> list[list[float]]:
    """With a device each call reaches the backend on its own, point-to-point ones among them.

    torch collects the all_reduces nevertheless, and makes one call of them before the end.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    after, before = (rank + 1) % size, (rank - 1) % size
    reduced, more, sent = filled(rank), filled(rank, 70_000), filled(rank)
    gathered = [torch.empty(2) for _ in range(size)]
    received, swapped = torch.empty(2), torch.empty(size)
    with _coalescing_manager(device=CPU, async_ops=async_ops) as batch:
        dist.irecv(received, before, tag=5)  # before its sender: nothing starts until all are known
        dist.all_reduce(reduced)
        dist.broadcast(sent, 1, async_op=async_op)
        dist.isend(filled(rank, 2), after, tag=5)
        dist.all_reduce(more)
        dist.all_gather(gathered, filled(rank, 2), async_op=async_op)
        dist.all_to_all_single(swapped, filled(rank, size), async_op=async_op)
        dist.barrier(async_op=async_op)
    if async_ops:
        assert len(batch.works) == 1
        batch.wait()
        assert batch.works[0].is_completed()
    assert (more == 3.0).all()
    return [
        received.tolist(),
        reduced.tolist(),
        sent.tolist(),
        torch.cat(gathered).tolist(),
        swapped.tolist(),
    ]


@pytest.mark.parametrize("async_op", [False, True])
def test_any_mix(async_op: bool) -> None:
    """A call that is not async returns as well: as with NCCL, all of them are complete after the block."""
    for rank, found in enumerate(run_ranks(both, 3, partial(any_mix, async_op))):
        received, each = [float((rank - 1) % 3)] * 2, [0.0, 1.0, 2.0]
        expected = [received, [3.0] * 3, [1.0] * 3, [0.0, 0.0, 1.0, 1.0, 2.0, 2.0], each]
        assert found == [expected, expected], rank


def works_within() -> str:
    """A call's own Work says nothing before the batch has ended, and then the same as the batch's."""
    world = dist.group.WORLD
    tensors = [filled(dist.get_rank()) for _ in range(3)]
    world._start_coalescing(CPU)
    works = [world.allreduce([tensor]) for tensor in tensors]
    assert not any(work.is_completed() for work in works)
    try:
        works[1].wait()
        text = "no error"
    except Exception as error:
        text = str(error)
    batch = world._end_coalescing(CPU)
    batch.wait()
    assert batch.is_completed()
    for tensor, work in zip(tensors, works, strict=True):
        assert work.is_completed()
        work.wait()
        assert tensor.tolist() == [1.0] * 3
    return text


def test_works_within_a_batch() -> None:
    for text in run_ranks(works_within, 2):
        assert "coalesc" in text, text


def other_groups_and_empty() -> list[float]:
    """A batch is one group's: others go on meanwhile. One with nothing in it ends at once."""
    world, other = dist.group.WORLD, dist.new_group()
    inside, outside = filled(dist.get_rank()), filled(dist.get_rank())
    world._start_coalescing(CPU)
    work = world.allreduce([inside])
    dist.all_reduce(outside, group=other)
    world._end_coalescing(CPU).wait()
    work.wait()
    world._start_coalescing(CPU)
    nothing = world._end_coalescing(CPU)
    if nothing is not None:
        nothing.wait()
    return [float(inside[0]), float(outside[0])]


def test_other_groups_and_empty_batches() -> None:
    assert run_ranks(other_groups_and_empty, 2) == [[1.0, 1.0]] * 2


def refused_within() -> list[str]:
    """A refusal drops the batch, whoever catches it; what is called after it is called by itself."""
    world = dist.group.WORLD
    tensors, told = [filled(1.0), filled(2.0)], []
    world._start_coalescing(CPU)
    world.allreduce([tensors[0]])
    try:
        world.allreduce([filled(1.0)], dist.ReduceOp.BAND)
    except NotImplementedError as error:
        told.append(str(error))
    dist.all_reduce(tensors[1])
    try:
        world._end_coalescing(CPU)
    except ValueError as error:
        told.append(str(error))
    assert [float(tensor[0]) for tensor in tensors] == [1.0, 4.0]
    after = filled(1.0)
    dist.all_reduce(after)
    assert after.tolist() == [2.0] * 3
    return told


def test_a_refusal_within_a_batch() -> None:
    for refusal, end in run_ranks(refused_within, 2):
        assert "all_reduce" in refusal and "BAND" in refusal, refusal
        assert "were dropped, and none of their data was sent" in end and "BAND" in end, end
        assert len(end.splitlines()) == 1, "no stack within the sentence"


def batch_both_ways() -> list[float]:
    """Every pair exchanges in one batch, each rank in an order of its own."""
    rank, size = dist.get_rank(), dist.get_world_size()
    received = [filled(-1, 4) for _ in range(size)]
    ops = []
    for step in range(1, size):
        peer = (rank + step) % size
        ops.append(dist.P2POp(dist.isend, filled(10 * rank + peer, 4), peer))
        ops.append(dist.P2POp(dist.irecv, received[peer], peer))
    if rank % 2:
        ops.reverse()
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    assert all((tensor == tensor[0]).all() for tensor in received)
    return [float(tensor[0]) for tensor in received]


def test_batch_isend_irecv() -> None:
    for rank, found in enumerate(run_ranks(batch_both_ways, 3)):
        assert found == [-1.0 if peer == rank else 10.0 * peer + rank for peer in range(3)], rank


# --- calls that are refused, and exceptions of the program's own --------------------------------------------


class OwnError(Exception):
    pass


def _bad_message(tensor: torch.Tensor, group: dist.ProcessGroup) -> None:
    tag = torch.ones(2).to_sparse()
    ops = [
        dist.P2POp(dist.isend, tensor, 1 - dist.get_rank()),
        dist.P2POp(dist.irecv, tag, 1 - dist.get_rank()),
    ]
    dist.batch_isend_irecv(ops)


def _bad_call(tensor: torch.Tensor, group: dist.ProcessGroup) -> None:
    with _coalescing_manager(group, CPU):
        dist.broadcast(tensor, 0)
        reduce_scatter_single(torch.empty(3), torch.empty(5))


def _own_error(tensor: torch.Tensor, group: dist.ProcessGroup) -> None:
    with _coalescing_manager(group, CPU):
        dist.broadcast(tensor, 0)
        raise OwnError("no more")


def _own_error_without_a_device(tensor: torch.Tensor, group: dist.ProcessGroup) -> None:
    with _coalescing_manager(group):
        dist.all_reduce(tensor)
        raise OwnError("no more")


def _interrupt(tensor: torch.Tensor, group: dist.ProcessGroup) -> None:
    with _coalescing_manager(group, CPU):
        dist.broadcast(tensor, 0)
        raise KeyboardInterrupt


def _error_at_the_end(tensor: torch.Tensor, group: dist.ProcessGroup) -> None:
    with _coalescing_manager(group, CPU):
        dist.all_reduce(tensor.to(torch.bool), op=dist.ReduceOp.AVG)


def _refused_message(tensor: torch.Tensor, group: dist.ProcessGroup) -> None:
    peer, expanded = 1 - dist.get_rank(), torch.empty(1).expand(3)
    dist.batch_isend_irecv([dist.P2POp(dist.isend, tensor, peer), dist.P2POp(dist.irecv, expanded, peer)])


ENDINGS = {
    "refused message": (_refused_message, "ValueError"),
    "bad message": (_bad_message, "NotImplementedError"),
    "bad call": (_bad_call, "ValueError"),
    "own error": (_own_error, "OwnError"),
    "own error without a device": (_own_error_without_a_device, "OwnError"),
    "interrupt": (_interrupt, "KeyboardInterrupt"),
    "error at the end": (_error_at_the_end, "NotImplementedError"),
}


def left_at_different_calls() -> list[object]:
    """The numbers of sparse reductions are the tags of their messages."""
    group = dist.group.WORLD
    assert group is not None
    try:
        with _coalescing_manager(group, CPU):
            for _ in range(1 + dist.get_rank()):
                dist.broadcast(filled(5.0), 0)
            raise OwnError
    except OwnError:
        pass
    sparse = torch.eye(2).to_sparse()
    dist.all_reduce(sparse)
    return [sparse.to_dense().tolist(), group._get_sequence_number_for_group()]


def test_ranks_that_leave_a_coalescing_at_different_calls() -> None:
    assert run_ranks(left_at_different_calls, 2) == [[[[2.0, 0.0], [0.0, 2.0]], 1]] * 2


def _everything(value: float) -> list[float]:
    """Synchronous calls, each with its effect at once."""
    rank = dist.get_rank()
    reduced, sent, gathered = filled(value), filled(10.0 * rank + value), torch.zeros(6)
    dist.all_reduce(reduced)
    dist.broadcast(sent, 1)
    all_gather_single(gathered, filled(rank + value))
    received = filled(0)
    works = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, filled(rank), 1 - rank), dist.P2POp(dist.irecv, received, 1 - rank)]
    )
    for work in works:
        work.wait()
    dist.barrier()
    return [reduced[0].item(), sent[0].item(), *gathered[::3].tolist(), received[0].item() + rank]


def goes_on_after(ending: str) -> list[object]:
    """The same thread, and then another one, which may get the id of the first."""
    body, wanted = ENDINGS[ending]
    group = dist.group.WORLD
    assert group is not None
    found: list[object] = []

    def fails_and_goes_on(value: float) -> None:
        kept = filled(5.0)
        try:
            body(kept, group)
        except BaseException as error:
            found.append(type(error).__name__)
        found.append(kept.unique().tolist())
        found.append(_everything(value))

    fails_and_goes_on(1.0)
    for value in (2.0, 3.0):
        thread = threading.Thread(target=fails_and_goes_on, args=(value,))
        thread.start()
        thread.join()
    thread = threading.Thread(target=lambda: found.append(_everything(4.0)))
    thread.start()
    thread.join()
    return [wanted, *found]


@pytest.mark.parametrize("ending", ENDINGS)
def test_after_an_exception_the_next_calls_are_made(ending: str) -> None:
    for wanted, *found in run_ranks(goes_on_after, 2, ending):
        expected: list[object] = []
        for value in (1.0, 2.0, 3.0, 4.0):
            if value != 4.0:
                expected += [wanted, [5.0]]
            expected.append([2 * value, 10 + value, value, 1 + value, 1.0])
        assert found == expected


def works_of_a_dropped_batch() -> list[str]:
    group = dist.group.WORLD
    assert group is not None
    works: list[dist.Work | None] = []
    try:
        with _coalescing_manager(group, CPU):
            works.append(dist.isend(filled(1), 1 - dist.get_rank()))
            works.append(dist.broadcast(filled(1), 0, async_op=True))
            dist.irecv(torch.ones(2).to_sparse(), 0)
    except NotImplementedError:
        pass
    told = []
    for work in works:
        assert work is not None and work.is_completed()
        try:
            work.wait()
        except dist.DistBackendError as error:
            told.append(str(error))
    _everything(1.0)
    return told


def test_the_works_of_a_dropped_batch_raise() -> None:
    for told in run_ranks(works_of_a_dropped_batch, 2):
        assert len(told) == 2 and all("none of their data was sent" in text for text in told), told
