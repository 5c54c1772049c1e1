"""What waits for what: the call for its stream, streams for the Work, the CPU for neither."""

from __future__ import annotations

import datetime
import os
import random
import signal
import threading
import time
from collections.abc import Callable

import accelerators
import pytest
import torch
import torch.distributed as dist
from accelerators import MANY, held_up, needs_gates
from calls import refusal, usable
from torch_ucc._torch import reduce_scatter_single
from torch_ucc.testing import run_ranks

pytestmark = pytest.mark.multirank


def ones(numel: int = 4, index: int = 0) -> torch.Tensor:
    return torch.empty(numel, device=accelerators.device(index)).fill_(1)


def first_uses() -> None:
    """Of kernels and of memory: the driver of a real device may have them wait for all its streams, also for
    those that are held up."""
    works = []
    for _ in range(3):
        tensor = ones()
        torch.empty(4, device=tensor.device).copy_(tensor)
        works.append(dist.all_reduce(tensor.add_(1), async_op=True))
    for work in works:
        work.wait()
    assert tensor.cpu().tolist() == [4.0] * 4


def a_call_waits_for_its_stream() -> None:
    stream = accelerators.new_stream()
    with stream:
        with held_up(stream):
            tensor = ones()
            tensor.add_(dist.get_rank())
            work = dist.all_reduce(tensor, async_op=True)
            assert not work.is_completed()
        work.wait()
        assert tensor.cpu().tolist() == [3.0] * 4


def the_caller_does_not_wait_for_other_streams() -> None:
    """wait() has the current stream wait, and returns though that stream is far behind."""
    tensor = ones()
    stream = accelerators.new_stream()
    work = dist.all_reduce(tensor, async_op=True)
    with held_up(stream), stream:
        work.wait()
        result = torch.empty(4, device=tensor.device).copy_(tensor)
        assert not stream.query()
    stream.synchronize()
    assert result.cpu().tolist() == [2.0] * 4


def the_reader_waits_for_the_copies() -> None:
    """Copies to the device are late: who reads on a stream that did wait() gets the result all the same."""
    accelerators.set_longest_delay(20_000)
    for _ in range(20):
        tensor = ones(MANY)
        dist.all_reduce(tensor, async_op=True).wait()
        assert bool((tensor.cpu() == 2).all())
    accelerators.set_longest_delay(100)


def host_memory_is_used_anew_only_once_it_was_copied() -> None:
    """Calls on two streams, of which neither waits for the other's copies back."""
    accelerators.set_longest_delay(20_000)
    streams = [accelerators.new_stream(), accelerators.new_stream()]
    results = []
    for turn in range(20):
        with streams[turn % 2]:
            results.append(ones(MANY).mul_(turn))
            dist.all_reduce(results[-1])
    torch.accelerator.synchronize()
    assert [float(result.cpu()[0]) for result in results] == [2.0 * turn for turn in range(20)]
    accelerators.set_longest_delay(100)


def a_timeout_of_wait_has_the_result_there() -> None:
    accelerators.set_longest_delay(20_000)
    for _ in range(5):
        work = dist.all_reduce(ones(MANY), async_op=True)
        work.wait(datetime.timedelta(seconds=60))
        assert work.is_completed()
    accelerators.set_longest_delay(100)


def a_timeout_of_wait_passes() -> None:
    stream = accelerators.new_stream()
    with stream:
        with held_up(stream):
            tensor = ones()
            work = dist.all_reduce(tensor, async_op=True)
            raised = refusal(lambda: work.wait(datetime.timedelta(milliseconds=50)))
            assert raised is not None and "can be waited for again" in raised[1], raised
        work.wait()
        assert tensor.cpu().tolist() == [2.0] * 4


def _have_it_begin(stream: torch.Stream) -> None:
    """What was called last, if the machine leaves it the time: else less is shown, and nothing fails."""
    stream.synchronize()
    time.sleep(0.02)


