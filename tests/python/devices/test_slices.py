"""What goes in pieces is copied in slices: some are on the network, or back, while others still arrive."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import accelerators
import pytest
import torch
import torch.distributed as dist
from calls import refusal
from torch.utils._python_dispatch import TorchDispatchMode
from torch_ucc._torch import all_gather_single, reduce_scatter_single
from torch_ucc.testing import run_ranks

pytestmark = [
    pytest.mark.multirank,
    pytest.mark.skipif(not accelerators.IS_FAKE, reason="a real accelerator holds no single copy up"),
]

BY_UCC = {"TORCH_UCC_HOST_PATH": "0"}  # through shared memory nothing goes in pieces
SMALL = {"TORCH_UCC_SEGMENT_BYTES": "4k", **BY_UCC}
SLICE = 1024  # elements of a piece of an all_reduce of float32
SLICES = 5
PART = (6 << 20) // 4 + 5  # elements of a rank's part that is large enough to be cut


def values(numel: int, rank: int) -> torch.Tensor:
    """Small whole numbers, of which sums are exact; no two ranks' alike."""
    return ((torch.arange(numel) * (rank + 2)) % 13).float()


def total(numel: int) -> torch.Tensor:
    return torch.stack([values(numel, rank) for rank in range(dist.get_world_size())]).sum(0)


