"""Megatron-Core: a small GPT with tensor parallelism of two ranks, over groups that Megatron makes itself.

Megatron-Core 0.16.1 trains on CPUs with some care: the weights are initialised there, there is no dropout,
and the product of queries, keys and values is torch's. The dropout of Megatron reads the random state of a
GPU, and its own attention has a buffer on a GPU.
"""

from __future__ import annotations

from typing import Any

import problem
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.tensor_parallel.random import initialize_rng_tracker
from megatron.core.transformer import TransformerConfig
from torch import nn

VOCABULARY = 64
LENGTH = 16
HIDDEN = 256 if problem.TIMED else 32
STEPS = 24 * problem.LONGER


class AttentionOfTorch(nn.Module):
    """In place of Megatron's DotProductAttention. The dimensions are text, sample, head and width."""

    def __init__(self, **_: Any) -> None:
        super().__init__()

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any
    ) -> torch.Tensor:
        by_head = [each.permute(1, 2, 0, 3) for each in (query, key, value)]
        attended = nn.functional.scaled_dot_product_attention(*by_head, is_causal=True)
        return attended.permute(2, 0, 1, 3).flatten(start_dim=2)


def network() -> GPTModel:
    torch.manual_seed(0)  # every rank makes all weights and takes its part
    config = TransformerConfig(
        num_layers=2,
        hidden_size=HIDDEN,
        num_attention_heads=4,
        tensor_model_parallel_size=dist.get_world_size(),
        use_cpu_initialization=True,
        attention_dropout=0.0,
        hidden_dropout=0.0,
    )
    layer = get_gpt_layer_local_spec()
    layer.submodules.self_attention.submodules.core_attention = AttentionOfTorch
    return GPTModel(
        config,
        transformer_layer_spec=layer,
        vocab_size=VOCABULARY,
        max_sequence_length=LENGTH,
    )


def texts() -> tuple[torch.Tensor, torch.Tensor]:
    """The same on every rank: a token is followed by the one after the next."""
    random = torch.Generator().manual_seed(1)
    first = torch.randint(VOCABULARY, (problem.BATCH, 1), generator=random)
    tokens = (first + 2 * torch.arange(LENGTH + 1)) % VOCABULARY
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def weights_of_ranks(model: GPTModel) -> dict[str, torch.Tensor]:
    """Called by every rank. A weight that the ranks do not share out is there twice."""
    weights = {}
    for name, weight in model.named_parameters():
        of_ranks = [torch.empty_like(weight) for _ in range(dist.get_world_size())]
        dist.all_gather(of_ranks, weight.detach())
        weights |= {f"{name} of rank {rank}": part for rank, part in enumerate(of_ranks)}
    return weights


def main() -> None:
    backend, result = problem.arguments()
    dist.init_process_group(backend)
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=dist.get_world_size())
    tensors = parallel_state.get_tensor_model_parallel_group()
    assert tensors is not dist.group.WORLD and problem.made_by(tensors) == problem.made_by()
    initialize_rng_tracker(inference_rng_tracker=True)  # the other ones read the state of a GPU
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    tokens, targets = texts()
    positions = torch.arange(LENGTH).expand_as(tokens)
    hidden = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)[None, None]
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(tokens, positions, hidden, labels=targets).mean()
        loss.backward()
        optimizer.step()
        losses.append(problem.mean_over_ranks(loss))
    weights = weights_of_ranks(model)
    if dist.get_rank() == 0:
        problem.write(result, losses, weights, dist.get_backend(), problem.made_by(), dist.get_world_size())
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
