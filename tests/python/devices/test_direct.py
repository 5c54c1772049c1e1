"""Messages from and to the memory of devices: right data, in the order of the streams, whatever way the other
side goes."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable

import accelerators
import pytest
import torch
import torch.distributed as dist
from accelerators import held_up, needs_gates, only_fake, started
from calls import refusal, usable
from torch_ucc._native import device_memory
from torch_ucc.testing import run_ranks

pytestmark = pytest.mark.multirank

WAYS = [("direct", "direct"), ("direct", "staged"), ("staged", "direct")]
NUMELS = (0, 1, 1000, 70_000, 1 << 20)
"""By the ways in which UCX sends them, to a rendezvous."""


def values(numel: int, salt: int) -> torch.Tensor:
    return ((torch.arange(numel) * (salt + 2)) % 251).to(torch.int32)


def on_device(tensor: torch.Tensor, index: int = 0) -> torch.Tensor:
    return tensor.to(accelerators.device(index))


def blank(numel: int, index: int = 0) -> torch.Tensor:
    return torch.empty(numel, dtype=torch.int32, device=accelerators.device(index)).fill_(-1)


def each_way(works: list[dist.Work | None]) -> None:
    for work in works:
        assert work is not None
        work.wait()


def one_after_the_other() -> None:
    """To and fro, from a known rank and from any."""
    rank = dist.get_rank()
    for numel in NUMELS:
        for source in (1 - rank, None):
            got = blank(numel)
            if rank == 0:
                dist.send(on_device(values(numel, 1)), 1)
                assert dist.recv(got, source) == 1
            else:
                assert dist.recv(got, source) == 0
                dist.send(on_device(values(numel, 0)), 0)
            assert torch.equal(got.cpu(), values(numel, rank)), (numel, source)


def in_a_batch() -> None:
    """Both directions, of all sizes, with a message on the host and one that is not contiguous among them."""
    peer = 1 - dist.get_rank()
    sent = [on_device(values(numel, peer)) for numel in NUMELS] + [values(10, peer)]
    got = [blank(numel) for numel in NUMELS] + [torch.zeros(10, dtype=torch.int32)]
    sent.append(on_device(values(600, peer)).view(20, 30).t())
    got.append(blank(600).view(20, 30).t())
    pairs = list(zip(sent, got, strict=True))
    calls = [dist.P2POp(dist.isend, each, peer, tag=tag) for tag, (each, _) in enumerate(pairs)]
    calls += [dist.P2POp(dist.irecv, each, peer, tag=tag) for tag, (_, each) in enumerate(pairs)]
    each_way(dist.batch_isend_irecv(calls))
    for tensor in got:
        right = values(tensor.numel(), 1 - peer)
        assert torch.equal(tensor.cpu(), right.view(20, 30).t() if tensor.dim() == 2 else right), tensor.shape


def in_flight_and_dropped() -> None:
    """Nobody keeps what is sent, nor the Work, and its memory is wanted by others; on two streams."""
    rank = dist.get_rank()
    streams = [accelerators.new_stream(), accelerators.new_stream()]
    got, works, noise = [], [], []
    for turn in range(40):
        with streams[turn % 2]:
            numel = NUMELS[1 + turn % 3]
            if rank == 0:
                dist.isend(on_device(values(numel, turn)), 1, tag=turn)
                noise.append(blank(numel))
                del noise[:-4]
            else:
                got.append(blank(numel))
                works.append(dist.irecv(got[-1], 0, tag=turn))
    each_way(works)
    dist.barrier()
    for turn, tensor in enumerate(got):
        assert torch.equal(tensor.cpu(), values(tensor.numel(), turn)), turn


def nobody_keeps_what_is_received() -> None:
    """Not even the Work: who has that memory next is not written to."""
    noise = []
    for turn in range(20):
        if dist.get_rank() == 0:
            dist.isend(on_device(values(1000, turn)), 1, tag=turn)
        else:
            dist.irecv(blank(1000), 0, tag=turn)
            noise.append(torch.empty(1000, dtype=torch.int32, device=accelerators.device()).fill_(7))
    dist.barrier()
    assert all(bool((tensor.cpu() == 7).all()) for tensor in noise)


def of_another_size() -> None:
    if dist.get_rank() == 0:
        dist.send(on_device(values(1000, 0)), 1)
        dist.send(on_device(values(10, 0)), 1)
    else:
        for numel in (10, 1000):
            tensor = blank(numel)
            raised = refusal(lambda tensor=tensor: dist.recv(tensor, 0))
            assert raised is not None and raised[0] == "ValueError" and "this rank expects" in raised[1], (
                raised
            )
    assert usable()


CHECKS = (
    one_after_the_other,
    in_a_batch,
    in_flight_and_dropped,
    nobody_keeps_what_is_received,
    of_another_size,
)


def all_checks() -> tuple[int, int]:
    accelerators.set_longest_delay(500)
    for check in CHECKS:
        check()
    return accelerators.posted() if accelerators.IS_FAKE else 0, accelerators.memory_faults()


def run(check: Callable[[], object], ways: tuple[str, str], timeout: float = 90.0) -> list[object]:
    rank_env = [{"TORCH_UCC_DEVICE_P2P": way} for way in ways]
    return run_ranks(started, 2, check, init=False, rank_env=rank_env, timeout=timeout)


@pytest.mark.parametrize("ways", WAYS, ids="{0[0]} and {0[1]}".format)
def test_messages(ways: tuple[str, str]) -> None:
    found = run(all_checks, ways)
    for way, (posted, faults) in zip(ways, found, strict=True):  # type: ignore[misc]
        assert faults == 0, "freed memory was written to"
        if accelerators.IS_FAKE:
            assert (posted > 0) == (way == "direct"), posted


ALLOCATORS = ("",) if accelerators.IS_FAKE else ("", "expandable_segments:True", "backend:cudaMallocAsync")


def memory_from_before() -> None:
    """Which nobody could tell UCX of when it came to be."""
    accelerators.show_to_ucx()
    rank = int(os.environ["RANK"])
    sent, got = on_device(values(1 << 20, rank)), blank(1 << 20)
    dist.init_process_group("ucc", timeout=datetime.timedelta(seconds=60))
    each_way([dist.isend(sent, 1 - rank), dist.irecv(got, 1 - rank)])
    assert torch.equal(got.cpu(), values(1 << 20, 1 - rank))


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_memory_that_was_there_before_ucx(allocator: str) -> None:
    told = {"TORCH_UCC_DEVICE_P2P": "direct"}
    if allocator:
        told["PYTORCH_CUDA_ALLOC_CONF"] = allocator
    run_ranks(memory_from_before, 2, init=False, rank_env=[told, told], timeout=90.0)


def a_send_waits_for_its_stream() -> None:
    stream = accelerators.new_stream()
    tensor, got = blank(4), blank(4)
    torch.accelerator.synchronize()
    if dist.get_rank() == 1:
        dist.recv(got, 0)
        assert got.cpu().tolist() == [3] * 4
        return
    with stream:
        with held_up(stream):
            tensor.add_(4)
            work = dist.isend(tensor, 1)
            assert work is not None
            time.sleep(0.2)
            assert not work.is_completed()
        work.wait()


def a_receive_waits_for_earlier_readers() -> None:
    stream = accelerators.new_stream()
    tensor, read = blank(4), blank(4)
    torch.accelerator.synchronize()
    if dist.get_rank() == 0:
        dist.send(on_device(values(4, 0)), 1)
        return
    with stream:
        with held_up(stream):
            read.copy_(tensor)
            work = dist.irecv(tensor, 0)
            assert work is not None
            time.sleep(0.2)
            assert not work.is_completed()
        work.wait()
        assert (read.cpu().tolist(), tensor.cpu().tolist()) == ([-1] * 4, values(4, 0).tolist())


def later_work_of_another_stream_does_not_hold_it_up() -> None:
    other = accelerators.new_stream()
    peer = 1 - dist.get_rank()
    sent, got = on_device(values(4, 0)), blank(4)
    with held_up(other):
        each_way([dist.isend(sent, peer), dist.irecv(got, peer)])
        assert got.cpu().tolist() == values(4, 0).tolist()


def what_is_not_contiguous_is_no_matter_of_other_streams() -> None:
    """It ends while nobody waits for it, in a thread whose own stream is held up."""
    stream, default = accelerators.new_stream(), torch.accelerator.current_stream()
    if dist.get_rank() == 0:
        dist.send(on_device(values(600, 0)), 1)
        return
    with stream:
        tensor = blank(600).view(20, 30).t()
        with held_up(default):
            work = dist.irecv(tensor, 0)
            assert work is not None
            time.sleep(0.2)
            work.wait()
            assert torch.equal(tensor.cpu(), values(600, 0).view(30, 20))


HELD_UP = (
    a_send_waits_for_its_stream,
    a_receive_waits_for_earlier_readers,
    later_work_of_another_stream_does_not_hold_it_up,
    what_is_not_contiguous_is_no_matter_of_other_streams,
)


def with_first_uses(check: Callable[[], None]) -> None:
    """The driver of a real device may have them wait for all its streams."""
    started(one_after_the_other)
    blank(4).add_(4)
    check()


@needs_gates
@pytest.mark.parametrize("check", HELD_UP)
def test_the_order_of_streams(check: Callable[[], None]) -> None:
    env = {"TORCH_UCC_DEVICE_P2P": "direct"}
    run_ranks(with_first_uses, 2, check, init=False, env=env, timeout=60.0)


def what_ucx_is_called_on() -> None:
    """With device 1, while device 0 is the current one of this thread, and of that which drives in the
    background."""
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 0:
        store.wait(["test/counted"], datetime.timedelta(seconds=60))
        dist.send(on_device(values(4, 0)), 1)
        time.sleep(0.1)
        dist.send(torch.ones(1), 1)
        return
    tensor = blank(4, index=1)
    torch.accelerator.synchronize(1)
    work = dist.irecv(tensor, 0)
    assert work is not None
    time.sleep(0.1)
    in_background = accelerators.driven(1)
    refusal(lambda: work.wait(datetime.timedelta(milliseconds=50)))
    assert torch.accelerator.current_device_index() == 0
    assert [accelerators.posted(index) for index in (0, 1)] == [0, 1]
    assert 0 < in_background < accelerators.driven(1)
    assert accelerators.driven(0) == 0
    store.set("test/counted", "1")
    work.wait()
    assert tensor.cpu().tolist() == values(4, 0).tolist()
    before = accelerators.driven(1)
    dist.recv(torch.empty(1), 0)  # nothing of a device is under way any more
    assert accelerators.driven(1) == before
    assert accelerators.driven(0) > 0


@only_fake
def test_the_device_is_current_where_ucx_is_called() -> None:
    run(what_ucx_is_called_on, ("direct", "direct"), timeout=60.0)


def by_way_of_the_host(ucx_name: str | None) -> None:
    accelerators.load()
    if ucx_name is not None:
        device_memory.OF_DEVICES[accelerators.TYPE] = ucx_name
    dist.init_process_group("ucc")
    one_after_the_other()
    in_a_batch()


@only_fake
@pytest.mark.parametrize(
    ("ucx_name", "why"),
    [("cuda", "does not support the memory type 'cuda'"), (None, "does not know the memory type of UCX")],
)
def test_memory_that_ucx_does_not_take_goes_by_way_of_the_host(
    ucx_name: str | None, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The host cannot follow an address of the fake one: UCX would crash. Each rank warns once."""
    env = {"TORCH_UCC_DEVICE_P2P": "direct"}
    run_ranks(by_way_of_the_host, 2, ucx_name, init=False, env=env, timeout=60.0)
    told = [line for line in capsys.readouterr().out.splitlines() if "TORCH_UCC_DEVICE_P2P=direct" in line]
    assert len(told) == 2 and all(why in line and accelerators.device() in line for line in told), told
