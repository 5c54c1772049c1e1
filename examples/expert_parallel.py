"""Expert parallel: each rank has its own experts. An uneven all_to_all_single sends each token to its expert.

torchrun --standalone --nproc-per-node=2 examples/expert_parallel.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd

WIDTH, TOKENS, EXPERTS_PER_RANK = 16, 50, 2


def expert(number: int) -> nn.Module:
    torch.manual_seed(number)
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)).double()


def exchange(rows: torch.Tensor, to_send: list[int], to_receive: list[int]) -> torch.Tensor:
    """Rows to and from each rank; gradients go back the same way."""
    return all_to_all_single_autograd(rows, to_receive, to_send, dist.group.WORLD)


def mixture(tokens: torch.Tensor, chosen: torch.Tensor, mine: nn.ModuleList) -> torch.Tensor:
    """Each token through the expert it chose, wherever that is."""
    ranks = dist.get_world_size()
    order = chosen.argsort(stable=True)
    counts = chosen.bincount(minlength=ranks * EXPERTS_PER_RANK).view(ranks, EXPERTS_PER_RANK)
    coming = torch.empty_like(counts)  # from each rank, for each of my experts
    dist.all_to_all_single(coming, counts)
    to_send, to_receive = counts.sum(1).tolist(), coming.sum(1).tolist()

    arrived = exchange(tokens[order], to_send, to_receive)
    whose = torch.arange(EXPERTS_PER_RANK).repeat(ranks).repeat_interleave(coming.flatten())
    by_expert = whose.argsort(stable=True)
    parts = arrived[by_expert].split(coming.sum(0).tolist())
    done = torch.cat([module(part) for module, part in zip(mine, parts, strict=True)])
    back = exchange(done[by_expert.argsort()], to_receive, to_send)
    return back[order.argsort()]


def main() -> None:
    dist.init_process_group("ucc")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    experts = ranks * EXPERTS_PER_RANK
    mine = nn.ModuleList(expert(rank * EXPERTS_PER_RANK + i) for i in range(EXPERTS_PER_RANK))
    torch.manual_seed(1000 + rank)
    tokens = torch.randn(TOKENS + rank, WIDTH, dtype=torch.float64, requires_grad=True)
    chosen = (torch.rand(len(tokens)) ** 2 * experts).long()  # the first ones are the popular ones

    outputs = mixture(tokens, chosen, mine)
    outputs.square().sum().backward()

    alone = tokens.detach().clone().requires_grad_()
    everybody = [expert(number) for number in range(experts)]
    expected = torch.stack([everybody[int(which)](token) for token, which in zip(alone, chosen, strict=True)])
    expected.square().sum().backward()
    torch.testing.assert_close(outputs, expected)
    torch.testing.assert_close(tokens.grad, alone.grad)
    if rank == 0:
        print(f"tokens of rank 0 by expert: {chosen.bincount(minlength=experts).tolist()}")
        print("outputs and gradients are those of one process with all experts")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
