"""torchft, hybrid sharding: FSDP2 in each of two replicas of two processes, torchft's Manager between them.

The processes of a replica are a job with a default group of its own. FSDP2 hands each shard of the gradients
to a hook, which averages it over the replicas by the Manager's group, as torchtitan does. replicas.py has
the training, and says which replicas are killed: rank 0 dies by SIGKILL, and rank 1 of its replica, which
waits for it in a collective, must end with an error.
"""

from __future__ import annotations

import replicas
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torchft import Manager
from torchft.process_group import ManagedProcessGroup

RANKS = 2  # of a replica


def parallel(manager: Manager, network: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("shard",))
    over_replicas = ManagedProcessGroup(manager)
    over_replicas.register("replicate")

    def average(gradients: torch.Tensor) -> None:
        dist.all_reduce(gradients, op=dist.ReduceOp.AVG, group=over_replicas)

    for layer in network:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(network, mesh=mesh)
    for module in network.modules():
        if isinstance(module, FSDPModule):
            module.set_all_reduce_hook(average)
    return network


if __name__ == "__main__":
    replicas.main(__file__, RANKS, parallel)
