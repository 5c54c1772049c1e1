"""FSDP2: the parameters, gradients and optimizer state of a small transformer are spread over the ranks.

torchrun --standalone --nproc-per-node=2 examples/fsdp_transformer.py
"""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

WORDS, WIDTH, LENGTH, BATCH, STEPS = 32, 64, 16, 8, 10


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(words.shape[1])
        inner = self.embedding(words)
        for block in self.blocks:
            inner = block(inner, src_mask=mask, is_causal=True)
        return self.head(inner)


def sequences(step: int, rank: int) -> torch.Tensor:
    """Each counts up from somewhere: the next word can be learned."""
    start = torch.randint(WORDS, (BATCH, 1), generator=torch.Generator().manual_seed(100 * step + rank))
    return (start + torch.arange(LENGTH + 1)) % WORDS


def loss_of(model: nn.Module, words: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())


def main() -> None:
    dist.init_process_group("ucc")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    alone = Transformer()
    model = copy.deepcopy(alone)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    reference = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9)

    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, sequences(step, rank))
        loss.backward()
        optimizer.step()
        # What one process does that sees the batches of all.
        reference.zero_grad()
        expected = torch.stack([loss_of(alone, sequences(step, each)) for each in range(ranks)]).mean()
        expected.backward()
        reference.step()
        losses.append(expected.item())
    for (name, parameter), whole in zip(model.named_parameters(), alone.parameters(), strict=True):
        assert isinstance(parameter, DTensor), name
        torch.testing.assert_close(parameter.full_tensor(), whole, rtol=1e-4, atol=1e-5)
    assert losses[-1] < 0.8 * losses[0], losses
    if rank == 0:
        held = sum(parameter.to_local().numel() for parameter in model.parameters())
        total = sum(parameter.numel() for parameter in model.parameters())
        print(f"rank 0 holds {held} of {total} parameters; loss {losses[0]:.3f} to {losses[-1]:.3f}")
        print("all parameters are those of one process")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
