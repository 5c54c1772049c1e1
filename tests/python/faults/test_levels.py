"""Collectives of groups that span hosts with several ranks: on each host in memory, and between hosts by UCC.

A run with TORCH_UCC_LEVELS_FROM=1 takes this way at every size, and one with 4g at none.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch_ucc
from deaths import failure, note, wait_for
from torch_ucc._torch import all_gather_single, reduce_scatter_single
from torch_ucc.testing.hosts import Hosts, hosts
from torch_ucc.topology.routes import BY_LEVELS, BY_UCC

pytestmark = pytest.mark.multirank

ALWAYS = {"TORCH_UCC_LEVELS_FROM": "1", "TORCH_UCC_SEGMENT_BYTES": "4096"}
"""Pieces of 8 KB, so that small tensors have several. Each is too short for several rows."""
NEVER = {**ALWAYS, "TORCH_UCC_LEVELS_FROM": "4g"}

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]
DTYPES += [torch.complex64, torch.float8_e4m3fn]
OPS = [dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX]
OPS += [dist.ReduceOp.BOR]
COUNTS = [1, 2, 15, 17, 2048, 2049, 30000]


def drawn(count: int, dtype: torch.dtype, rank: int) -> torch.Tensor:
    """Small integers, of which sums are exact in every dtype and in any order."""
    torch.manual_seed(100 * count + rank)
    return torch.randint(0, 3, (count,)).to(dtype)


def reduced(groups: Sequence[Sequence[int]]) -> list[Any]:
    found = []
    for ranks in groups:
        group = dist.new_group(list(ranks))
        if dist.get_rank() not in ranks:
            continue
        for dtype in DTYPES:
            for op in OPS:
                for count in COUNTS:
                    tensor = drawn(count, dtype, dist.get_rank())
                    try:
                        dist.all_reduce(tensor, op, group=group)
                    except (NotImplementedError, ValueError):
                        continue
                    expected = torch.stack([drawn(count, dtype, rank).to(torch.complex128) for rank in ranks])
                    found.append((str(dtype), str(op), count, tensor.view(torch.uint8).tolist()[:100]))
                    if op == dist.ReduceOp.SUM and dtype != torch.bool:
                        assert torch.equal(tensor.to(torch.complex128), expected.sum(0)), found[-1]
                    if op == dist.ReduceOp.MAX and dtype not in (torch.bool, torch.complex64):
                        assert torch.equal(tensor.to(torch.float64), expected.real.max(0).values), found[-1]
    return found


def moved(groups: Sequence[Sequence[int]], counts: Sequence[int]) -> list[Any]:
    """The other collectives, checked against what each rank can compute by itself."""
    found = []
    for ranks in groups:
        group = dist.new_group(list(ranks))
        if dist.get_rank() not in ranks:
            continue
        for dtype in (torch.float32, torch.bfloat16, torch.uint8, torch.complex64):
            for count in counts:
                found += moved_once(group, list(ranks), dtype, count)
    return found


def moved_once(group: dist.ProcessGroup, ranks: list[int], dtype: torch.dtype, count: int) -> list[Any]:
    me, size = dist.get_rank(group), len(ranks)
    all_data = [drawn(count, dtype, rank) for rank in ranks]
    whole = torch.cat(all_data)
    total = (
        torch.stack([drawn(count * size, dtype, rank).to(torch.complex128) for rank in ranks])
        .sum(0)
        .to(dtype)
    )
    part = total[me * count : (me + 1) * count]

    def check(what: str, got: torch.Tensor, expected: torch.Tensor) -> None:
        assert torch.equal(got.cpu(), expected), (what, dtype, count, ranks, got, expected)

    for root in range(size):
        tensor = all_data[me].clone()
        dist.broadcast(tensor, group=group, group_src=root)
        check("broadcast", tensor, all_data[root])
        strided = torch.stack([all_data[me], all_data[me]], 1)[:, 0]
        dist.broadcast(strided, group=group, group_src=root)
        check("broadcast of a view", strided, all_data[root])
        tensor = all_data[me].clone()
        dist.reduce(tensor, group=group, group_dst=root)
        summed = torch.stack([each.to(torch.complex128) for each in all_data]).sum(0).to(dtype)
        check("reduce", tensor, summed if me == root else all_data[me])
    gathered = torch.empty(size * count, dtype=dtype)
    all_gather_single(gathered, all_data[me].clone(), group=group)
    check("all_gather_into_tensor", gathered, whole)
    gathered.zero_()
    gathered[me * count : (me + 1) * count] = all_data[me]
    all_gather_single(gathered, gathered[me * count : (me + 1) * count], group=group)
    check("all_gather_into_tensor in place", gathered, whole)
    parts = [torch.empty(count, dtype=dtype) for _ in ranks]
    dist.all_gather(parts, all_data[me].clone(), group=group)
    check("all_gather", torch.cat(parts), whole)
    uneven = [torch.empty(count + rank, dtype=dtype) for rank in range(size)]
    dist.all_gather(uneven, drawn(count + me, dtype, me), group=group)
    check(
        "all_gather of uneven parts",
        torch.cat(uneven),
        torch.cat([drawn(count + i, dtype, i) for i in range(size)]),
    )
    given = drawn(count * size, dtype, dist.get_rank())
    result = torch.empty(count, dtype=dtype)
    reduce_scatter_single(result, given.clone(), group=group)
    check("reduce_scatter_tensor", result, part)
    dist.reduce_scatter(result.zero_(), [each.clone() for each in given.chunk(size)], group=group)
    check("reduce_scatter", result, part)
    reduce_scatter_single(given[me * count : (me + 1) * count], given, group=group)
    check("reduce_scatter_tensor in place", given[me * count : (me + 1) * count], part)
    average = torch.empty(count, dtype=dtype)
    if dtype != torch.uint8:
        reduce_scatter_single(
            average, drawn(count * size, dtype, ranks[me]) * size, dist.ReduceOp.AVG, group=group
        )
        torch.testing.assert_close(average, part)
    dist.barrier(group=group)
    return [whole.view(torch.uint8).tolist()[:100]]


PLACES = {
    "two by two": ((2, 2), [[0, 1, 2, 3], [0, 2, 3], [3, 1, 0, 2]]),
    "one and three": ((1, 3), [[0, 1, 2, 3], [1, 2, 3], [0, 3]]),
    "three and two": ((3, 2), [[0, 1, 2, 3, 4]]),
}


@pytest.mark.parametrize("place", PLACES)
def test_results_are_those_of_one_level(pair: Hosts, place: str) -> None:
    per_host, groups = PLACES[place]
    in_levels = pair.run(reduced, groups, per_host=per_host, env=ALWAYS, timeout=300)
    assert in_levels == pair.run(reduced, groups, per_host=per_host, env=NEVER, timeout=300)
    assert all(found for found in in_levels)


@pytest.mark.parametrize("place", PLACES)
def test_every_collective(pair: Hosts, place: str) -> None:
    per_host, groups = PLACES[place]
    assert all(pair.run(moved, groups, COUNTS, per_host=per_host, env=ALWAYS, timeout=300))


@pytest.mark.parametrize("place", PLACES)
def test_every_collective_through_all_rows(pair: Hosts, place: str) -> None:
    per_host, groups = PLACES[place]
    assert all(pair.run(moved, groups[:1], [200_000, 700_001], per_host=per_host, timeout=300))


def test_three_hosts() -> None:
    with hosts(3) as three:
        assert three.run(reduced, [list(range(6))], per_host=2, env=ALWAYS, timeout=300)
        assert three.run(moved, [list(range(6)), [1, 2, 4, 5]], COUNTS, per_host=2, env=ALWAYS, timeout=300)
        assert three.run(moved, [list(range(6))], [200_000], per_host=2, timeout=300)
        for env in (ALWAYS, {}):
            ranks = three.run(bits, per_host=2, env=env)
            assert all(each == ranks[0] for each in ranks)


def overlapping() -> list[list[float]]:
    """Calls of one batch whose tensors share memory read before and write after all others."""
    found = []
    for count in (100, 30000):
        for dtype in (torch.float32, torch.bfloat16):
            whole = torch.arange(count).remainder(7).to(dtype) + dist.get_rank()
            parts = [whole[: count // 2 + 10], whole[count // 2 - 10 :], whole[::2]]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch calls it deprecated
                dist.all_reduce_coalesced(parts)
            found.append(whole.float().tolist())
    return found


def test_calls_that_share_memory(pair: Hosts) -> None:
    in_levels = pair.run(overlapping, per_host=2, env=ALWAYS)
    assert in_levels == pair.run(overlapping, per_host=2, env=NEVER)


def interrupted() -> list[float]:
    """Rank 0 is interrupted in an all_reduce that rank 3 joins late; the others get its data all the same."""

    class NowError(Exception):
        pass

    def raise_now(*_: object) -> None:
        raise NowError

    store = dist.distributed_c10d._get_default_store()
    tensor = torch.full((100000,), dist.get_rank() + 1.0)
    dist.all_reduce(torch.ones(1))
    if dist.get_rank() == 3:
        store.wait(["test/interrupted"])
    if dist.get_rank() == 0:
        signal.signal(signal.SIGALRM, raise_now)
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        with pytest.raises(NowError):
            dist.all_reduce(tensor)
        tensor.fill_(7)
        store.set("test/interrupted", "1")
    else:
        dist.all_reduce(tensor)
    dist.barrier()
    return [float(tensor.min()), float(tensor.max())]


def test_a_caller_that_is_interrupted_leaves_its_data(pair: Hosts) -> None:
    assert pair.run(interrupted, per_host=2, env=ALWAYS) == [[7.0, 7.0]] + [[10.0, 10.0]] * 3


def many_at_once() -> None:
    """Operations of one group, large and small, in levels and not, that all ranks have in flight at once."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for turn in range(15):
        works, checks = [], []
        for i in range(8):
            count = [10, 3000, 200000][(turn + i) % 3]
            total = torch.full((count,), float(rank + i))
            works.append(dist.all_reduce(total, async_op=True))
            checks.append((total, size * i + size * (size - 1) / 2))
            sent = torch.full((count,), float(rank + i)) if rank == i % size else torch.empty(count)
            works.append(dist.broadcast(sent, i % size, async_op=True))
            checks.append((sent, float(i % size + i)))
            all_ranks = torch.empty(count * size)
            works.append(all_gather_single(all_ranks, torch.full((count,), float(i)), async_op=True))
            checks.append((all_ranks, float(i)))
            part = torch.empty(count)
            works.append(reduce_scatter_single(part, torch.full((count * size,), float(i)), async_op=True))
            checks.append((part, float(i * size)))
            works.append(dist.barrier(async_op=True))
        for work in works:
            work.wait()
        for tensor, value in checks:
            assert bool((tensor == value).all()), (turn, tensor, value)


