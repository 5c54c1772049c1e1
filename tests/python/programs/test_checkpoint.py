"""Distributed checkpoints: what so many ranks saved, another number of them loads into shards of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from side_by_side import LIMIT, assert_same, whole_numbers
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch_ucc.testing import run_ranks

pytestmark = pytest.mark.multirank

Contents = dict[str, Any]

TABLE = whole_numbers(7, 5, seed=0, limit=1000)  # of seven rows: no number of ranks shares it evenly


def network(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 3))
    fully_shard(model[0])
    fully_shard(model)
    return model, torch.optim.Adam(model.parameters(), lr=0.1)


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for step in range(2):
        optimizer.zero_grad()
        torch.manual_seed(10 * step + dist.get_rank())
        model(torch.randn(4, 6)).square().mean().backward()
        optimizer.step()


def whole(value: Any) -> Any:
    """With every distributed tensor in one piece."""
    if isinstance(value, dict):
        return {key: whole(each) for key, each in value.items()}
    if isinstance(value, list):
        return [whole(each) for each in value]
    if isinstance(value, DTensor):
        return value.full_tensor()
    return value.clone() if isinstance(value, torch.Tensor) else value


def state(model: nn.Module, optimizer: torch.optim.Optimizer, tables: dict[str, DTensor]) -> Contents:
    weights, moments = get_state_dict(model, optimizer)
    return {"weights": weights, "moments": moments, "tables": tables}


def save(folder: Path) -> Contents:
    """At once, and in the background while nobody waits; returns what was saved, in whole tensors."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model, optimizer = network(seed=1)
    train(model, optimizer)
    tables = {
        "rows": distribute_tensor(TABLE, mesh, [Shard(0)]),
        "columns": distribute_tensor(TABLE, mesh, [Shard(1)]),
        "everywhere": distribute_tensor(TABLE, mesh, [Replicate()]),
    }
    contents = state(model, optimizer, tables)
    dcp.save(contents, checkpoint_id=folder / "at once")
    dcp.async_save(contents, checkpoint_id=folder / "in the background").result()
    return whole(contents)


def load(folder: Path) -> list[Contents]:
    """Into a model of other weights, and into tables that are laid out in another way."""
    size = dist.get_world_size()
    line, grid = init_device_mesh("cpu", (size,)), init_device_mesh("cpu", (2, size // 2))
    found = []
    for which in ("at once", "in the background"):
        model, optimizer = network(seed=2)
        empty = torch.zeros_like(TABLE)
        tables = {
            "rows": distribute_tensor(empty, grid, [Shard(1), Shard(0)]),
            "columns": distribute_tensor(empty, line, [Shard(0)]),
            "everywhere": distribute_tensor(empty, grid, [Replicate(), Shard(1)]),
        }
        contents = state(model, optimizer, tables)
        dcp.load(contents, checkpoint_id=folder / which)
        set_state_dict(
            model,
            optimizer,
            model_state_dict=contents["weights"],
            optim_state_dict=contents["moments"],
        )
        found.append(whole(state(model, optimizer, tables)))
    return found


def load_and_save(source: Path, target: Path) -> tuple[list[Contents], Contents]:
    return load(source), save(target)


def test_resharding(tmp_path: Path) -> None:
    """From two ranks to four, and from four to two."""
    two, four = tmp_path / "of two", tmp_path / "of four"
    saved_by_two = run_ranks(save, 2, two, timeout=LIMIT)
    on_four = run_ranks(load_and_save, 4, two, four, timeout=LIMIT)
    saved_by_four = [contents for _, contents in on_four]
    for saved, loaded in (
        (saved_by_two, [found for found, _ in on_four]),
        (saved_by_four, run_ranks(load, 2, four, timeout=LIMIT)),
    ):
        moments = saved[0]["moments"]["state"]["0.weight"]
        assert moments["step"] == 2 and moments["exp_avg"].abs().sum() > 0
        assert all(table.equal(TABLE) for table in saved[0]["tables"].values())
        for rank, found in enumerate(loaded):
            for contents in found:
                assert_same(contents, saved[0], f"rank {rank} of {len(loaded)}")
