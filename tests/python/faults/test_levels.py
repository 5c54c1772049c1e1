"""All_reduce of groups that span hosts with several ranks: on each host first, then between them.

A run with TORCH_UCC_LEVELS_FROM=1 takes this way at every size, and one with 4g at none.
"""

from __future__ import annotations

import json
import os
import signal
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch_ucc
from deaths import failure, note, wait_for
from torch_ucc.testing.hosts import Hosts, hosts
from torch_ucc.topology.routes import BY_LEVELS, BY_UCC

pytestmark = pytest.mark.multirank

ALWAYS = {"TORCH_UCC_LEVELS_FROM": "1", "TORCH_UCC_SEGMENT_BYTES": "4096"}
"""Pieces of 8 KB, so that small tensors have several."""
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


def test_three_hosts() -> None:
    with hosts(3) as three:
        assert three.run(reduced, [list(range(6))], per_host=2, env=ALWAYS, timeout=300)


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
        for work in works:
            work.wait()
        for tensor, value in checks:
            assert bool((tensor == value).all()), (turn, tensor, value)


def test_operations_keep_their_order(pair: Hosts) -> None:
    for threshold in ("1", "20k"):
        pair.run(many_at_once, per_host=2, env={**ALWAYS, "TORCH_UCC_LEVELS_FROM": threshold}, timeout=300)


def ways_taken() -> tuple[str, dict[str, int]]:
    for count in (1000, 8191, 8192, 100000):
        dist.all_reduce(torch.ones(count))
    about = torch_ucc.describe()["operations"]["all_reduce"]
    return about, {path: each["calls"] for path, each in torch_ucc.stats()["paths"].items()}


def test_the_size_decides(pair: Hosts) -> None:
    for about, paths in pair.run(ways_taken, per_host=2):
        assert about == BY_LEVELS and paths["levels"] == 2, (about, paths)
    for about, paths in pair.run(ways_taken, per_host=1) + pair.run(
        ways_taken, per_host=2, env={"TORCH_UCC_HOST_PATH": "0"}
    ):
        assert about == BY_UCC and "levels" not in paths, (about, paths)


def bits(count: int) -> list[int]:
    torch.manual_seed(dist.get_rank())
    tensor = torch.randn(count, dtype=torch.bfloat16)
    again = tensor.clone()
    dist.all_reduce(tensor)
    dist.all_reduce(again)
    assert torch.equal(tensor.view(torch.int16), again.view(torch.int16))
    return tensor.view(torch.int16).tolist()


def test_ranks_have_the_same_bits(pair: Hosts) -> None:
    ranks = pair.run(bits, 20000, per_host=(3, 2), env=ALWAYS)
    assert all(each == ranks[0] for each in ranks)


def dies(folder: str, dying: int, numel: int) -> None:
    dist.all_reduce(torch.ones(numel))
    tensor = torch.ones(numel)
    if dist.get_rank() == dying:
        time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    kind, error, _ = failure(lambda: dist.all_reduce(tensor))
    while kind == "nothing":
        kind, error, _ = failure(lambda: dist.all_reduce(tensor))
    tensor.fill_(7)
    time.sleep(0.2)
    late = not bool((tensor == 7).all())
    note(folder, [error, time.monotonic() - began, late])
    os._exit(0)


@pytest.mark.parametrize("numel", [1000, 1 << 20])
@pytest.mark.parametrize("dying", [0, 3])
def test_a_rank_that_dies_fails_the_others(pair: Hosts, tmp_path: Path, dying: int, numel: int) -> None:
    """In less than the timeout of a minute, with an error that names the rank, and without late data."""
    notes = {rank: tmp_path / str(rank) for rank in range(4) if rank != dying}
    with pair.started(dies, str(tmp_path), dying, numel, per_host=2, env=ALWAYS):
        wait_for(*notes.values())
    for rank, path in notes.items():
        error, took, late = json.loads(path.read_text())
        assert f"rank {dying}" in error and took < 30 and not late, (rank, error, took, late)


def times_out() -> tuple[str, bool]:
    if dist.get_rank() == 3:
        time.sleep(4)
        return "", False
    tensor = torch.ones(100000)
    _, error, _ = failure(lambda: dist.all_reduce(tensor))
    tensor.fill_(7)
    time.sleep(0.2)
    return error, not bool((tensor == 7).all())


def test_a_rank_that_does_not_come_is_a_timeout(pair: Hosts) -> None:
    soon = {**ALWAYS, "TORCH_UCC_CLOSE_TIMEOUT": "500ms"}
    for rank, (error, late) in enumerate(pair.run(times_out, per_host=2, env=soon, group_timeout=1.5)[:3]):
        assert "all_reduce" in error and not late, (rank, error)
