"""Two replicas of a pipeline over torch.distributed.rpc, which average their gradients over ucc.

Ranks 0 and 1 are the two stages of one replica. Ranks 2 and 3 are the two stages of the other replica. The
rank of the first stage drives its replica: it calls both stages through remote references, and distributed
autograd goes back through both. Each stage then averages its gradients with the same stage of the other
replica. It does this in the thread that serves the call.

torchrun --standalone --nproc-per-node=4 examples/rpc_pipeline.py
"""

import functools

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import autograd, rpc
from torch.distributed.optim import DistributedOptimizer

STAGES, REPLICAS, STEPS, WIDTH = 2, 2, 10, 8


def layers(stage: int) -> nn.Module:
    torch.manual_seed(stage)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()).double()


class Stage(nn.Module):
    """Lives on its rank; `twins` is the group of the ranks with the same stage."""

    def __init__(self, number: int, twins: dist.ProcessGroup) -> None:
        super().__init__()
        self.layers, self.twins = layers(number), twins

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layers(inputs)

    def parameter_references(self) -> list[rpc.RRef]:
        return [rpc.RRef(parameter) for parameter in self.parameters()]

    def average_gradients(self, context: int) -> None:
        gradients = autograd.get_gradients(context)
        for parameter in self.parameters():
            dist.all_reduce(gradients[parameter], op=dist.ReduceOp.AVG, group=self.twins)


@functools.cache
def twins_of(stage: int) -> dist.ProcessGroup:
    """Made by all ranks, in the same order."""
    return dist.new_group([replica * STAGES + stage for replica in range(REPLICAS)])


@functools.cache
def this_stage() -> Stage:
    number = dist.get_rank() % STAGES
    return Stage(number, twins_of(number))


def batch(step: int, replica: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(step * REPLICAS + replica)
    inputs = torch.randn(16, WIDTH, generator=random, dtype=torch.float64)
    return inputs, inputs.flip(1).tanh()


def drive(replica: int) -> list[float]:
    """On the first stage's rank: the losses of its replica."""
    owners = [f"rank{replica * STAGES + stage}" for stage in range(STAGES)]
    stages = [rpc.remote(owner, this_stage) for owner in owners]
    parameters = [each for stage in stages for each in stage.rpc_sync().parameter_references()]
    optimizer = DistributedOptimizer(torch.optim.SGD, parameters, lr=0.5)
    losses = []
    for step in range(STEPS):
        inputs, targets = batch(step, replica)
        with autograd.context() as context:
            for stage in stages:
                inputs = stage.rpc_sync().forward(inputs)
            loss = nn.functional.mse_loss(inputs, targets)
            autograd.backward(context, [loss])
            for done in [stage.rpc_async().average_gradients(context) for stage in stages]:
                done.wait()
            optimizer.step(context)
        losses.append(loss.item())
    return losses


def train_alone() -> nn.Sequential:
    model = nn.Sequential(*(layers(stage) for stage in range(STAGES)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(STEPS):
        inputs, targets = (
            torch.cat(each) for each in zip(*(batch(step, r) for r in range(REPLICAS)), strict=True)
        )
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    return model


def main() -> None:
    dist.init_process_group("ucc")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if ranks != STAGES * REPLICAS:
        raise SystemExit(f"{REPLICAS} replicas of {STAGES} stages are {REPLICAS * STAGES} ranks, not {ranks}")
    for stage in range(STAGES):
        twins_of(stage)
    rpc.init_rpc(f"rank{rank}", rank=rank, world_size=ranks)
    mine = this_stage()
    dist.barrier()
    if rank % STAGES == 0:
        losses = drive(rank // STAGES)
        assert losses[-1] < losses[0], losses
        if rank == 0:
            print(f"{REPLICAS} replicas of {STAGES} stages, loss {losses[0]:.3f} to {losses[-1]:.3f}")
    rpc.shutdown()  # waits for all
    expected = train_alone()[rank % STAGES]
    torch.testing.assert_close([*mine.parameters()], [*expected.parameters()])
    dist.barrier()
    if rank == 0:
        print("the parameters of all stages are those of one process")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
