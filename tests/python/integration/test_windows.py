"""torch's windows, of torch 2.14 and later: one-sided puts, signals, and mapped tensors of other ranks.

Most tests run twice: with tensors that other ranks can map, and with others, to which `put` sends messages.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch_ucc._torch import HAS_2_14
from torch_ucc.testing import RankError, run_ranks

pytestmark = [
    pytest.mark.multirank,
    pytest.mark.skipif(not HAS_2_14, reason="torch before 2.14 has no windows"),
]

CPU = torch.device("cpu")
KINDS = pytest.mark.parametrize("mapped", [True, False], ids=["mapped", "messages"])


def zeros(mapped: bool, numel: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    if not mapped:
        return torch.zeros(numel, dtype=dtype)
    backend = dist.group.WORLD._get_backend(CPU)
    return backend.allocate_tensor(numel, dtype=dtype, device=CPU).zero_()


def refusal(call: Callable[[], object]) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"


def rings(mapped: bool) -> None:
    """Puts to the next rank, of many sizes and types, sync and async; two in flight before the signals."""
    rank, size = dist.get_rank(), dist.get_world_size()
    following, former = (rank + 1) % size, (rank - 1) % size
    for dtype in (torch.float32, torch.int8, torch.bfloat16, torch.float64):
        for numel in (0, 1, 1000, 300_000):
            window = dist._new_window(zeros(mapped, size * numel + 3, dtype))
            for turn in range(3):
                sent = torch.full((numel,), rank + turn * size).to(dtype)
                for asynchronous in (False, True):
                    work = window.put(sent, following, rank * numel + 3, asynchronous)
                    assert (work is None) != asynchronous
                    if work is not None:
                        work.wait()
                sent.fill_(-1)  # it may be changed at once
                window.wait_signal(former, False)
                work = window.wait_signal(former, True)
                work.wait()
                assert work.is_completed()
                mine = window.map_remote_tensor(rank)
                part = mine[former * numel + 3 : (former + 1) * numel + 3]
                assert torch.equal(part, torch.full((numel,), former + turn * size).to(dtype))
                dist.barrier()
            window.tensor_deregister()


@KINDS
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_puts_around_a_ring(mapped: bool, world_size: int) -> None:
    run_ranks(rings, world_size, mapped)


@KINDS
def test_puts_by_ucx(mapped: bool) -> None:
    run_ranks(rings, 2, mapped, env={"TORCH_UCC_HOST_PATH": "0"})


def nothing_to_put() -> None:
    """A tensor without elements, and another one in its place: a signal of the former does not count."""
    other = 1 - dist.get_rank()
    window = dist._new_window(zeros(True, 0))
    window.signal(other, False)
    window.wait_signal(other, False)
    window.put(torch.ones(0), other, 0, False)
    window.signal(other, False)
    window.tensor_deregister()
    tensor = zeros(False, 4)
    window.tensor_register(tensor)
    window.put(torch.ones(4), other, 0, False)
    window.wait_signal(other, False)
    assert tensor.tolist() == [1.0] * 4
    window.put(torch.full((4,), 2.0), other, 0, False)  # nobody waits for it
    window.tensor_deregister()
    tensor = zeros(False, 4)
    window.tensor_register(tensor)
    window.put(torch.full((4,), 3.0), other, 0, False)
    window.wait_signal(other, False)
    assert tensor.tolist() == [3.0] * 4
    window.tensor_deregister()


def test_what_nobody_waited_for_is_dropped_with_its_tensor() -> None:
    run_ranks(nothing_to_put, 2)


def reused() -> tuple[float, float]:
    """Memory that a peer may still have mapped does not become another tensor; other memory does."""
    backend = dist.group.WORLD._get_backend(CPU)
    sums = []
    for shown in (True, False):
        tensor = zeros(True, 1000).fill_(7)
        window = dist._new_window(tensor if shown else torch.zeros(1))
        del window, tensor
        sums.append(float(backend.allocate_tensor(1000, dtype=torch.float32, device=CPU).sum()))
    return sums[0], sums[1]


def test_memory_that_was_shown_is_not_used_again() -> None:
    assert run_ranks(reused, 2) == [(0.0, 7000.0)] * 2


def mapped_ones() -> None:
    """Loads and stores in the tensor of another rank, which keeps its own shape and type."""
    rank = dist.get_rank()
    tensor = zeros(True, 12, torch.int64 if rank else torch.float32)
    window = dist._new_window(tensor.view(3, 4) if rank else tensor)
    there = window.map_remote_tensor(1 - rank)
    assert there.shape == ((12,) if rank else (3, 4)) and there.dtype == (
        torch.float32 if rank else torch.int64
    )
    there.fill_(rank + 5)
    window.signal(1 - rank, False)
    window.wait_signal(1 - rank, False)
    assert (tensor == 1 - rank + 5).all()
    assert window.get_attr(1 - rank).access_type == torch._C._distributed_c10d.WindowAccessType.UNIFIED
    window.tensor_deregister()


def test_a_mapped_tensor_is_that_of_the_other_rank() -> None:
    run_ranks(mapped_ones, 2)


def not_mapped() -> tuple[str, str]:
    window = dist._new_window(torch.zeros(4))
    attr = window.get_attr(1 - dist.get_rank())
    return str(attr.access_type), refusal(lambda: window.map_remote_tensor(1 - dist.get_rank()))


def test_a_tensor_of_the_callers_own_is_not_mapped() -> None:
    for access, text in run_ranks(not_mapped, 2):
        assert access.endswith("SEPARATE")
        assert (
            text.startswith("NotImplementedError: map_remote_tensor of rank") and "cannot be mapped" in text
        )


def wrong_calls(mapped: bool) -> dict[str, str]:
    other = 1 - dist.get_rank()
    tensor = zeros(mapped, 16)
    window = dist._new_window()
    texts = {
        "before": refusal(lambda: window.put(tensor, other, 0, False)),
        "signal before": refusal(lambda: window.signal(other, False)),
        "deregister before": refusal(lambda: window.tensor_deregister()),
        "strided": refusal(lambda: window.tensor_register(torch.zeros(8)[::2])),
    }
    window.tensor_register(tensor)
    calls: dict[str, Callable[[], Any]] = {
        "twice": lambda: window.tensor_register(tensor),
        "too long": lambda: window.put(torch.ones(9), other, 8, False),
        "too far": lambda: window.put(torch.ones(1), other, 2**62, False),
        "negative": lambda: window.put(torch.ones(1), other, -1, False),
        "another type": lambda: window.put(torch.ones(1, dtype=torch.int32), other, 0, False),
        "no such rank": lambda: window.put(torch.ones(1), 2, 0, False),
        "a device": lambda: window.put(torch.ones(1, device="meta"), other, 0, False),
    }
    for name, call in calls.items():
        texts[name] = refusal(call)
    window.put(torch.ones(8), other, 8, False)
    window.wait_signal(other, False)
    assert tensor.tolist() == [0.0] * 8 + [1.0] * 8
    window.tensor_deregister()
    return texts


@KINDS
def test_what_is_refused(mapped: bool) -> None:
    for texts in run_ranks(wrong_calls, 2, mapped):
        for name, words in (
            ("before", "is not registered"),
            ("signal before", "is not registered"),
            ("deregister before", "no tensor is registered"),
            ("strided", "contiguous"),
            ("twice", "double registration"),
            ("too long", "9 elements from 8 on exceeds the window size there, 16"),
            ("too far", "exceeds the window size"),
            ("negative", "nonnegative"),
            ("another type", "does not match"),
            ("no such rank", "rank 2 is not a rank"),
            ("a device", "on the CPU"),
        ):
            assert texts[name].startswith("ValueError: ") and words in texts[name], (name, texts[name])


def timeouts() -> str:
    """A signal that never comes ends the window, and nothing else."""
    other = 1 - dist.get_rank()
    window = dist._new_window(torch.zeros(4))
    options = torch._C._distributed_c10d.WaitSignalOptions()
    options.timeout = timedelta(seconds=1)
    text = refusal(lambda: window.wait_signal(other, False, options))
    assert refusal(lambda: window.signal(other, False)).startswith("DistBackendError")
    with pytest.raises(dist.DistBackendError):
        window.wait_signal(other, True)
    dist.all_reduce(torch.ones(3))
    another = dist._new_window(torch.zeros(4))
    another.put(torch.ones(1), other, 0, False)
    another.wait_signal(other, False)
    return text


def test_a_signal_that_does_not_come() -> None:
    for text in run_ranks(timeouts, 2, env={"TORCH_UCC_CLOSE_TIMEOUT": "500ms"}):
        assert text.startswith("DistBackendError: ") and "timed out" in text


def ends_badly(asks_first: bool) -> list[str]:
    """An asynchronous wait that fails says so each time, and however it is asked."""
    window = dist._new_window(torch.zeros(4))
    options = torch._C._distributed_c10d.WaitSignalOptions()
    options.timeout = timedelta(milliseconds=300)
    work = window.wait_signal(1 - dist.get_rank(), True, options)
    limit = time.monotonic() + 30
    while asks_first and not work.is_completed() and time.monotonic() < limit:
        time.sleep(0.01)
    texts = [refusal(work.wait) for _ in range(2)]
    assert work.is_completed() and not work.is_success() and work.exception() is not None
    return texts


@pytest.mark.parametrize("asks_first", [False, True])
def test_a_failed_wait_stays_failed(asks_first: bool) -> None:
    for texts in run_ranks(ends_badly, 2, asks_first, env={"TORCH_UCC_CLOSE_TIMEOUT": "500ms"}):
        assert all("timed out" in text for text in texts), texts


def a_death(folder: str) -> None:
    window = dist._new_window(zeros(True, 4))
    dist.barrier()
    if dist.get_rank() == 1:
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)
    text = refusal(lambda: window.wait_signal(1, False))
    there = window.map_remote_tensor(1)  # what is mapped stays
    Path(folder, "0").write_text(text + str(there.sum().item()))


def test_a_rank_that_dies(tmp_path: Path) -> None:
    with pytest.raises(RankError) as caught:
        run_ranks(a_death, 2, str(tmp_path), grace=60.0)
    assert set(caught.value.errors) == {1}
    assert "rank 1 (host" in (tmp_path / "0").read_text()


def freed() -> int:
    """Windows that are dropped and tensors that are freed leave nothing: descriptors stay as they were."""
    counts = []
    for _ in range(30):
        tensor = zeros(True, 1 << 20)
        window = dist._new_window(tensor)
        window.put(torch.ones(5), 1 - dist.get_rank(), 0, False)
        window.wait_signal(1 - dist.get_rank(), False)
        window.tensor_deregister()
        del window, tensor
        counts.append(len(list(Path("/proc/self/fd").iterdir())))
    dist.barrier()
    return max(counts) - counts[2]


def test_nothing_is_left_of_windows() -> None:
    assert run_ranks(freed, 2) == [0, 0]


def allocated() -> None:
    """Memory of freed tensors is used again, and a tensor may outlive its group."""
    backend = dist.group.WORLD._get_backend(CPU)
    assert backend.supports_tensor_alloc(CPU)
    first = backend.allocate_tensor(1000, dtype=torch.float64, device=CPU)
    address = first.data_ptr()
    assert first.shape == (1000,) and address % 64 == 0
    kept = first[10:20]
    del first
    second = backend.allocate_tensor(1000, dtype=torch.float64, device=CPU)
    assert second.data_ptr() != address  # a view holds the first
    del kept
    third = backend.allocate_tensor(1000, dtype=torch.float64, device=CPU)
    assert third.data_ptr() == address
    dist.destroy_process_group()
    assert float(second.fill_(1).sum()) == 1000


def sharded() -> tuple[float, float]:
    """The gradients of a step of FSDP2 whose buffers come from the group, and of one whose buffers do not."""
    sums = []
    for own in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
        for layer in (model[0], model[2], model):
            fully_shard(layer)
        if own:
            for layer in (model[0], model[2], model):
                layer.set_allocate_memory_from_process_group_for_comm(True)
        model(torch.ones(4, 64)).square().sum().backward()
        sums.append(sum(float(each.grad.to_local().sum()) for each in model.parameters()))
    return sums[0], sums[1]


def test_fsdp_takes_its_buffers_from_the_group() -> None:
    for plain, own in run_ranks(sharded, 2):
        assert plain == own != 0


def test_tensors_in_memory_that_others_can_map() -> None:
    run_ranks(allocated, 2)
