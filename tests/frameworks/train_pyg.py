"""PyTorch Geometric: each rank convolves the whole graph and learns from its part of the nodes.

The program makes the group and wraps the model in torch's DDP, as in the examples of PyTorch Geometric.
"""

from __future__ import annotations

import problem
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv
from torch_geometric.utils import erdos_renyi_graph, scatter

NODES = 200
FEATURES, HIDDEN = (1024, 1024) if problem.TIMED else (8, 16)  # timed: 4.2 MB of gradients
STEPS = 40 * problem.LONGER
LEARNING_RATE = 8 / HIDDEN


def graph() -> Data:
    """What a node is to learn: the mean of one feature of its neighbours."""
    torch.manual_seed(1)
    edges = erdos_renyi_graph(NODES, edge_prob=0.03)
    features = torch.randn(NODES, FEATURES)
    source, target = edges
    means = scatter(features[source, 0], target, dim_size=NODES, reduce="mean")
    return Data(x=features, edge_index=edges, y=means)


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = GCNConv(FEATURES, HIDDEN)
        self.second = nn.Linear(HIDDEN, 1)

    def forward(self, data: Data) -> torch.Tensor:
        return self.second(self.first(data.x, data.edge_index).tanh()).squeeze(1)


def main() -> None:
    backend, result = problem.arguments()
    dist.init_process_group(backend)
    network = Convolutions()
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9)
    data = graph()
    mine = slice(dist.get_rank(), NODES, dist.get_world_size())
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(data)[mine], data.y[mine])
        loss.backward()
        optimizer.step()
        losses.append(problem.mean_over_ranks(loss))
    problem.save(result, losses, network)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