def operations_begin_in_the_order_of_the_calls() -> None:
    """Also one on the host after one on a device that waits for its stream, on one rank only."""
    stream = accelerators.new_stream()
    on_host = torch.full((4,), 10.0)
    with stream:
        if dist.get_rank() == 0:
            with held_up(stream):
                tensor = ones()
                works = [dist.all_reduce(each, async_op=True) for each in (tensor, on_host)]
                time.sleep(0.05)  # for the other rank to go ahead, if it could
        else:
            tensor = ones()
            works = [dist.all_reduce(tensor, async_op=True)]
            _have_it_begin(stream)
            works.append(dist.all_reduce(on_host, async_op=True))
        for work in works:
            work.wait()
        assert (tensor.cpu().tolist(), on_host.tolist()) == ([2.0] * 4, [20.0] * 4)


def messages_keep_the_order_of_the_calls() -> None:
    stream = accelerators.new_stream()
    with stream:
        if dist.get_rank() == 0:
            with held_up(stream):
                works = [dist.isend(ones(), 1), dist.isend(torch.full((4,), 5.0), 1)]
                time.sleep(0.05)
        else:
            first, second = torch.empty(4, device=accelerators.device()), torch.zeros(4)
            works = [dist.irecv(first, 0)]
            _have_it_begin(stream)
            works.append(dist.irecv(second, 0))
        for work in works:
            work.wait()
        if dist.get_rank() == 1:
            assert (first.cpu().tolist(), second.tolist()) == ([1.0] * 4, [5.0] * 4)


def callbacks_of_a_future_see_the_result() -> None:
    accelerators.set_longest_delay(5_000)
    tensor = ones(MANY)
    work = dist.all_reduce(tensor, async_op=True)
    read = work.get_future().then(lambda future: future.value()[0].cpu())
    assert bool((read.wait() == 2).all())
    accelerators.set_longest_delay(100)


def a_barrier_of_a_device_comes_behind_its_stream() -> None:
    stream = accelerators.new_stream()
    with stream:
        gate = accelerators.Gate(stream)
        work = dist.barrier(async_op=True, device_ids=[0])
        time.sleep(0.02)
        assert not work.is_completed()
        gate.open()
        work.wait()


def devices_of_one_process() -> None:
    """Whatever the current device is; one call has tensors of one."""
    for index in (0, 1):
        tensor = ones(index=index)
        tensor.add_(dist.get_rank())
        dist.all_reduce(tensor)
        assert tensor.cpu().tolist() == [3.0] * 4
        assert torch.accelerator.current_device_index() == 0
    works = [dist.all_reduce(ones(MANY, index), async_op=True) for index in (0, 1, 0, 1)]
    for work in works:
        work.wait()
        assert bool((work.result()[0].cpu() == 2).all())
    group = dist.group.WORLD
    outputs = [ones(index=0), ones(index=1)]
    raised = refusal(lambda: dist.all_gather(outputs, ones(), group=group))
    assert raised is not None and raised[0] == "ValueError" and "on the same device" in raised[1], raised
    raised = refusal(lambda: dist.all_gather([torch.ones(4), torch.ones(4)], ones()))
    assert raised is not None and raised[0] == "ValueError" and "on the same device" in raised[1], raised
    assert usable()


def what_is_wrong_is_refused() -> None:
    expanded = ones(1).expand(4)
    raised = refusal(lambda: dist.all_reduce(expanded))
    assert raised is not None and raised[0] == "ValueError" and "expanded" in raised[1], raised
    raised = refusal(lambda: dist.all_reduce(ones(), op=dist.ReduceOp.BAND))
    assert raised is not None and raised[0] == "NotImplementedError", raised
    assert usable()


def sparse(value: float) -> torch.Tensor:
    return torch.sparse_coo_tensor([[0, 5]], [value, value], (9,)).to(accelerators.device())


