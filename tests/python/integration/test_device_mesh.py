"""DeviceMesh: each dimension is a group of its own, and collectives go along it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch_ucc._torch import all_gather_single, functional
from torch_ucc.testing import run_ranks

functional_all_gather_single = functional("all_gather_single")
functional_reduce_scatter_single = functional("reduce_scatter_single")

pytestmark = pytest.mark.multirank

CPU = torch.device("cpu")
Results = dict[str, list[Any]]


def along(mesh: DeviceMesh, dim: str | int) -> list[float]:
    """What each of the calls that go along a dimension makes of the ranks' numbers."""
    group = mesh.get_group(dim)
    rank, size = mesh.get_rank(), group.size()
    assert group._get_backend(CPU).name() == "ucc"
    assert group.rank() == mesh.get_local_rank(dim)
    reduced = torch.tensor([float(rank)])
    dist.all_reduce(reduced, group=group)
    sent = torch.tensor([float(rank)])
    dist.broadcast(sent, group=group, group_src=size - 1)
    gathered = torch.empty(size)
    all_gather_single(gathered, torch.tensor([float(rank)]), group=group)
    return [float(reduced), float(sent), *gathered.tolist()]


def one_dimension() -> list[float]:
    return along(init_device_mesh("cpu", (3,)), 0)


def test_one_dimension() -> None:
    assert run_ranks(one_dimension, 3) == [[3.0, 2.0, 0.0, 1.0, 2.0]] * 3


def two_dimensions() -> dict[str, list[float]]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
    both = mesh["rows", "columns"]._flatten("both")
    found = {"rows": along(mesh, "rows"), "columns": along(mesh["columns"], "columns")}
    found["both"] = along(both, "both")
    assert list(mesh.get_coordinate()) == [dist.get_rank() // 2, dist.get_rank() % 2]
    return found


def test_two_dimensions(four_ranks: Results) -> None:
    """Ranks 0 1 / 2 3: a row's group goes down the rows, at one column."""
    for rank, found in enumerate(four_ranks["two_dimensions"]):
        down, across = [rank % 2, rank % 2 + 2], [rank // 2 * 2, rank // 2 * 2 + 1]
        assert found["rows"] == [sum(down), down[1], *down], rank
        assert found["columns"] == [sum(across), across[1], *across], rank
        assert found["both"] == [6.0, 3.0, 0.0, 1.0, 2.0, 3.0], rank


def functional() -> dict[str, list[float]]:
    """What DTensor calls; a (mesh, dimension) stands for the group."""
    import torch.distributed._functional_collectives as funcol  # half a second, for each rank

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
    mine = torch.tensor([1.0, 10.0]) * (dist.get_rank() + 1)
    return {
        "all_reduce": funcol.all_reduce(mine, "sum", (mesh, 0)).tolist(),
        "all_gather_tensor": functional_all_gather_single(mine, 0, (mesh, 1)).tolist(),
        "reduce_scatter_tensor": functional_reduce_scatter_single(mine, "sum", 0, (mesh, 0)).tolist(),
        "all_to_all_single": funcol.all_to_all_single(mine, None, None, (mesh, 1)).tolist(),
        "broadcast": funcol.broadcast(mine, 1, (mesh, 0)).tolist(),
    }


def test_functional_collectives_along_a_dimension(four_ranks: Results) -> None:
    for rank, found in enumerate(four_ranks["functional"]):
        down = [1 + rank % 2, 3 + rank % 2]  # each rank's factor
        across = [1 + rank // 2 * 2, 2 + rank // 2 * 2]
        assert found == {
            "all_reduce": [sum(down), 10.0 * sum(down)],
            "all_gather_tensor": [across[0], 10.0 * across[0], across[1], 10.0 * across[1]],
            "reduce_scatter_tensor": [sum(down) * (1.0, 10.0)[rank // 2]],
            "all_to_all_single": [each * (1.0, 10.0)[rank % 2] for each in across],
            "broadcast": [down[1], 10.0 * down[1]],
        }, rank


def from_groups() -> list[float]:
    """A mesh over groups that are there already makes none."""
    row = [dist.new_group([0, 1]), dist.new_group([2, 3])][dist.get_rank() // 2]
    column = [dist.new_group([0, 2]), dist.new_group([1, 3])][dist.get_rank() % 2]
    before = dist.distributed_c10d._world.group_count
    mesh = DeviceMesh.from_group(
        [column, row], "cpu", mesh=torch.arange(4).view(2, 2), mesh_dim_names=("rows", "columns")
    )
    assert mesh.get_group("columns") is row
    assert dist.distributed_c10d._world.group_count == before
    return along(mesh, "rows")


def test_mesh_from_groups(four_ranks: Results) -> None:
    assert four_ranks["from_groups"] == [[2.0, 2.0, 0.0, 2.0], [4.0, 3.0, 1.0, 3.0]] * 2


def in_turns() -> dict[str, object]:
    return {body.__name__: body() for body in (two_dimensions, functional, from_groups)}


@pytest.fixture(scope="module")
def four_ranks() -> Results:
    """What each rank found, by what it did: starting ranks takes longer than all they do."""
    by_rank = run_ranks(in_turns, 4)
    return {name: [found[name] for found in by_rank] for name in by_rank[0]}
