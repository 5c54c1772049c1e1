"""Collectives in the memory of devices: right data, in the order of the streams, on all ranks or on none."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable
from typing import Any

import accelerators
import pytest
import test_programs
import test_staged_operations as operations
import test_streams
import test_training
import torch
import torch.distributed as dist
import torch_ucc
from accelerators import needs_gates, only_fake, started
from calls import Report, assert_all_well, refusal, usable
from torch_ucc._native import device_memory
from torch_ucc._torch import all_gather_single
from torch_ucc.testing import run_ranks

pytestmark = pytest.mark.multirank

NATIVE = {"TORCH_UCC_DEVICE_COLLECTIVES": "native"}


def natively(check: Callable[..., Any], *args: Any) -> Any:
    found = started(check, *args)
    assert torch_ucc.stats()["paths"]["native"]["calls"] > 0
    return found


@pytest.fixture(scope="module", params=accelerators.RANKS, ids="{} ranks".format)
def reports(request: pytest.FixtureRequest) -> list[dict[str, tuple[Report, int]]]:
    return run_ranks(natively, request.param, operations.try_each, init=False, timeout=300.0, env=NATIVE)


@pytest.mark.parametrize("way", [way.__name__ for way in operations.WAYS])
def test_every_operation(reports: list[dict[str, tuple[Report, int]]], way: str) -> None:
    assert_all_well([report[way][0] for report in reports], at_least=len(operations.STAGED))
    assert [report[way][1] for report in reports] == [0] * len(reports), "freed memory was written to"


@pytest.mark.parametrize("size", accelerators.RANKS)
def test_random_programs(size: int) -> None:
    seeds = [size * 2000 + number for number in range(8)]
    found = run_ranks(natively, size, test_programs.run_all, seeds, init=False, timeout=240.0, env=NATIVE)
    assert found == [0] * size


def test_streams_of_any() -> None:
    run_ranks(natively, 2, test_streams.each_of_any, init=False, timeout=120.0, env=NATIVE)


@needs_gates
@pytest.mark.parametrize("check", test_streams.HELD_UP)
def test_streams_that_are_held_up(check: Callable[[], None]) -> None:
    held_up = test_streams.with_streams_held_up
    run_ranks(natively, 2, held_up, check, init=False, timeout=60.0, env=NATIVE)


def through_copies() -> None:
    """What is loaded before, and stored after the network was there, is on the streams that it belongs to."""
    accelerators.set_longest_delay(20_000)
    numel, rank, ranks = accelerators.MANY, dist.get_rank(), dist.get_world_size()
    for turn in range(10):
        halves = torch.full((numel,), 3.0, dtype=torch.float16).to(accelerators.device())
        whole = torch.full((numel,), -8, dtype=torch.int32).to(accelerators.device())
        slanted = test_streams.ones(2 * numel).view(numel, 2).t()
        works = [
            dist.all_reduce(halves.mul_(turn), async_op=True),
            dist.all_reduce(whole.add_(rank - turn), op=dist.ReduceOp.AVG, async_op=True),
            dist.all_reduce(slanted.mul_(turn), async_op=True),
        ]
        for work in works:
            work.wait()
        mean = int((-8 - turn) + sum(range(ranks)) / ranks)  # towards zero
        assert bool((halves.cpu() == 3.0 * turn * ranks).all())
        assert bool((whole.cpu() == mean).all())
        assert bool((slanted.cpu() == turn * ranks).all())
    accelerators.set_longest_delay(100)
    assert torch_ucc.stats()["paths"]["native"]["calls"] == 30
    assert accelerators.memory_faults() == 0


def test_what_is_reduced_through_a_copy() -> None:
    run_ranks(natively, 2, through_copies, init=False, timeout=90.0, env=NATIVE)


def dropped_while_they_are_stored() -> None:
    """Results that the caller has let go of, on their way from UCC's memory to tensors with gaps."""
    accelerators.set_longest_delay(5_000)
    for _ in range(10):
        halves = torch.zeros(1000, dtype=torch.float16, device=accelerators.device())
        gaps = [torch.zeros(1000, 2, device=accelerators.device())[:, 0] for _ in range(4)]
        parts = [torch.zeros_like(gaps[0]) for _ in range(dist.get_world_size())]
        dist.all_reduce(halves, async_op=True)
        dist.all_reduce(gaps[0], op=dist.ReduceOp.AVG, async_op=True)
        dist.broadcast(gaps[1], src=0, async_op=True)
        dist.all_gather(parts, gaps[2], async_op=True)
        all_gather_single(torch.zeros(2000, 2, device=accelerators.device())[:, 0], gaps[3], async_op=True)
        del halves, gaps, parts
        for _ in range(100):  # in memory that was freed meanwhile
            time.sleep(0.001)
            torch.empty(1, device=accelerators.device())
    dist.barrier()
    accelerators.set_longest_delay(100)
    assert accelerators.memory_faults() == 0


def test_memory_that_results_are_stored_in_is_kept() -> None:
    run_ranks(natively, 2, dropped_while_they_are_stored, init=False, timeout=90.0, env=NATIVE)


def memory_twice() -> None:
    tensor = torch.ones(1000, device=accelerators.device())
    for tensors in ([tensor, tensor], [tensor[:600], tensor[400:]]):
        raised = refusal(lambda tensors=tensors: dist.all_reduce_coalesced(tensors))  # type: ignore[misc]
        assert raised is not None and raised[0] == "ValueError" and "share memory" in raised[1], raised
    dist.all_reduce(tensor)
    assert tensor.cpu().unique().tolist() == [2.0]