def a_sparse_result_is_no_matter_of_other_streams() -> None:
    """It ends on rank 0 while nobody waits for it, in a thread whose own stream is held up."""
    stream, default = accelerators.new_stream(), torch.accelerator.current_stream()
    reduced_sparse(1.0)
    with stream:
        tensor = sparse(3.0)
        time.sleep(0.1 * dist.get_rank())
        with held_up(default):
            work = dist.all_reduce(tensor, async_op=True)
            time.sleep(0.2)
            work.wait()
            assert tensor.cpu().to_dense().tolist() == [6.0, *[0.0] * 4, 6.0, *[0.0] * 3]


def reduced_sparse(value: float) -> torch.Tensor:
    tensor = sparse(value)
    dist.all_reduce(tensor)
    return tensor


def a_sparse_result_stays_there_for_its_readers() -> None:
    """Also where they are late: the next result, of the same size, goes elsewhere."""
    stream = accelerators.new_stream()
    reduced_sparse(1.0)
    with stream:
        read = torch.empty(2, device=accelerators.device())
        tensor = reduced_sparse(2.0)
        gate = accelerators.Gate(stream)
        read.copy_(tensor._values())
        del tensor
    threading.Timer(0.3, gate.open).start()
    later = reduced_sparse(7.0)
    stream.synchronize()
    assert (read.cpu().tolist(), later.cpu().to_dense().tolist()) == (
        [4.0, 4.0],
        [14.0, *[0.0] * 4, 14.0, *[0.0] * 3],
    )


def an_operation_follows_a_result_that_is_on_its_way() -> None:
    """The first has ended, as far as the network goes, and nobody has waited for it."""
    accelerators.set_longest_delay(20_000)
    chance = random.Random(dist.get_rank())
    for _ in range(30):
        tensor = ones(1000)
        torch.accelerator.synchronize(0)
        dist.all_reduce(tensor, async_op=True)
        time.sleep(0.03 * chance.random())
        dist.all_reduce(tensor, async_op=True).wait()
        assert bool((tensor.cpu() == 4).all())
    accelerators.set_longest_delay(100)


