"""What runs out is named: descriptors, the store; what can be done without is done without: one of two kinds
of shared memory."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch_ucc
from deaths import failure, wait_for
from torch_ucc.testing import run_ranks
from torch_ucc.testing.hosts import Hosts

pytestmark = pytest.mark.multirank


def init_with_descriptors(spare: int) -> tuple[int, str, str]:
    count = len(list(Path("/proc/self/fd").iterdir())) + spare
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))
    kind, text, _ = failure(lambda: dist.init_process_group("ucc", timeout=timedelta(seconds=10)))
    return count, kind, text


@pytest.mark.parametrize("spare", [4, 8])
def test_too_few_descriptors(spare: int) -> None:
    for count, kind, text in run_ranks(init_with_descriptors, 2, spare, init=False):
        assert (
            kind == "DistBackendError" and f"of {count} file descriptors" in text and "ulimit -n" in text
        ), text


def total_after(limit: str, ready: str) -> float:
    if os.environ["RANK"] == "0":
        subprocess.run(limit, check=True, shell=True)
        Path(ready).touch()
    wait_for(Path(ready))
    dist.init_process_group("ucc")
    tensor = torch.ones(1 << 20)
    dist.all_reduce(tensor)
    return float(tensor.sum())


@pytest.mark.parametrize(
    "limit", ["mount -o remount,size=64k /dev/shm", "echo 0 >/proc/sys/kernel/shmmni"], ids=["posix", "sysv"]
)
def test_too_little_shared_memory_of_one_kind_is_no_hindrance(
    limit: str, pair: Hosts, tmp_path: Path
) -> None:
    found = pair.run(total_after, limit, str(tmp_path / "ready"), per_host=(2, 0), init=False)
    assert found == [float(2 << 20)] * 2


SERVE = """
import sys, time
import torch.distributed as dist
import torch_ucc
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
time.sleep(600)
"""


def without_store(port: int, pid: int) -> tuple[float, tuple[str, str], float, float]:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("ucc", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=60))
    dist.all_reduce(torch.ones(1))
    if rank == 0:
        os.kill(pid, signal.SIGKILL)
    dist.barrier()
    tensor = torch.ones(5)
    dist.all_reduce(tensor)
    began = time.monotonic()
    kind, text, ended = failure(lambda: dist.new_group([0, 1]))
    dist.destroy_process_group()
    return float(tensor.sum()), (kind, text), ended - began, time.monotonic() - ended


def test_a_store_that_is_killed() -> None:
    """What runs needs no store; a new group does, and says so at once; the old one closes."""
    server = subprocess.Popen([sys.executable, "-c", SERVE], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        for total, (kind, text), creating, closing in run_ranks(
            without_store, 2, port, server.pid, init=False
        ):
            assert total == 10.0
            assert kind in {"DistBackendError", "DistNetworkError"}, (kind, text)
            assert creating < 30.0 and closing < 30.0, (creating, closing)
    finally:
        server.kill()
        server.wait()


def with_little_address_space(rank_with_little: int) -> tuple[float, str]:
    if int(os.environ["RANK"]) == rank_with_little:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + (8 << 30)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    dist.init_process_group("ucc")
    tensor = torch.ones(100_000)
    dist.all_reduce(tensor)
    why_not = torch_ucc.describe()["why_not_through_memory"]
    dist.destroy_process_group()
    return tensor.max().item(), why_not


@pytest.mark.filterwarnings("ignore:ucc")
def test_too_little_address_space_is_no_hindrance() -> None:
    """Collectives then go by UCC, on all ranks of the host."""
    found = run_ranks(with_little_address_space, 3, 1, init=False)
    assert [total for total, _ in found] == [3.0] * 3
    assert "ulimit" in found[1][1] and all("cannot" in found[rank][1] for rank in (0, 2)), found