def test_the_same_memory_twice_in_one_call_is_refused() -> None:
    run_ranks(natively, 2, memory_twice, init=False, env=NATIVE)


def by_both_ways() -> None:
    """By dtype and reduce op: what UCC or torch cannot do there goes by way of the host."""
    for dtype, op, way in (
        (torch.float32, dist.ReduceOp.SUM, "native"),
        (torch.float32, dist.ReduceOp.MAX, "memory"),
        (torch.int64, dist.ReduceOp.MAX, "native"),
        (torch.float16, dist.ReduceOp.AVG, "native"),
        (torch.uint64, dist.ReduceOp.AVG, "memory"),
    ):
        before = torch_ucc.stats()["paths"].get(way, {"calls": 0})["calls"]
        tensor = torch.full((6,), 4).to(dtype).to(accelerators.device())
        dist.all_reduce(tensor, op=op)
        right = 8 if op == dist.ReduceOp.SUM else 4
        assert tensor.cpu().to(torch.float64).tolist() == [right] * 6, (dtype, op)
        assert torch_ucc.stats()["paths"][way]["calls"] == before + 1, (dtype, op)
    dist.all_to_all_single(torch.empty_like(tensor), tensor)
    assert torch_ucc.stats()["paths"]["memory"]["calls"] == 3


def test_which_way_a_collective_goes() -> None:
    run_ranks(natively, 2, by_both_ways, init=False, env=NATIVE)


@pytest.mark.parametrize("train", [test_training.replicated, test_training.sharded])
def test_training_natively(train: Callable[[str], test_training.Weights]) -> None:
    train_it = test_training.difference
    found = run_ranks(natively, 2, train_it, train, init=False, timeout=180.0, env=NATIVE)
    assert max(found) < 1e-5, found


def on_device_1() -> None:
    """Where UCC was started, while device 0 is the current one of this thread. On another none is native."""
    accelerators.show_to_ucx()
    torch.accelerator.set_device_index(1)
    started(torch.accelerator.set_device_index, 0)
    tensor = test_streams.ones(index=1)
    dist.all_reduce(tensor)
    assert tensor.cpu().tolist() == [2.0] * 4
    assert torch.accelerator.current_device_index() == 0
    if accelerators.IS_FAKE:
        assert accelerators.posted(0) == 0 < accelerators.posted(1)
    raised = refusal(lambda: dist.all_reduce(test_streams.ones(index=0)))
    assert raised is not None and raised[0] == "ValueError", raised
    assert f"must be on {tensor.device}" in raised[1] and "before init_process_group()" in raised[1], raised
    assert usable()


@pytest.mark.skipif(accelerators.count() < 2, reason="needs two devices")
def test_the_device_is_current_where_ucc_is_called() -> None:
    run_ranks(on_device_1, 2, init=False, env=NATIVE)


def by_way_of_the_host(ucc_name: str | None, but_rank: int | None) -> None:
    if int(os.environ["RANK"]) != but_rank:
        accelerators.load()
    if ucc_name is not None:
        device_memory.OF_DEVICES[accelerators.TYPE] = ucc_name
    dist.init_process_group("ucc", timeout=datetime.timedelta(seconds=60))
    for index in (0, 0, 1):
        tensor = test_streams.ones(index=index)
        dist.all_reduce(tensor)
        assert tensor.cpu().tolist() == [2.0] * 4


@only_fake
@pytest.mark.parametrize(
    ("ucc_name", "but_rank", "why"),
    [
        ("cuda", None, "this UCC does not support the memory type 'cuda'"),
        (None, None, "does not know the memory type of UCC for such a device"),
        ("host", 1, "UCC on another rank does not support the memory of such a device"),
    ],
    ids=["not this UCC", "not known", "not on all ranks"],
)
def test_memory_that_ucc_does_not_compute_in_goes_by_way_of_the_host(
    ucc_name: str | None, but_rank: int | None, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The host cannot follow an address of the fake one: UCC would crash. Each rank warns once."""
    run_ranks(by_way_of_the_host, 2, ucc_name, but_rank, init=False, env=NATIVE)
    told = [line for line in capsys.readouterr().out.splitlines() if "DEVICE_COLLECTIVES=native" in line]
    whys = [why, why if but_rank is None else "PyTorch had no such device when the first group was created"]
    assert len(told) == 2 and all(any(each in line for line in told) for each in whys), told


def start() -> str:
    try:
        started(lambda: None)
    except Exception as error:
        return str(error)
    return ""


def test_what_only_some_ranks_ask_for_is_refused() -> None:
    for said in run_ranks(start, 2, init=False, rank_env=[NATIVE, {}]):
        assert "device_collectives" in said and "native" in said and "staged" in said, said


def on_the_host_of_one_rank() -> None:
    tensor = test_streams.ones() if dist.get_rank() == 0 else torch.ones(4)
    raised = refusal(lambda: dist.all_reduce(tensor))
    assert raised is not None and "do not make the same call" in raised[1], raised
    assert "rank 0 calls all_reduce seq 1 float32[4] SUM in memory of a device" in raised[1], raised
    assert usable()


def test_the_cross_check_compares_where_the_tensors_are() -> None:
    env = {**NATIVE, "TORCH_UCC_CROSS_CHECK": "1"}
    run_ranks(started, 2, on_the_host_of_one_rank, init=False, env=env)