def who_is_interrupted_has_sent_what_comes() -> None:
    """Rank 0 is, while its stream still computes what is sent, and then uses its tensor otherwise."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    rank, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
    for number, call in enumerate(INTERRUPTED):
        stream = accelerators.new_stream()
        with stream:
            tensor, other = ones(2000), ones(2000).fill_(-1)
            stream.synchronize()
            gate = accelerators.Gate(stream)
            tensor.add_(rank)
            if rank == 1:
                gate.open()
                call(tensor, other)
                store.set(f"interrupted/{number}", "over")
                assert other.cpu().unique().tolist() == ([1.0, 2.0] if call is exchanged else [3.0]), call
                continue
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            try:
                call(tensor, other)
            except KeyboardInterrupt:
                pass
            else:
                raise AssertionError("it was not interrupted")
            tensor.fill_(100)
            gate.open()
            store.wait([f"interrupted/{number}"])
            stream.synchronize()
            assert tensor.cpu().unique().tolist() == [100.0]
            assert other.cpu().unique().tolist() == [-1.0]
    assert usable()


def exchanged(tensor: torch.Tensor, other: torch.Tensor) -> None:
    dist.all_to_all_single(other, tensor)


def summed(tensor: torch.Tensor, other: torch.Tensor) -> None:
    reduce_scatter_single(other[:1000], tensor)
    other[1000:].fill_(3)


def summed_halves(tensor: torch.Tensor, other: torch.Tensor) -> None:
    halves = tensor.to(torch.bfloat16)
    dist.all_reduce(halves)
    other.copy_(halves)


INTERRUPTED = (exchanged, summed, summed_halves)

OF_ANY = (
    an_operation_follows_a_result_that_is_on_its_way,
    the_reader_waits_for_the_copies,
    host_memory_is_used_anew_only_once_it_was_copied,
    a_timeout_of_wait_has_the_result_there,
    callbacks_of_a_future_see_the_result,
    what_is_wrong_is_refused,
)
HELD_UP = (
    a_call_waits_for_its_stream,
    the_caller_does_not_wait_for_other_streams,
    a_timeout_of_wait_passes,
    operations_begin_in_the_order_of_the_calls,
    messages_keep_the_order_of_the_calls,
    a_sparse_result_stays_there_for_its_readers,
    a_sparse_result_is_no_matter_of_other_streams,
    a_barrier_of_a_device_comes_behind_its_stream,
)


@pytest.mark.parametrize("piece", ["1m", "1k"])
@pytest.mark.parametrize("backend", ["ucc", "cpu:ucc,{}:ucc"])
def test_streams(backend: str, piece: str) -> None:
    env = {"TORCH_UCC_SEGMENT_BYTES": piece}
    run_ranks(each_of_any, 2, backend=backend.format(accelerators.TYPE), timeout=120.0, env=env)


def each_of_any() -> None:
    for check in OF_ANY:
        check()
    assert accelerators.memory_faults() == 0


def with_streams_held_up(check: Callable[[], None]) -> None:
    accelerators.load()
    first_uses()
    check()


@needs_gates
@pytest.mark.parametrize("check", [*HELD_UP, who_is_interrupted_has_sent_what_comes])
def test_streams_that_are_held_up(check: Callable[[], None]) -> None:
    run_ranks(with_streams_held_up, 2, check, timeout=60.0)


@pytest.mark.skipif(accelerators.count() < 2, reason="needs two devices")
def test_devices_of_one_process() -> None:
    run_ranks(devices_of_one_process, 2, timeout=60.0)


TELLS_OF_CAPTURES = torch.__version__ >= (2, 12)


def a_capture() -> str:
    """Torch 2.12 and later tell of one: then the call is refused, and all goes on. Else the device refuses
    what an operation needs, and the group has failed."""
    stream = accelerators.new_stream()
    ended = "as it should"
    with stream:
        first_uses()
        tensor = ones()
        try:
            with accelerators.capturing(stream):
                raised = refusal(lambda: dist.all_reduce(tensor))
        except RuntimeError as error:
            ended = str(error)
        assert raised is not None, "a capture went unnoticed"
        if TELLS_OF_CAPTURES:
            assert raised[0] == "NotImplementedError" and "graph" in raised[1], raised
            assert ended == "as it should"
            dist.all_reduce(tensor)
            assert tensor.cpu().tolist() == [2.0] * 4
    assert ones().add_(1).cpu().tolist() == [2.0] * 4
    return f"all_reduce raised {raised[0]}: {raised[1]}; the capture ended: {ended}"


@pytest.mark.skipif(
    accelerators.TYPE != "cuda" and not TELLS_OF_CAPTURES,
    reason="there is neither a capture nor who tells of one",
)
def test_a_capture(capsys: pytest.CaptureFixture[str]) -> None:
    found = run_ranks(a_capture, 2, timeout=90.0, group_timeout=20.0)
    with capsys.disabled():
        print(f"\nIn a capture, torch {torch.__version__}: {found[0]}")


def behind_a_stream_that_never_goes_on() -> None:
    """The timeout says what was waited for, and leaves the device as it was, also for when it goes on."""
    first_uses()
    stream = accelerators.new_stream()
    device = accelerators.device()
    with stream:
        gate = accelerators.Gate(stream)
        work = dist.all_reduce(ones(), async_op=True)
        raised = refusal(work.wait)
    assert raised is not None and raised[0] == "DistBackendError", raised
    assert f"still waited for what was queued on its stream of {device}, and none of its data" in raised[1], (
        raised
    )
    assert ones().add_(1).cpu().tolist() == [2.0] * 4
    gate.open()
    stream.synchronize()
    with stream:
        assert ones().add_(1).cpu().tolist() == [2.0] * 4


@needs_gates
def test_behind_a_stream_that_never_goes_on() -> None:
    run_ranks(behind_a_stream_that_never_goes_on, 2, group_timeout=1.0)
