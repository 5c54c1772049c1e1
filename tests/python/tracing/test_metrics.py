"""`torch_ucc.stats()` and `metrics()`, the handler that serves them, and what TORCH_LOGS shows."""

from __future__ import annotations

import os
import threading
import time
import urllib.request
from typing import Any

import prometheus
import pytest
import torch
import torch.distributed as dist
import torch_ucc
from ranks import LIMIT, SOON, failure, healthy, left_alone
from torch._C import _distributed_c10d as c10d
from torch_ucc.testing import run_ranks, run_script
from torch_ucc.tracing import metrics

pytestmark = pytest.mark.multirank


def samples(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    """By name, without the prefix that all have."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for name, labels, value in prometheus.samples(text, "counter|gauge"):
        assert name.startswith("torch_ucc_"), name
        found.setdefault(name.removeprefix("torch_ucc_"), []).append((labels, value))
    return found


def everything() -> tuple[dict[str, Any], str, dict[str, Any]]:
    healthy()
    part = dist.new_group([0, 1])
    dist.all_reduce(torch.ones(4), group=part)
    assert failure(lambda: dist.all_reduce(torch.ones(4, dtype=torch.bool), dist.ReduceOp.AVG))  # no call
    return torch_ucc.stats(), torch_ucc.metrics(), torch_ucc.stats(part)


def test_metrics_and_stats_tell_the_same() -> None:
    for rank, (stats, text, part) in enumerate(run_ranks(everything, 2)):
        assert stats["calls"] == 7 and stats["errors"] == 0 and stats["in_flight"] == 0
        assert {path: each["calls"] for path, each in stats["paths"].items()} == {"memory": 7}
        assert sum(each["bytes"] for each in stats["paths"].values()) == stats["bytes"]
        assert part["calls"] == 1 and list(part["operations"]) == ["all_reduce"]

        found = samples(text)
        calls = {(row["group"], row["op"], row["path"]): value for row, value in found["calls_total"]}
        assert all(row["rank"] == str(rank) for rows in found.values() for row, _ in rows)
        assert len({group for group, _, _ in calls}) == 2 and sum(calls.values()) == 8
        assert calls["0", "all_reduce", "memory"] == 3
        assert calls["0", "send" if rank == 0 else "recv", "memory"] == 1
        assert sum(value for _, value in found["bytes_total"]) == stats["bytes"] + part["bytes"]
        (engine, in_flight), ((same, sleeps),) = found["in_flight"][0], found["sleeps_total"]
        assert engine == same and in_flight == 0 and sleeps >= stats["sleeps"]
        assert "errors_total" not in found


def tell_when_asleep() -> None:
    """In a thread of its own: the main thread is asleep."""
    bound = time.monotonic() + 60
    while torch_ucc.stats()["sleeps"] == 0 and time.monotonic() < bound:
        time.sleep(0.01)
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    store.set("asleep", str(torch_ucc.stats()["in_flight"]))


def late() -> tuple[int, dict[str, Any]]:
    """Rank 1 comes when rank 0 sleeps."""
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    if dist.get_rank() == 0:
        teller = threading.Thread(target=tell_when_asleep)
        teller.start()
    in_flight = int(store.get("asleep")) if dist.get_rank() == 1 else 0
    dist.all_reduce(torch.ones(1))
    return in_flight, torch_ucc.stats()


def test_what_waits_is_counted() -> None:
    (_, early), (in_flight, _) = run_ranks(late, 2)
    assert in_flight == 1 and early["in_flight"] == 0 and early["sleeps"] > 0
    assert early["waited_s"] == early["paths"]["memory"]["waited_s"] > 0


def timed_out() -> str:
    left_alone(1)
    return torch_ucc.metrics()


def test_what_failed_is_counted() -> None:
    early, missing = map(samples, run_ranks(timed_out, 2, group_timeout=LIMIT, env=SOON))
    assert early["errors_total"] == [({"rank": "0", "group": "0", "op": "all_reduce"}, 1)]
    assert "errors_total" not in missing


def served() -> tuple[str, str]:
    dist.all_reduce(torch.ones(4))
    server = c10d._WorkerServer("127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.port}/handler/torch_ucc_metrics"
    with urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=60) as response:
        answer = response.headers["content-type"], response.read().decode()
    server.shutdown()
    return answer


def test_the_worker_server_of_torch_tells_them() -> None:
    for kind, text in run_ranks(served, 2):
        assert kind == metrics.CONTENT_TYPE
        assert [value for _, value in samples(text)["calls_total"]] == [1]


LOGGED = """
import torch.distributed as dist
dist.init_process_group("ucc")
dist.new_group([0])
dist.destroy_process_group()
"""


@pytest.mark.parametrize(("asked", "more"), [("torch_ucc", False), ("+torch_ucc", True), ("dynamo", None)])
def test_torch_logs_shows_groups(asked: str, more: bool | None) -> None:
    output = run_script(LOGGED, 2, env={"TORCH_LOGS": asked})
    for rank in range(2):
        assert (f"group '0': rank {rank} of 2, timeout 0:30:00" in output) == (more is not None)
    assert ("rank 0 of 1" in output) == (more is not None)
    assert ("global ranks [0, 1]" in output) == bool(more)
