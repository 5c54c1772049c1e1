"""TorchRec: embedding tables sharded by rows and by tables, and dense layers that its DDP replicates.

It takes the group that exists. Lookups exchange indices and vectors with all_to_all; a table that is sharded
by rows needs reduce_scatter as well.
"""

from __future__ import annotations

import itertools
from typing import Any

import problem
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise, table_wise
from torchrec.distributed.types import ShardingEnv, ShardingPlan
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

ROWS = 30
WIDTH, BATCH = (128, 512) if problem.TIMED else (8, problem.BATCH)
SHARDING = {"by_rows": row_wise(), "on_rank_0": table_wise(rank=0), "on_rank_1": table_wise(rank=1)}
FEATURES = [f"feature_{table}" for table in SHARDING]
STEPS = 24 * problem.LONGER
PICKED = 3  # rows of each table for a sample, at most


class Ranking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tables = EmbeddingBagCollection(
            tables=[
                EmbeddingBagConfig(
                    name=table, embedding_dim=WIDTH, num_embeddings=ROWS, feature_names=[feature]
                )
                for table, feature in zip(SHARDING, FEATURES, strict=True)
            ]
        )
        self.dense = nn.Linear(WIDTH * len(SHARDING), 1)

    def forward(self, picked: KeyedJaggedTensor) -> torch.Tensor:
        return self.dense(self.tables(picked).values()).squeeze(1)


def batch(step: int, rank: int) -> tuple[KeyedJaggedTensor, torch.Tensor]:
    """Which rows a sample picks from each table. The target is their mean number."""
    random = torch.Generator().manual_seed(2 * step + rank)
    lengths = torch.randint(1, PICKED + 1, (len(FEATURES) * BATCH,), generator=random)
    rows = torch.randint(ROWS, (int(lengths.sum()),), generator=random)
    means = torch.stack([each.float().mean() for each in rows.split(lengths.tolist())])
    targets = means.view(len(FEATURES), BATCH).mean(dim=0) / ROWS
    return KeyedJaggedTensor(keys=FEATURES, values=rows, lengths=lengths), targets


def whole_weights(model: nn.Module) -> dict[str, torch.Tensor]:
    """Called by every rank. ShardedTensor.gather wants a GPU if the backend serves GPUs, too, as ucc does."""
    weights = {}
    for name, weight in model.state_dict().items():
        if not isinstance(weight, ShardedTensor):
            weights[name] = weight.detach().clone()
            continue
        mine = [(shard.metadata.shard_offsets, shard.tensor.detach()) for shard in weight.local_shards()]
        of_ranks: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(of_ranks, mine)
        weights[name] = torch.full(weight.size(), torch.nan)
        for (row, column), shard in itertools.chain.from_iterable(of_ranks):
            weights[name][row : row + shard.shape[0], column : column + shard.shape[1]] = shard
    return weights


def main() -> None:
    backend, result = problem.arguments()
    dist.init_process_group(backend)
    model = Ranking()
    apply_optimizer_in_backward(torch.optim.SGD, model.tables.parameters(), {"lr": 1.0})
    plan = construct_module_sharding_plan(
        model.tables, SHARDING, local_size=dist.get_world_size(), device_type="cpu"
    )
    parallel = DistributedModelParallel(
        model,
        env=ShardingEnv.from_process_group(dist.group.WORLD),
        device=torch.device("cpu"),
        plan=ShardingPlan(plan={"tables": plan}),
        sharders=[EmbeddingBagCollectionSharder()],
    )
    dense = [weight for name, weight in parallel.named_parameters() if "dense" in name]
    optimizer = torch.optim.SGD(dense, lr=problem.LEARNING_RATE)
    losses = []
    for picked, targets in [batch(step, dist.get_rank()) for step in range(STEPS)]:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(parallel(picked), targets)
        loss.backward()
        optimizer.step()
        losses.append(problem.mean_over_ranks(loss))
    weights = whole_weights(parallel)
    if dist.get_rank() == 0:
        problem.write(result, losses, weights, dist.get_backend(), problem.made_by(), dist.get_world_size())


if __name__ == "__main__":
    main()
