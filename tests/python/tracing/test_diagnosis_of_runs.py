"""The diagnosis of real runs: faults planted into them, and a healthy one."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import LIMIT, SOON, failure, gather_dumps, healthy, left_alone
from torch_ucc.testing import RankError, run_ranks
from torch_ucc.tracing import records
from torch_ucc.tracing.__main__ import main
from torch_ucc.tracing.diagnosis import diagnose

pytestmark = pytest.mark.multirank

WITH_SITES = {**SOON, "TORCH_UCC_TRACE_SITES": "1"}


def mine(*calls: Callable[[], object]) -> None:
    """Each rank makes its own."""
    failure(calls[dist.get_rank()])


def wrong_op() -> None:
    mine(lambda: dist.all_reduce(torch.ones(4)), lambda: dist.barrier())


def wrong_size() -> None:
    mine(lambda: dist.all_reduce(torch.ones(4)), lambda: dist.all_reduce(torch.ones(70000)))


def wrong_dtype() -> None:
    mine(lambda: dist.all_reduce(torch.ones(4)), lambda: dist.all_reduce(torch.ones(4, dtype=torch.int64)))


def wrong_root() -> None:
    mine(lambda: dist.reduce(torch.ones(4), 0), lambda: dist.reduce(torch.ones(4), 1))


def missing() -> None:
    left_alone(1)


def swapped_groups() -> None:
    first, second = (dist.new_group(timeout=timedelta(seconds=LIMIT)) for _ in range(2))
    order = [first, second] if dist.get_rank() == 0 else [second, first]
    failure(lambda: dist.all_reduce(torch.ones(4), group=order[0]))


def wrong_reduce_op() -> None:
    op = dist.ReduceOp.SUM if dist.get_rank() == 0 else dist.ReduceOp.MAX
    failure(lambda: dist.all_reduce(torch.ones(4), op))


def wrong_root_of_a_broadcast() -> None:
    failure(lambda: dist.broadcast(torch.ones(1 << 20), dist.get_rank()))


def swapped_calls() -> None:
    """A third rank comes to the first call only when both others have made all of theirs."""
    store = dist.distributed_c10d._get_default_store()
    works: list[dist.Work] = []
    calls = [
        lambda: works.append(dist.all_reduce(torch.ones(4), async_op=True)),
        lambda: works.append(dist.broadcast(torch.ones(1 << 20), 0, async_op=True)),
    ]
    if dist.get_rank() == 2:
        store.wait(["test/called/0", "test/called/1"], timedelta(seconds=60))
        failure(lambda: dist.barrier())
        return
    works.append(dist.barrier(async_op=True))
    for call in calls if dist.get_rank() == 0 else reversed(calls):
        call()
    store.set(f"test/called/{dist.get_rank()}", "1")
    for work in works:
        failure(work.wait)


def never_called() -> None:
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 1:
        store.wait(["test/failed"], timedelta(seconds=60))
        return
    failure(lambda: dist.barrier())
    store.set("test/failed", "1")


def straggler() -> None:
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 1:
        store.wait(["test/failed"], timedelta(seconds=60))
    failure(lambda: dist.all_reduce(torch.ones(4)))
    store.set("test/failed", "1")


def stuck_in_another_group() -> None:
    """Rank 1 waits in a group where rank 0 does not come; rank 0 waits for it in the world."""
    part = dist.new_group(timeout=timedelta(seconds=LIMIT))
    dist.all_reduce(torch.ones(4))
    mine(lambda: dist.all_reduce(torch.ones(4)), lambda: dist.recv(torch.ones(4), 0, group=part))


def received_by_nobody() -> None:
    mine(lambda: dist.send(torch.ones(1 << 20), 1), lambda: None)


def sent_by_nobody() -> None:
    mine(lambda: None, lambda: dist.recv(torch.ones(4), 0, tag=7))


def another_tag() -> None:
    mine(lambda: dist.send(torch.ones(4), 1, tag=8), lambda: dist.recv(torch.ones(4), 0, tag=7))


def sent_by_nobody_at_all() -> None:
    mine(lambda: dist.recv(torch.ones(4), tag=3), lambda: None)


def crossed_receives() -> None:
    failure(lambda: dist.recv(torch.ones(4), 1 - dist.get_rank()))


def another_size() -> None:
    mine(lambda: dist.send(torch.ones(4), 1), lambda: dist.recv(torch.ones(5), 0))


def uneven_reduce_scatter() -> None:
    parts = [torch.ones(2), torch.ones(2 + dist.get_rank())]
    failure(lambda: dist.reduce_scatter(torch.empty_like(parts[dist.get_rank()]), parts))


FAULTS = {
    "wrong_op": (wrong_op, ["different operations at seq 1", "barrier()", "all_reduce(float32[4] SUM)"]),
    "wrong_size": (wrong_size, ["different sizes at seq 1", "float32[70000]"]),
    "wrong_dtype": (wrong_dtype, ["different dtypes at seq 1", "int64[4]"]),
    "wrong_root": (wrong_root, ["different roots at seq 1", "root 1"]),
    "missing": (missing, ["Rank 1 did not call", "the last operation of rank 1, seq 1", "timed out"]),
    "swapped_groups": (swapped_groups, ["wait for each other in a circle"]),
    "wrong_reduce_op": (wrong_reduce_op, ["different reduce ops at seq 1", "float32[4] MAX"]),
    "wrong_root_of_a_broadcast": (wrong_root_of_a_broadcast, ["different roots", "root 0", "root 1"]),
    "swapped_calls": (swapped_calls, ["different operations at seq 2", "call and the next one in different"]),
    "never_called": (never_called, ["rank 0 called seq 1 barrier()", "rank 1 has called no operation"]),
    "straggler": (straggler, ["Rank 1 was too late for seq 1 all_reduce", "had already passed"]),
    "stuck_in_another_group": (stuck_in_another_group, ["Rank 1 did not call", "recv(float32[4], peer 0"]),
    "received_by_nobody": (received_by_nobody, ["Rank 0 waits in seq 1 send(", "has not called recv for"]),
    "sent_by_nobody": (sent_by_nobody, ["Rank 1 waits in seq 1 recv(", "has not called send for rank 1"]),
    "another_tag": (another_tag, ["Rank 1 waits in seq 1 recv(", "tag 7", "tag 8", "used another tag"]),
    "sent_by_nobody_at_all": (sent_by_nobody_at_all, ["Rank 0 waits in seq 1 recv_any_source(", "no rank"]),
    "crossed_receives": (crossed_receives, ["has not called send for rank 0 and is itself in seq 1 recv("]),
    "another_size": (another_size, ["Rank 1 failed in seq 1 recv(float32[5], peer 0", "invalid"]),
    "uneven_reduce_scatter": (uneven_reduce_scatter, ["different sizes at seq 1", "float32[5] SUM"]),
}  # fmt: skip
RANKS = {"swapped_calls": 3}


def run(name: str, folder: Path) -> None:
    FAULTS[name][0]()
    gather_dumps(folder)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_a_run_is_named(name: str, tmp_path: Path) -> None:
    run_ranks(run, RANKS.get(name, 2), name, tmp_path, group_timeout=LIMIT, env=WITH_SITES)
    told = diagnose(records.load(tmp_path))
    for part in FAULTS[name][1]:
        assert part in told, told
    assert f"(called from {Path(__file__).parent}" in told


def dies() -> None:
    dist.all_reduce(torch.ones(4))
    if dist.get_rank() == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    failure(lambda: dist.all_reduce(torch.ones(4)))


def test_there_are_twenty_faults() -> None:
    assert len(FAULTS) + len(["dead rank"]) >= 20


def test_a_dead_rank_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RankError, match="SIGKILL"):
        run_ranks(dies, 3, env={**WITH_SITES, "TORCH_UCC_TRACE_DUMP": str(tmp_path)})
    capsys.readouterr()
    assert main(["diagnose", str(tmp_path)]) == 1
    told = capsys.readouterr().out
    assert "Rank 2 wrote no dump: it died" in told and "reported this error: " in told
    assert told.count("\n") == 1


def run_healthy(folder: Path) -> None:
    healthy()
    group = dist.new_group([0, 2])
    if dist.get_rank() != 1:
        dist.all_reduce(torch.ones(3), group=group)
    gather_dumps(folder)


def test_a_healthy_run_is_met_with_silence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_ranks(run_healthy, 3, tmp_path)
    assert diagnose(records.load(tmp_path)) == ""
    capsys.readouterr()
    assert main(["diagnose", str(tmp_path)]) == 0
    assert "Nothing is wrong" in capsys.readouterr().out


def test_a_folder_without_dumps_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(tmp_path)]) == 2
    assert "holds no dumps" in capsys.readouterr().err
    (tmp_path / "rank0.json").write_text("{}")
    assert main(["diagnose", str(tmp_path)]) == 2
    assert "rank0.json cannot be read: the file is not a dump" in capsys.readouterr().err
