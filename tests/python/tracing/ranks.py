"""What ranks do in the tests of the recorder: well, or with one thing wrong."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch_ucc._torch import all_gather_single

LIMIT = 2.0
"""Of a group that is to time out, in seconds."""

SOON = {"TORCH_UCC_CLOSE_TIMEOUT": "500ms"}


def failure(call: Callable[[], object]) -> str:
    try:
        call()
    except Exception as error:
        return str(error)
    return ""


def healthy() -> None:
    tensor = torch.ones(4)
    for _ in range(3):
        dist.all_reduce(tensor)
    dist.broadcast(tensor, 1)
    all_gather_single(torch.empty(4 * dist.get_world_size()), tensor)
    if dist.get_rank() == 0:
        dist.send(tensor, 1, tag=9)
    elif dist.get_rank() == 1:
        dist.recv(tensor, 0, tag=9)
    dist.barrier()


def gather_dumps(folder: Path) -> None:
    """Every rank's, through the job's store: the groups may be unusable."""
    import torch_ucc

    torch_ucc.dump(folder / f"rank{dist.get_rank()}.json")
    store = dist.distributed_c10d._get_default_store()
    store.add("test/dumped", 1)
    deadline = time.monotonic() + 60
    while store.add("test/dumped", 0) < dist.get_world_size() and time.monotonic() < deadline:
        time.sleep(0.01)


def left_alone(last: int) -> None:
    """Rank `last` never comes to the second call."""
    dist.all_reduce(torch.ones(4))
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == last:
        store.wait(["test/failed"], timedelta(seconds=60))
        return
    assert "timed out" in failure(lambda: dist.all_reduce(torch.ones(8)))
    store.set("test/failed", "1")


def stuck_until_signalled(folder: Path) -> None:
    """Rank 0 waits in C++ for rank 1, which asks it by signal for its records."""
    if dist.get_rank() == 0:
        store = dist.distributed_c10d._get_default_store()
        store.set("test/pid", str(os.getpid()))
        dist.all_reduce(torch.ones(4))
        return
    store = dist.distributed_c10d._get_default_store()
    pid = int(store.get("test/pid"))
    dumped = folder / "rank0.json"
    deadline = time.monotonic() + 40
    # It may not have got to the call when the first signal comes: then the file does not show it yet.
    while not (dumped.exists() and '"posted"' in dumped.read_text()) and time.monotonic() < deadline:
        os.kill(pid, signal.SIGUSR2)
        time.sleep(0.1)
    dist.all_reduce(torch.ones(4))
