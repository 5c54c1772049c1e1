"""`torch_ucc.dump()` and `stats()`: what they say, also when a rank is stuck or has failed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch_ucc
from ranks import LIMIT, SOON, healthy, left_alone, stuck_until_signalled
from torch_ucc.testing import run_ranks
from torch_ucc.tracing import records

pytestmark = pytest.mark.multirank


def dump_of_a_healthy_run() -> tuple[dict, dict]:
    healthy()
    return torch_ucc.dump(), torch_ucc.stats()


def test_dump_and_stats_tell_every_operation() -> None:
    for rank, (data, stats) in enumerate(run_ranks(dump_of_a_healthy_run, 2)):
        dump = records.from_data(data)
        assert dump.rank == rank
        found = [(record.op, record.seq, record.bytes, record.route) for record in dump.records]
        message = "send" if rank == 0 else "recv"
        assert found == [
            ("all_reduce", 1, 16, "memory"),
            ("all_reduce", 2, 16, "memory"),
            ("all_reduce", 3, 16, "memory"),
            ("broadcast", 4, 16, "memory"),
            ("all_gather_into_tensor", 5, 32, "memory"),
            (message, 1, 16, "memory"),
            ("barrier", 6, 0, "memory"),
        ]
        for record in dump.records:
            assert record.state == "completed" and record.result == "ok"
            assert 0 < record.issued_ns <= record.posted_ns <= record.ended_ns <= dump.steady_ns
        assert dump.records[3].root == 1 and dump.records[0].reduce_op == "SUM"
        assert (dump.records[5].peer, dump.records[5].tag) == (1 - rank, 9)

        assert stats["calls"] == 7 and stats["errors"] == 0
        assert stats["operations"]["all_reduce"]["calls"] == 3
        assert stats["operations"]["all_reduce"]["bytes"] == 48
        assert stats["bytes"] == sum(each["bytes"] for each in stats["operations"].values())


def many_more_than_it_holds() -> tuple[int, int]:
    tensor = torch.ones(1)
    for _ in range(9000):
        dist.all_reduce(tensor)
    data = torch_ucc.dump()
    ids = [each["id"] for each in data["records"]]
    assert ids == list(range(ids[0], ids[-1] + 1))
    return len(ids), data["last_id"]


def test_the_ring_keeps_the_last_operations() -> None:
    assert run_ranks(many_more_than_it_holds, 2) == [(8192, 9000)] * 2


def test_a_timeout_leaves_a_dump_where_one_was_asked_for(tmp_path: Path) -> None:
    env = {**SOON, "TORCH_UCC_TRACE_DUMP": str(tmp_path / "dumps")}
    run_ranks(left_alone, 2, 1, group_timeout=LIMIT, env=env)
    (dump,) = (dump for dump in records.load(tmp_path / "dumps") if dump.rank == 0)
    last = dump.records[-1]
    assert (last.op, last.state, last.result, dump.reason) == ("all_reduce", "failed", "timeout", "timeout")
    (group,) = dump.groups.values()
    assert "all_reduce seq 2" in group.failure and group.errors == {"all_reduce": 1}


def test_a_signal_gets_a_dump_of_a_rank_that_waits(tmp_path: Path) -> None:
    env = {"TORCH_UCC_TRACE_DUMP": str(tmp_path), "TORCH_UCC_TRACE_SIGNAL": "1"}
    # Rank 1 would end of a signal that it does not handle: it only sends.
    run_ranks(stuck_until_signalled, 2, tmp_path, env=env)
    data = json.loads((tmp_path / "rank0.json").read_text())
    assert data["reason"] == "signal"
    assert [(each["op"], each["state"]) for each in data["records"]] == [("all_reduce", "posted")]


def sites() -> list[str]:
    dist.all_reduce(torch.ones(1))
    data = torch_ucc.dump()
    return data["sites"][str(data["records"][0]["site"])].splitlines()


def test_who_called_is_recorded_if_asked_for() -> None:
    for lines in run_ranks(sites, 1, env={"TORCH_UCC_TRACE_SITES": "1"}):
        assert lines[0].endswith(" all_reduce") and "distributed_c10d.py:" in lines[0]
        assert any("test_recorder.py:" in line and line.endswith(" sites") for line in lines)


def errors_of_another_backend() -> str:
    with pytest.raises(ValueError) as raised:
        torch_ucc.stats()
    return str(raised.value)


def test_stats_refuses_a_group_without_ucc() -> None:
    (message,) = run_ranks(errors_of_another_backend, 1, backend="gloo")
    assert "has no ucc backend" in message
