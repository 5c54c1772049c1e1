"""DeviceMesh, and DTensors that go from every placement to every other one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
import torch
import torch.distributed as dist
from side_by_side import LIMIT, assert_same, whole_numbers
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch_ucc.testing import run_ranks

pytestmark = pytest.mark.multirank

PLACEMENTS: tuple[Placement, ...] = (Shard(0), Shard(1), Replicate(), Partial("sum"))
SHAPES = ((8, 4), (5, 7), (3, 0), (1, 2))  # even; uneven; empty; fewer rows than ranks


def total(group: dist.ProcessGroup) -> float:
    """The sum of 2**rank over the members tells who they are."""
    tensor = torch.tensor([2.0 ** dist.get_rank()])
    dist.all_reduce(tensor, group=group)
    return float(tensor)


def meshes() -> list[float]:
    line = init_device_mesh("cpu", (4,))
    assert line.get_group() is dist.group.WORLD and line.get_local_rank() == dist.get_rank()
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
    rank = dist.get_rank()
    assert [*grid.get_coordinate()] == [rank // 2, rank % 2]
    groups = [line.get_group(), *grid.get_all_groups(), grid["columns"].get_group()]
    assert {dist.get_backend(group) for group in groups} == {dist.get_backend()}
    flat = grid._flatten("all")
    three = init_device_mesh("cpu", (1, 2, 2), mesh_dim_names=("a", "b", "c"))
    pair = DeviceMesh("cpu", [[0, 3], [1, 2]])
    more = [flat.get_group(), *three["a", "c"].get_all_groups(), *pair.get_all_groups()]
    return [total(group) for group in [*groups, *more]]


def piece(tensor: torch.Tensor, mesh: DeviceMesh, placements: Sequence[Placement]) -> torch.Tensor:
    """What this rank holds of a tensor, by the definition of the placements."""
    for which, placement in enumerate(placements):
        if isinstance(placement, Shard):
            pieces = tensor.chunk(mesh.size(which), placement.dim)
            mine = mesh.get_local_rank(which)
            nothing = tensor.narrow(placement.dim, 0, 0)
            tensor = pieces[mine] if mine < len(pieces) else nothing
    return tensor


def distribute(tensor: torch.Tensor, mesh: DeviceMesh, placements: Sequence[Placement]) -> DTensor:
    """Partial sums are summands that differ on every rank."""
    partial = [which for which, each in enumerate(placements) if each.is_partial()]
    if not partial:
        return distribute_tensor(tensor, mesh, placements)
    local = piece(tensor, mesh, placements)
    for which in partial:
        mine, size = mesh.get_local_rank(which), mesh.size(which)
        summands = [whole_numbers(*local.shape, seed=17 * which + other) for other in range(size - 1)]
        local = summands[mine] if mine < size - 1 else local - sum(summands)
    return DTensor.from_local(local, mesh, placements, shape=tensor.shape, stride=tensor.stride())


def redistribute(mesh_shape: tuple[int, ...], shapes: Sequence[tuple[int, int]]) -> int:
    """From every placement to every one that torch redistributes to."""
    mesh = init_device_mesh("cpu", mesh_shape)
    count = 0
    everything = list(itertools.product(PLACEMENTS, repeat=len(mesh_shape)))
    for seed, shape in enumerate(shapes):
        tensor = whole_numbers(*shape, seed=seed, limit=100)
        for source in everything:
            for target in everything:
                if any(each.is_partial() for each in target):
                    continue
                where = f"rank {dist.get_rank()}, {shape} from {source} to {target}"
                distributed = distribute(tensor, mesh, source).redistribute(mesh, target)
                assert distributed.placements == target, where
                assert_same(distributed.to_local(), piece(tensor, mesh, target), where)
                assert_same(distributed.full_tensor(), tensor, where)
                count += 1
    return count


def partial_ops() -> None:
    """The other reductions that a placement can be waiting for; of three ranks."""
    mesh = init_device_mesh("cpu", (3,))
    locals_ = [whole_numbers(6, 5, seed=rank, limit=50) for rank in range(3)]
    stacked = torch.stack(locals_)
    expected = {
        "sum": stacked.sum(0),
        "avg": stacked.sum(0) / 3,
        "min": stacked.amin(0),
        "max": stacked.amax(0),
    }
    for op, value in expected.items():
        partial = DTensor.from_local(locals_[dist.get_rank()], mesh, [Partial(op)])
        for target in ([Replicate()], [Shard(0)], [Shard(1)]):
            where = f"rank {dist.get_rank()}, {op} to {target}"
            assert_same(partial.redistribute(mesh, target).to_local(), piece(value, mesh, target), where)


def gradients() -> None:
    """Through a redistribution and a product whose result is a partial sum."""
    mesh = init_device_mesh("cpu", (3,))
    left, right = whole_numbers(5, 7, seed=0), whole_numbers(7, 4, seed=1)
    weights = whole_numbers(5, 4, seed=2)
    plain = [each.clone().requires_grad_() for each in (left, right)]
    ((plain[0] @ plain[1]) * weights).sum().backward()
    for placement, other in ((Shard(1), Shard(0)), (Shard(0), Replicate()), (Replicate(), Shard(1))):
        ours = [
            distribute_tensor(each, mesh, [how]).requires_grad_()
            for each, how in ((left, placement), (right, other))
        ]
        product = (ours[0] @ ours[1]).redistribute(mesh, [Shard(0)])
        assert_same(product.full_tensor(), (left @ right).detach(), f"{placement} times {other}")
        (product * distribute_tensor(weights, mesh, [Shard(0)])).sum().full_tensor().backward()
        for one, expected in zip(ours, plain, strict=True):
            assert isinstance(one.grad, DTensor)
            assert_same(one.grad.full_tensor(), expected.grad, f"{placement} times {other}")


def on_three() -> int:
    partial_ops()
    gradients()
    return redistribute((3,), SHAPES)


def test_distributed_tensors_on_a_line() -> None:
    assert run_ranks(on_three, 3, timeout=LIMIT) == [4 * 3 * len(SHAPES)] * 3


def on_four() -> tuple[list[float], int]:
    return meshes(), redistribute((2, 2), SHAPES[:2])


def test_meshes_and_distributed_tensors_on_a_grid() -> None:
    members, counts = zip(*run_ranks(on_four, 4, timeout=LIMIT), strict=True)
    everybody = [15.0] * 4
    rows, columns = [5.0, 10.0, 5.0, 10.0], [3.0, 3.0, 12.0, 12.0]
    one, two = [1.0, 2.0, 4.0, 8.0], [3.0, 3.0, 12.0, 12.0]
    across, along = [3.0, 3.0, 12.0, 12.0], [9.0, 6.0, 6.0, 9.0]
    expected = [everybody, rows, columns, columns, everybody, one, two, across, along]
    assert [list(each) for each in zip(*members, strict=True)] == expected
    assert counts == (16 * 9 * 2,) * 4
