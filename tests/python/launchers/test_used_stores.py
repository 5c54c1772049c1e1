"""Stores that earlier groups have used: what they left behind is not taken for new."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch_ucc.testing import run_ranks

TIMEOUT = datetime.timedelta(seconds=60)

pytestmark = pytest.mark.multirank


def total() -> float:
    tensor = torch.full((100,), dist.get_rank() + 1.0)
    dist.all_reduce(tensor)
    return tensor.unique().item()


def worlds(store_of: Callable[[int], dist.Store], sizes: list[int]) -> list[float]:
    """One after the other, of the first so many processes; each over what the store then holds."""
    rank, found = int(os.environ["RANK"]), []
    for turn, size in enumerate(sizes):
        if rank < size:
            dist.init_process_group("ucc", store=store_of(size), rank=rank, world_size=size, timeout=TIMEOUT)
            found.append(total())
            dist.destroy_process_group()
        meet(f"turn {turn}")
    return found


def meet(name: str) -> None:
    """All processes of the test, over the store of the test itself."""
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    store.add(name, 1)
    while store.add(name, 0) < int(os.environ["WORLD_SIZE"]):
        pass


def over_a_file(path: str, sizes: list[int], counted: bool) -> list[float]:
    return worlds(lambda size: dist.FileStore(path, size) if counted else dist.FileStore(path), sizes)


@pytest.mark.parametrize("counted", [True, False], ids=["removed by the last", "kept"])
def test_a_file_of_worlds_of_several_sizes(tmp_path: Path, counted: bool) -> None:
    sizes = [3, 4, 2, 4, 3]
    found = run_ranks(over_a_file, 4, str(tmp_path / "store"), sizes, counted, init=False)
    totals = {size: size * (size + 1) / 2 for size in sizes}
    assert found == [[totals[size] for size in sizes if rank < size] for rank in range(4)]


def starts(path: str, seconds: float) -> float:
    """As one of three processes."""
    limit, rank = datetime.timedelta(seconds=seconds), int(os.environ["RANK"])
    dist.init_process_group("ucc", store=dist.FileStore(path), rank=rank, world_size=3, timeout=limit)
    return total()


def gives_up(path: str) -> None:
    with pytest.raises(dist.DistBackendError, match=r"timed out waiting for rank\(s\) 2 of 3"):
        starts(path, 1.0)


def test_a_file_of_a_start_that_failed(tmp_path: Path) -> None:
    """Two of three start and give up; then all three start."""
    path = str(tmp_path / "store")
    run_ranks(gives_up, 2, path, init=False)
    assert run_ranks(starts, 3, path, 60.0, init=False) == [6.0] * 3


def over_one_server(sizes: list[int]) -> list[float]:
    where = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    return worlds(lambda size: dist.PrefixStore("same", dist.TCPStore(*where, is_master=False)), sizes)


def test_a_server_of_worlds_of_several_sizes() -> None:
    assert run_ranks(over_one_server, 3, [2, 3, 2], init=False) == [[3.0, 6.0, 3.0]] * 2 + [[6.0]]
