"""`torch-ucc record`, `replay`, `trace compare` and `trace chakra` over real runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch_ucc
from torch_ucc._torch import all_gather_single, reduce_scatter_single
from torch_ucc.testing import run_ranks
from torch_ucc.tracing import chakra, compare, records, replay
from torch_ucc.tracing.calls import steps

pytestmark = pytest.mark.multirank


def everything() -> None:
    """Each operation at least once, some asynchronous, and a group of some ranks."""
    rank, size = dist.get_rank(), dist.get_world_size()
    pair = dist.new_group([0, 1])
    data, parts = torch.ones(64), [torch.ones(64) for _ in range(size)]
    work = dist.all_reduce(data, async_op=True)
    other = torch.ones(1 << 16, dtype=torch.bfloat16)
    dist.broadcast(other, size - 1)
    assert work is not None
    work.wait()
    dist.reduce(data, 1)
    dist.all_gather(parts, data)
    all_gather_single(torch.empty(64 * size), data)
    reduce_scatter_single(torch.empty(64), torch.ones(64 * size))
    dist.reduce_scatter(data, parts, dist.ReduceOp.MAX)
    dist.all_to_all(parts, [torch.ones(64) for _ in range(size)])
    dist.all_to_all_single(torch.empty(64 * size), torch.ones(64 * size))
    dist.gather(data, parts if rank == 1 else None, 1)
    dist.scatter(data, parts if rank == 0 else None, 0)
    dist.barrier()
    if rank == 0:
        dist.send(data, 1, tag=7)
    if rank == 1:
        dist.recv(data, 0, tag=7)
        dist.all_reduce(data, group=pair)
    if rank == 0:
        dist.all_reduce(data, group=pair)
    if rank == size - 1 and size > 2:
        dist.send(data, 0)
    if rank == 0 and size > 2:
        dist.recv(data)
    dist.destroy_process_group(pair)


def traced(path: Path) -> None:
    with torch_ucc.trace(path):
        everything()


def replayed(path: Path) -> tuple[list[tuple[str, int, int]], str]:
    dumps = records.load(path)
    used, total = replay.replay(dumps, 2, gaps=False)
    assert total > 0
    assert all(len(use.now_ns) == 2 for use in used)
    return sorted((use.op, use.bytes, use.calls) for use in used), replay.report(used, total, dumps[0])


def called(dump: records.Dump) -> list[tuple[str, int]]:
    return sorted((each.op, each.bytes) for each in dump.records if each.route != "none")


def test_a_replay_calls_what_was_recorded(tmp_path: Path) -> None:
    run_ranks(traced, 3, tmp_path / "first")
    recorded = records.load(tmp_path / "first")
    told = run_ranks(replayed, 3, tmp_path / "first")
    for rank, (uses, report) in enumerate(told):
        assert sorted((op, size) for op, size, count in uses for _ in range(count)) == called(recorded[rank])
        assert "in the replay" in report
    assert {op for op, _, _ in told[0][0]} >= {
        "all_reduce",
        "all_to_all_single",
        "send",
        "recv_any_source",
        "scatter",
    }


def test_a_replay_waits_where_the_program_waited(tmp_path: Path) -> None:
    run_ranks(traced, 2, tmp_path)
    for dump in records.load(tmp_path):
        order = [(step.record.op, step.waits) for step in steps(dump)]
        first = [each for each in order if each[0] in ("all_reduce", "broadcast")][:3]
        # The broadcast was called before anybody waited for the all_reduce
        assert first[0] == ("all_reduce", False)
        assert first[1] == ("broadcast", False) or first[1] == ("all_reduce", True)
        ids = [step.record.id for step in steps(dump) if not step.waits]
        assert ids == sorted(ids)


def test_a_replay_needs_as_many_ranks(tmp_path: Path) -> None:
    run_ranks(traced, 2, tmp_path)
    env = {**os.environ, "RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    command = [sys.executable, "-m", "torch_ucc", "replay", str(tmp_path)]
    told = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert told.returncode == 2
    assert "was recorded with 2 ranks, but this replay has 1. Start it with 2 ranks." in told.stderr


def test_two_runs_are_compared(tmp_path: Path) -> None:
    run_ranks(traced, 2, tmp_path / "a")
    run_ranks(traced, 2, tmp_path / "b")
    one, other = records.load(tmp_path / "a"), records.load(tmp_path / "b")
    found = compare.changes(one, other)
    assert {each.op for each in found} == {op for dump in one for op, _ in called(dump)}
    assert [each.more_ns for each in found] == sorted((each.more_ns for each in found), reverse=True)
    text = compare.report(one, other)
    assert text.splitlines()[0].split() == [
        "operation",
        "dtype",
        "size",
        "ranks",
        "calls",
        "first",
        "second",
        "ratio",
        "change",
        "in",
        "total",
    ]
    assert "Only in" not in text


def test_chakra_has_all_groups_and_calls(tmp_path: Path) -> None:
    run_ranks(traced, 2, tmp_path / "run")
    dumps = records.load(tmp_path / "run")
    chakra.save(dumps, tmp_path / "et")
    for dump in dumps:
        data = json.loads((tmp_path / "et" / f"rank-{dump.rank}.json").read_text())
        assert data["schema"] == chakra.SCHEMA
        ids = [node["id"] for node in data["nodes"]]
        assert ids == list(range(1, len(ids) + 1))
        groups = json.loads(data["nodes"][1]["inputs"]["values"][0])
        assert [each["ranks"] for each in groups] == [[0, 1], [0, 1]]
        calls = [{each["name"]: each["value"] for each in node["attrs"]} for node in data["nodes"][2:]]
        names = [each["collective_name"] for each in calls if each["collective_name"] != "wait"]
        assert len(names) == len(called(dump))
        assert {"allreduce", "_allgather_base", "all_to_allv", "barrier"} <= set(names)
