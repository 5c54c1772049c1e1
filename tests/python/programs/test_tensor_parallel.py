"""Tensor parallel plans on MLP and attention, alone and with FSDP2 on the second dimension of a mesh.

A rank that holds half of a layer adds half of its products, and the halves are added over the ranks: not in
the order of one process. In float64, of numbers of order one, that is some dozens of roundings apart.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from side_by_side import LIMIT
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch_ucc.testing import run_ranks

pytestmark = pytest.mark.multirank

CLOSE = 64 * torch.finfo(torch.float64).eps
SEQUENCE, WIDTH, HEADS, CLASSES = 8, 16, 4, 12


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The number of heads follows from the width: a rank may have only some of them."""
        heads = [
            layer(inputs).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        ]
        return self.out(scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first_norm, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.second_norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(3 * WIDTH, WIDTH)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        inputs = inputs + self.attention(self.first_norm(inputs))
        return inputs + self.down(torch.nn.functional.gelu(self.up(self.second_norm(inputs))))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(CLASSES, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)
        self.double()

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        inner = self.embedding(words)
        for block in self.blocks:
            inner = block(inner)
        return self.head(self.norm(inner))


def parallel(model: nn.Module, mesh: DeviceMesh, by_sequence: bool) -> nn.Module:
    """Megatron's plan; with `by_sequence`, what lies between the layers is sharded too, norms included."""
    between = Shard(1) if by_sequence else Replicate()
    for block in model.blocks:
        plan: dict[str, Any] = {
            **{f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")},
            "attention.out": RowwiseParallel(output_layouts=between),
            "up": ColwiseParallel(),
            "down": RowwiseParallel(output_layouts=between),
        }
        if by_sequence:
            whole = {"input_layouts": Shard(1), "desired_input_layouts": Replicate()}
            plan |= {
                "first_norm": SequenceParallel(),
                "attention": PrepareModuleInput(**whole),
                "second_norm": SequenceParallel(),
                "up": ColwiseParallel(input_layouts=Shard(1)),
            }
        parallelize_module(block, mesh, plan)
    plan = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
        "head": ColwiseParallel(input_layouts=between, output_layouts=Shard(-1), use_local_output=False),
    }
    if by_sequence:
        plan["norm"] = SequenceParallel()
    return parallelize_module(model, mesh, plan)


def batch(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    words = torch.randint(0, CLASSES, (2, SEQUENCE + 1), generator=random)
    return words[:, :-1], words[:, 1:].flatten()


def train(model: nn.Module, shards: list[list[int]]) -> list[float]:
    """Losses of three steps; each of `shards` is a batch by its seed, and all are averaged."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    losses = []
    for seeds in shards:
        optimizer.zero_grad()
        loss = sum(cross_entropy(model(words).flatten(0, 1), next_) for words, next_ in map(batch, seeds))
        (loss / len(seeds)).backward()
        optimizer.step()
        losses.append(float(loss.detach()) / len(seeds))
    return losses


def furthest(model: nn.Module, alone: nn.Module) -> float:
    """How far apart a weight or a gradient of the two is at most."""
    found = torch.zeros(())
    for (name, ours), expected in zip(model.named_parameters(), alone.parameters(), strict=True):
        for one, other in ((ours, expected), (ours.grad, expected.grad)):
            value = one.full_tensor() if isinstance(one, DTensor) else one
            assert value.shape == other.shape, name
            found = torch.maximum(found, (value - other).abs().max())  # unlike max(), it keeps a NaN
    return float(found)


def gathered_output() -> float:
    """Of a module that gives back the whole of its output on every rank."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    alone = nn.Linear(5, 8, bias=False).double()
    model = nn.Linear(5, 8, bias=False).double()
    model.load_state_dict(alone.state_dict())
    parallelize_module(model, mesh, ColwiseParallel(use_local_output=False))
    parallelize_module(
        model, mesh, PrepareModuleOutput(output_layouts=Shard(-1), desired_output_layouts=Replicate())
    )
    inputs = torch.arange(15, dtype=torch.float64).reshape(3, 5)
    return float((model(inputs) - alone(inputs)).abs().max())


def of_plans() -> dict[str, tuple[float, float]]:
    steps = [[1], [2], [3]]
    alone = Transformer()
    expected = train(alone, steps)
    found = {"gathered output": (0.0, gathered_output())}
    for name, by_sequence in (("replicated", False), ("by sequence", True)):
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        model = parallel(Transformer(), mesh, by_sequence)
        with loss_parallel():
            losses = train(model, steps)
        apart = float((torch.tensor(losses) - torch.tensor(expected)).abs().max())
        found[name] = (apart, furthest(model, alone))
    return found


@pytest.mark.parametrize("world_size", [2, 4])
def test_plans(world_size: int) -> None:
    for found in run_ranks(of_plans, world_size, timeout=LIMIT):
        assert all(apart < CLOSE for pair in found.values() for apart in pair), found


def with_shards() -> tuple[float, float]:
    """Pairs of ranks share each layer; the pairs share weights and data (2-D: FSDP2 and tensor parallel)."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
    seeds = [[1, 2], [3, 4], [5, 6]]
    alone = Transformer()
    expected = train(alone, seeds)
    model = parallel(Transformer(), mesh["model"], by_sequence=True)
    for block in model.blocks:
        fully_shard(block, mesh=mesh["data"])
    fully_shard(model, mesh=mesh["data"])
    with loss_parallel():
        losses = train(model, [[pair[mesh.get_local_rank("data")]] for pair in seeds])
    mean = torch.tensor(losses, dtype=torch.float64)
    dist.all_reduce(mean, dist.ReduceOp.AVG, group=mesh.get_group("data"))
    apart = float((mean - torch.tensor(expected, dtype=torch.float64)).abs().max())
    return apart, furthest(model, alone)


def test_plans_with_shards() -> None:
    for apart in run_ranks(with_shards, 4, timeout=LIMIT):
        assert max(apart) < CLOSE, apart