def test_operations_keep_their_order(pair: Hosts) -> None:
    for threshold in ("1", "20k"):
        pair.run(many_at_once, per_host=2, env={**ALWAYS, "TORCH_UCC_LEVELS_FROM": threshold}, timeout=300)


def ways_taken() -> tuple[str, str, dict[str, int]]:
    for size in (1000, (32 << 10) - 4, 32 << 10, 320 << 10):
        dist.all_reduce(torch.ones(size // 4))
        dist.broadcast(torch.ones(size // 4), 0)
        part = torch.empty(size // dist.get_world_size(), dtype=torch.uint8)
        all_gather_single(torch.empty(size, dtype=torch.uint8), part)
    paths = {path: each["calls"] for path, each in torch_ucc.stats()["paths"].items()}
    about = torch_ucc.describe()["operations"]
    assert len({about[op] for op in ("all_reduce", "broadcast", "reduce", "barrier")}) == 1
    return about["all_reduce"], about["all_gather"], paths


def test_the_size_decides(pair: Hosts) -> None:
    larger = {"TORCH_UCC_LEVELS_FROM": "32k"}
    for in_rows, evenly, paths in pair.run(ways_taken, per_host=2, env=larger):
        assert in_rows == evenly == BY_LEVELS and paths["levels"] == 6, paths
    for in_rows, evenly, paths in pair.run(ways_taken, per_host=(1, 3), env=larger):
        assert in_rows == BY_LEVELS and evenly == BY_UCC and paths["levels"] == 4, paths
    for *_, paths in pair.run(ways_taken, per_host=2):
        assert paths == {"levels": 12}, paths
    off = {"TORCH_UCC_HOST_PATH": "0"}
    for in_rows, evenly, paths in pair.run(ways_taken, per_host=1) + pair.run(
        ways_taken, per_host=2, env=off
    ):
        assert in_rows == evenly == BY_UCC and "levels" not in paths, paths


def bits() -> list[list[int]]:
    torch.manual_seed(dist.get_rank())
    found = []
    for dtype in (torch.bfloat16, torch.float32):
        for count in (3, 500, 1000, 20000):
            tensor = torch.randn(count, dtype=dtype)
            again = tensor.clone()
            dist.all_reduce(tensor)
            dist.all_reduce(again)
            assert torch.equal(tensor.view(torch.uint8), again.view(torch.uint8))
            found.append(tensor.view(torch.uint8).tolist())
    return found


def test_ranks_have_the_same_bits(pair: Hosts) -> None:
    ranks = pair.run(bits, per_host=(3, 2), env=ALWAYS)
    assert all(each == ranks[0] for each in ranks)


def calls(op: str, numel: int) -> tuple[torch.Tensor, Callable[[], object]]:
    """A call, with the memory that it writes."""
    size = dist.get_world_size()
    tensor, whole = torch.ones(numel), torch.ones(numel // size * size)
    part = torch.ones(numel // size)
    return {
        "all_reduce": (tensor, lambda: dist.all_reduce(tensor)),
        "all_gather": (whole, lambda: all_gather_single(whole, part)),
        "reduce_scatter": (part, lambda: reduce_scatter_single(part, whole)),
    }[op]


def dies(folder: str, dying: int, op: str, numel: int) -> None:
    tensor, call = calls(op, numel)
    call()
    if dist.get_rank() == dying:
        time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    kind, error, _ = failure(call)
    while kind == "nothing":
        kind, error, _ = failure(call)
    tensor.fill_(7)
    time.sleep(0.2)
    late = not bool((tensor == 7).all())
    note(folder, [error, time.monotonic() - began, late])
    os._exit(0)


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter"])
@pytest.mark.parametrize("numel", [1000, 1 << 20])
@pytest.mark.parametrize("dying", [0, 3])
def test_a_rank_that_dies_fails_the_others(
    pair: Hosts, tmp_path: Path, dying: int, op: str, numel: int
) -> None:
    """In less than the timeout of a minute, with an error that names the rank, and without late data."""
    notes = {rank: tmp_path / str(rank) for rank in range(4) if rank != dying}
    with pair.started(dies, str(tmp_path), dying, op, numel, per_host=2, env=ALWAYS):
        wait_for(*notes.values())
    for rank, path in notes.items():
        error, took, late = json.loads(path.read_text())
        assert f"rank {dying}" in error and took < 30 and not late, (rank, error, took, late)


def dies_amid_calls(folder: str, dying: int, seconds: float) -> None:
    """Every call that succeeds must have the right result, also the last one before the failure."""
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.barrier()
    if rank == dying:
        threading.Timer(seconds, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    wrong, calls = [], 0
    error = ""
    while not error:
        numel = [16, 5000, 100_000, 600_000][calls % 4]
        tensor = torch.full((numel,), float(calls % 50 + rank))
        kind, error, _ = failure(lambda tensor=tensor: dist.all_reduce(tensor))  # type: ignore[misc]
        right = float(size * (calls % 50) + sum(range(size)))
        if kind == "nothing" and not bool((tensor == right).all()):
            wrong.append((calls, numel, tensor.unique().tolist()[:5]))
        calls += 1
    note(folder, [error, calls, wrong])
    os._exit(0)


@pytest.mark.parametrize("dying", [2, 3])
@pytest.mark.parametrize("seconds", [0.1, 0.15, 0.22])
def test_a_rank_that_dies_amid_calls_leaves_no_wrong_result(
    pair: Hosts, tmp_path: Path, dying: int, seconds: float
) -> None:
    """Also not on the ranks that have the data of the other host from a rank of their own."""
    notes = {rank: tmp_path / str(rank) for rank in range(4) if rank != dying}
    with pair.started(dies_amid_calls, str(tmp_path), dying, seconds, per_host=2, env=ALWAYS):
        wait_for(*notes.values())
    for rank, path in notes.items():
        error, calls, wrong = json.loads(path.read_text())
        assert f"rank {dying}" in error and calls > 1 and not wrong, (rank, error, calls, wrong)


def times_out(op: str) -> tuple[str, bool]:
    if dist.get_rank() == 3:
        time.sleep(4)
        return "", False
    tensor, call = calls(op, 100000)
    _, error, _ = failure(call)
    tensor.fill_(7)
    time.sleep(0.2)
    return error, not bool((tensor == 7).all())


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter"])
def test_a_rank_that_does_not_come_is_a_timeout(pair: Hosts, op: str) -> None:
    soon = {**ALWAYS, "TORCH_UCC_CLOSE_TIMEOUT": "500ms"}
    for rank, (error, late) in enumerate(
        pair.run(times_out, op, per_host=2, env=soon, group_timeout=1.5)[:3]
    ):
        assert op in error and not late, (rank, error)


def mismatched() -> str:
    """Rank 1 broadcasts while the others reduce."""
    tensor = torch.ones(1000)
    rank = dist.get_rank()
    store = dist.distributed_c10d._get_default_store()
    store.set(f"test/ready/{rank}", "1")  # nobody leaves before all have the group
    store.wait([f"test/ready/{each}" for each in range(dist.get_world_size())])
    return failure(lambda: dist.broadcast(tensor, 0) if rank == 1 else dist.all_reduce(tensor))[1]


def test_ranks_of_one_host_notice_that_they_call_something_else(pair: Hosts) -> None:
    soon = {"TORCH_UCC_CLOSE_TIMEOUT": "500ms"}
    errors = pair.run(mismatched, per_host=2, env=soon, group_timeout=3)
    assert "rank 1 called another collective: a part of broadcast" in errors[0], errors
    assert "rank 0 called another collective: a part of all_reduce" in errors[1], errors
    assert errors[2] and errors[3], "they get nothing from the other host"