def on_device(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(accelerators.device())


def wait_for_the_first(count: int, tensor: torch.Tensor, right: torch.Tensor) -> None:
    """Until so many elements have come back. The limit is that of the ranks."""
    while not torch.equal(tensor[:count].cpu(), right[:count]):
        time.sleep(0.001)


def each_slice_is_back_before_the_next_arrives() -> None:
    numel = SLICE * SLICES - 7
    before, after = values(numel, dist.get_rank()), total(numel)
    tensor = on_device(before)
    accelerators.let_arrive(1)
    work = dist.all_reduce(tensor, async_op=True)
    for end in range(SLICE, numel, SLICE):
        wait_for_the_first(end, tensor, after)
        assert torch.equal(tensor.cpu()[end:], before[end:])
        assert not work.is_completed()
        accelerators.let_arrive(1)
    work.wait()
    assert torch.equal(tensor.cpu(), after)


def meet(where: str = "") -> None:
    """Once in a world for each place: all ranks, over the store, whatever operations wait."""
    store = dist.distributed_c10d._get_default_store()
    store.set(f"test/met/{where}/{dist.get_rank()}", "1")
    store.wait([f"test/met/{where}/{rank}" for rank in range(dist.get_world_size())])


@dataclass
class Call:
    start: Callable[[], dist.Work | None]
    inputs: int  # copies to the host that a slice is
    outputs: list[torch.Tensor]
    right: list[torch.Tensor]  # what they hold in the end


def all_reduced() -> Call:
    tensor = on_device(values(PART, dist.get_rank()))
    return Call(lambda: dist.all_reduce(tensor, async_op=True), 1, [tensor], [total(PART)])


def reduced_to_a_root() -> Call:
    tensor = on_device(values(PART, dist.get_rank()))
    right = total(PART) if dist.get_rank() == 0 else values(PART, dist.get_rank())
    return Call(lambda: dist.reduce(tensor, 0, async_op=True), 1, [tensor], [right])


def own_part_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(dist.get_world_size(), -1)[dist.get_rank()]


def scattered() -> Call:
    ranks = dist.get_world_size()
    mine, output = on_device(values(PART * ranks, dist.get_rank())), on_device(torch.zeros(PART))
    return Call(
        lambda: reduce_scatter_single(output, mine, async_op=True),
        ranks,
        [output],
        [own_part_of(total(PART * ranks))],
    )


def scattered_in_place() -> Call:
    ranks = dist.get_world_size()
    mine = on_device(values(PART * ranks, dist.get_rank()))
    output = own_part_of(mine)
    right = values(PART * ranks, dist.get_rank())
    own_part_of(right).copy_(own_part_of(total(PART * ranks)))
    return Call(
        lambda: reduce_scatter_single(output, mine, async_op=True),
        ranks,
        [output, mine],
        [own_part_of(right), right],
    )


def scattered_from_a_list() -> Call:
    ranks = dist.get_world_size()
    mine = [on_device(part) for part in values(PART * ranks, dist.get_rank()).split(PART)]
    output = on_device(torch.zeros(PART))
    return Call(
        lambda: dist.reduce_scatter(output, mine, async_op=True),
        ranks,
        [output],
        [own_part_of(total(PART * ranks))],
    )


def gathered() -> Call:
    numel = 2 * PART  # a list of which there is less scratch memory than of a reduction
    mine = on_device(values(numel, dist.get_rank()))
    outputs = [on_device(torch.zeros(numel)) for _ in range(dist.get_world_size())]
    return Call(
        lambda: dist.all_gather(outputs, mine, async_op=True),
        1,
        outputs,
        [values(numel, rank) for rank in range(dist.get_world_size())],
    )


def gathered_into_a_tensor() -> Call:
    numel = 2 * PART
    mine = on_device(values(numel, dist.get_rank()))
    output = on_device(torch.zeros(numel * dist.get_world_size()))
    right = torch.cat([values(numel, rank) for rank in range(dist.get_world_size())])
    return Call(lambda: all_gather_single(output, mine, async_op=True), 1, [output], [right])


def broadcast_from_a_root() -> Call:
    tensor = on_device(values(PART, dist.get_rank()))
    inputs = 1 if dist.get_rank() == 0 else 0
    return Call(lambda: dist.broadcast(tensor, 0, async_op=True), inputs, [tensor], [values(PART, 0)])


CALLS = (
    all_reduced,
    reduced_to_a_root,
    scattered,
    scattered_in_place,
    scattered_from_a_list,
    gathered,
    gathered_into_a_tensor,
    broadcast_from_a_root,
)


def the_first_slice_is_back_before_the_others_arrive(build: Callable[[], Call]) -> None:
    call = build()
    before = [output.cpu() for output in call.outputs]
    accelerators.let_arrive(call.inputs)
    work = call.start()
    assert work is not None
    wait_for_the_first(SLICE, call.outputs[0], call.right[0])
    for output, old in zip(call.outputs, before, strict=True):
        assert torch.equal(output[-SLICE:].cpu(), old[-SLICE:])
    meet(build.__name__)  # a rank that has no inputs to hold needs what the others hold
    accelerators.let_arrive(None)
    work.wait()
    for output, right in zip(call.outputs, call.right, strict=True):
        assert torch.equal(output.cpu(), right)


def each_call() -> int:
    """How often freed memory was written to."""
    for build in CALLS:
        the_first_slice_is_back_before_the_others_arrive(build)
    return accelerators.memory_faults()


def a_part_of_what_is_read_is_written_behind_it() -> None:
    """The output is a part of the input, at no rank's place: what comes back must not be taken for input."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    mine = on_device(values(PART * ranks, rank))
    output = mine[SLICE + 3 : SLICE + 3 + PART]
    accelerators.let_arrive(ranks)
    work = reduce_scatter_single(output, mine, async_op=True)
    time.sleep(0.1)  # for the first slice to come back, if it could
    accelerators.let_arrive(None)
    work.wait()
    assert torch.equal(output.cpu(), own_part_of(total(PART * ranks)))


def the_ranks_need_not_have_devices() -> None:
    """Nor does what is called next overtake pieces that wait."""
    numel, rank = SLICE * SLICES, dist.get_rank()
    tensor = values(numel, rank) if rank == 0 else on_device(values(numel, rank))
    small = torch.full((3,), float(rank))
    accelerators.load()
    accelerators.let_arrive(1)
    works = [dist.all_reduce(tensor, async_op=True), dist.all_reduce(small, async_op=True)]
    wait_for_the_first(SLICE, tensor, total(numel))
    time.sleep(0.02)  # for the next call to go ahead, if it could
    assert not any(work.is_completed() for work in works)
    meet()  # what the other one lets arrive could end ours
    accelerators.let_arrive(None)
    for work in works:
        work.wait()
    assert torch.equal(tensor.cpu(), total(numel))
    assert small.tolist() == [1.0] * 3


@pytest.mark.parametrize(
    "check",
    [
        each_slice_is_back_before_the_next_arrives,
        the_ranks_need_not_have_devices,
        a_part_of_what_is_read_is_written_behind_it,
    ],
)
def test_slices_that_are_held_up(check: Callable[[], None]) -> None:
    run_ranks(check, 2, env=SMALL, timeout=60.0)


@pytest.mark.parametrize("size", [2, 3])
def test_each_operation_that_goes_in_pieces(size: int) -> None:
    assert run_ranks(each_call, size, timeout=120.0, env=BY_UCC) == [0] * size


class Recorded(TorchDispatchMode):
    """All calls of torch in this thread."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def copies_are_nobodys_calls() -> None:
    tensor = on_device(values(SLICE * SLICES, dist.get_rank()))
    with Recorded() as recorded:
        dist.all_reduce(tensor)
    assert tensor.cpu().equal(total(SLICE * SLICES))
    assert recorded.names and all(name.startswith("c10d.") for name in recorded.names), recorded.names


def test_copies_are_nobodys_calls() -> None:
    run_ranks(copies_are_nobodys_calls, 2, env=SMALL, timeout=60.0)


def a_rest_that_never_comes() -> str:
    tensor = on_device(values(SLICE * SLICES, dist.get_rank()))
    accelerators.let_arrive(1)
    raised = refusal(dist.all_reduce(tensor, async_op=True).wait)
    accelerators.let_arrive(None)
    assert raised is not None and raised[0] == "DistBackendError", raised
    return raised[1]


def test_a_rest_that_never_comes() -> None:
    device = f"{accelerators.TYPE}:0"
    said = run_ranks(a_rest_that_never_comes, 2, env=SMALL, group_timeout=1.0)
    what = f"still waited for the rest of its data to come from {device}, of which a part was sent"
    assert any(what in each for each in said), said


def interrupted_between_slices() -> list[float]:
    """Rank 0 is, with a slice on its way back, and uses its tensor for something else."""
    tensor, store = (
        on_device(values(SLICE * SLICES, dist.get_rank())),
        dist.distributed_c10d._get_default_store(),
    )
    if dist.get_rank() == 1:
        dist.all_reduce(tensor)
        store.set("interrupted", "over")
        assert torch.equal(tensor.cpu(), total(SLICE * SLICES))
        return []
    signal.signal(signal.SIGINT, signal.default_int_handler)
    accelerators.let_arrive(2)
    accelerators.set_longest_delay(200_000)
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        dist.all_reduce(tensor)
    except KeyboardInterrupt:
        tensor.fill_(100)
        accelerators.let_arrive(None)
        store.wait(["interrupted"])
    accelerators.set_longest_delay(100)
    torch.accelerator.synchronize(0)
    return tensor.cpu().unique().tolist()


def test_interrupted_between_slices() -> None:
    assert run_ranks(interrupted_between_slices, 2, env=SMALL)[0] == [100.0]


def a_device_that_fails_meanwhile() -> None:
    tensor = on_device(values(SLICE * SLICES, dist.get_rank()))
    accelerators.let_arrive(1)
    work = dist.all_reduce(tensor, async_op=True)
    wait_for_the_first(SLICE, tensor, total(SLICE * SLICES))
    accelerators.break_down()
    raised = refusal(work.wait)
    accelerators.let_arrive(None)
    assert raised is not None and "its device failed: the fake accelerator is broken" in raised[1], raised


def test_a_device_that_fails_meanwhile() -> None:
    run_ranks(a_device_that_fails_meanwhile, 2, env=SMALL)
