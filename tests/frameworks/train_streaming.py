"""Streaming of MosaicML: each rank reads its part of a data set of shards, through workers of its DataLoader.

StreamingDataset shuffles the samples over all ranks and workers anew in each epoch. It uses the default group
to agree on the shared memory of the processes of a host. The result has the order in which each rank read the
samples. The program fails if an epoch does not have each sample once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import problem
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

WORKERS = 2  # of each rank
SHARD = 256 * problem.WIDTH  # bytes


def import_streaming() -> Any:
    """Streaming imports torchvision, which it needs for data sets of images only.

    PyPI's torchvision is built for CUDA. Without CUDA it does not load its operators, and its import fails
    because these two are not there. Nothing here calls them.
    """
    for operator in ("nms", "qnms"):
        signature = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        torch.library.define(f"torchvision::{operator}", signature)
    import streaming

    return streaming


streaming = import_streaming()


def write_shards(folder: Path) -> None:
    inputs, targets = problem.data().tensors
    columns = {"number": "int", "input": f"ndarray:float32:{problem.WIDTH}", "target": "ndarray:float32:1"}
    with streaming.MDSWriter(out=str(folder), columns=columns, hashes=["sha1"], size_limit=SHARD) as shards:
        for number, (sample, target) in enumerate(zip(inputs, targets, strict=True)):
            shards.write({"number": number, "input": sample.numpy(), "target": target.numpy()})
    assert len([*folder.glob("shard.*")]) > WORKERS * dist.get_world_size()


def order_of_ranks(numbers: list[int], epoch: int) -> torch.Tensor:
    """Which samples each rank has read, in order: one row a rank. The samples are checked."""
    mine = torch.tensor(numbers)
    rows = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, mine)
    order = torch.stack(rows)
    assert order.flatten().sort().values.tolist() == [*range(problem.SAMPLES)], f"epoch {epoch}: {order}"
    return order


def main() -> None:
    backend, result = problem.arguments()
    dist.init_process_group(backend)
    folder = Path(f"{result}.shards")
    if dist.get_rank() == 0:
        write_shards(folder)
    dist.barrier()
    samples = streaming.StreamingDataset(
        local=str(folder), shuffle=True, shuffle_seed=2, batch_size=problem.BATCH, num_canonical_nodes=2
    )
    batches = DataLoader(samples, batch_size=problem.BATCH, num_workers=WORKERS)
    network = problem.network()
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=problem.LEARNING_RATE, momentum=0.9)
    losses, orders = [], {}
    for epoch in range(problem.EPOCHS):
        numbers = []
        for batch in batches:
            numbers += batch["number"].tolist()
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(batch["input"]), batch["target"])
            loss.backward()
            optimizer.step()
            losses.append(problem.mean_over_ranks(loss))
        orders[f"order in epoch {epoch}"] = order_of_ranks(numbers, epoch)
    assert not torch.equal(orders["order in epoch 0"], orders["order in epoch 1"]), "nothing was shuffled"
    weights = {**problem.weights_of(network), **orders}
    if dist.get_rank() == 0:
        problem.write(result, losses, weights, dist.get_backend(), problem.made_by(), dist.get_world_size())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
