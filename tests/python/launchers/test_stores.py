"""Every store, and every init_method, that torch can be told to meet at."""

from __future__ import annotations

import datetime
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from processes import free_port
from torch_ucc.testing import run_ranks

RANKS = 2
TIMEOUT = datetime.timedelta(seconds=60)

pytestmark = pytest.mark.multirank


def me() -> dict[str, int]:
    return {"rank": int(os.environ["RANK"]), "world_size": RANKS}


def by_method(method: str) -> list[float]:
    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE")  # rank 0 serves the store, as without a launcher
    if method.startswith("env://"):
        os.environ["MASTER_PORT"] = method.removeprefix("env://")
        method = "env://"
    dist.init_process_group("ucc", init_method=method, timeout=TIMEOUT, **me())
    return sums()


def sums() -> list[float]:
    """The world's, and that of a further group, which asks the store again."""
    found = []
    for group in (None, dist.new_group([0, 1])):
        total = torch.tensor(dist.get_rank() + 1.0)
        dist.all_reduce(total, group=group)
        found.append(total.item())
    return found


@pytest.mark.parametrize("method", ["tcp", "file", "env"])
def test_init_method(method: str, tmp_path: Path) -> None:
    where = {
        "tcp": f"tcp://127.0.0.1:{free_port()}",
        "file": f"file://{tmp_path}/meeting",
        "env": f"env://{free_port()}",
    }
    assert run_ranks(by_method, RANKS, where[method], init=False) == [[3.0, 3.0]] * RANKS


def shared_store() -> Any:
    return dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), is_master=False, timeout=TIMEOUT)


def tcp(folder: Path) -> Any:
    return shared_store()


def file(folder: Path) -> Any:
    return dist.FileStore(str(folder / "meeting"), RANKS)


def prefix_of_prefix_of_tcp(folder: Path) -> Any:
    return dist.PrefixStore("inner", dist.PrefixStore("outer", shared_store()))


def prefix_of_file(folder: Path) -> Any:
    return dist.PrefixStore("job", file(folder))


def by_store(store: Callable[[Path], Any], folder: Path) -> list[float]:
    dist.init_process_group("ucc", store=store(folder), timeout=TIMEOUT, **me())
    return sums()


@pytest.mark.parametrize("store", [tcp, file, prefix_of_prefix_of_tcp, prefix_of_file])
def test_store(store: Callable[[Path], Any], tmp_path: Path) -> None:
    assert run_ranks(by_store, RANKS, store, tmp_path, init=False) == [[3.0, 3.0]] * RANKS


def alone_by_hash_store() -> list[float]:
    dist.init_process_group("ucc", store=dist.HashStore(), rank=0, world_size=1, timeout=TIMEOUT)
    total = torch.tensor(5.0)
    dist.all_reduce(total, group=dist.new_group([0]))
    return [total.item()]


def test_a_hash_store_serves_a_world_of_one() -> None:
    assert run_ranks(alone_by_hash_store, 1, init=False) == [[5.0]]


def two_members_in_threads() -> list[str]:
    """A HashStore can be shared by threads only, so two members by it are two threads of one process."""
    from torch_ucc import config
    from torch_ucc._native import extension

    compiled = extension.compiled()
    settings = config.native(config.in_force(), compiled.Settings())
    store = dist.HashStore()
    told = [""] * RANKS

    def join(rank: int) -> None:
        try:
            place = compiled.find_place(
                store=store,
                rank=rank,
                timeout=TIMEOUT,
                group_id="threads",
                world=compiled.World(RANKS),
                global_ranks=[*range(RANKS)],
                settings=settings,
            )
            compiled.create_backend(place, settings)
        except ValueError as error:
            told[rank] = str(error)

    members = [threading.Thread(target=join, args=(rank,)) for rank in range(RANKS)]
    for each in members:
        each.start()
    for each in members:
        each.join()
    return told


def test_two_ranks_as_threads_of_one_process_are_refused() -> None:
    (told,) = run_ranks(two_members_in_threads, 1, init=False)
    assert all("with the same process id" in each for each in told), told
