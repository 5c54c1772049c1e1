"""torch.distributed.rpc beside ucc: rank 0 serves the parameters. The other ranks train in a group of ucc.

torchrun --standalone --nproc-per-node=3 examples/rpc_parameter_server.py
"""

import functools

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import autograd, rpc
from torch.distributed.optim import DistributedOptimizer

STEPS = 10


class Server(nn.Module):
    """Lives on rank 0. The trainers call it from afar, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.network = nn.Linear(8, 1).double()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.network(inputs)

    def parameter_references(self) -> list[rpc.RRef]:
        return [rpc.RRef(parameter) for parameter in self.parameters()]

    def weights(self) -> list[torch.Tensor]:
        return [parameter.detach().clone() for parameter in self.parameters()]


@functools.cache
def the_server() -> Server:
    """Called on rank 0 alone: the one that all trainers share."""
    return Server()


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.randn(16, 8, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
    return inputs, inputs.sum(1, keepdim=True)


def train(trainers: dist.ProcessGroup) -> list[float]:
    """Trainers take turns at the server's parameters, and share each loss over ucc."""
    me, count = dist.get_rank(trainers), dist.get_world_size(trainers)
    server = rpc.remote("rank0", the_server)
    optimizer = DistributedOptimizer(torch.optim.SGD, server.rpc_sync().parameter_references(), lr=0.1)
    losses = []
    for step in range(STEPS):
        loss = torch.zeros((), dtype=torch.float64)
        if step % count == me:
            inputs, targets = batch(step)
            with autograd.context() as context:
                found = nn.functional.mse_loss(server.rpc_sync().forward(inputs), targets)
                autograd.backward(context, [found])
                optimizer.step(context)
            loss = found.detach()
        dist.all_reduce(loss, group=trainers)  # nobody starts a step before the last one is done
        losses.append(float(loss))

    alone = Server()
    reference = torch.optim.SGD(alone.parameters(), lr=0.1)
    for step in range(STEPS):
        inputs, targets = batch(step)
        reference.zero_grad()
        nn.functional.mse_loss(alone(inputs), targets).backward()
        reference.step()
    torch.testing.assert_close(server.rpc_sync().weights(), alone.weights())
    return losses


def main() -> None:
    dist.init_process_group("ucc")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if ranks < 2:
        raise SystemExit("one rank serves, so there must be two at least")
    rpc.init_rpc(f"rank{rank}", rank=rank, world_size=ranks)
    trainers = dist.new_group([*range(1, ranks)])
    if rank == 0:
        the_server()  # before two trainers ask at once
    dist.barrier()
    if rank > 0:
        losses = train(trainers)
        assert losses[-1] < 0.5 * losses[0], losses
        if rank == 1:
            print(f"{ranks - 1} trainers, loss {losses[0]:.3f} to {losses[-1]:.3f}")
            print("the server's parameters are those of one process")
    rpc.shutdown()  # waits for all
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
