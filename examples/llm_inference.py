"""Decodes with a small language model with random weights, in tensor parallel.

Each token needs two all_reduce calls for each layer. These calls are small, so their latency decides how many
tokens the program decodes in a second. The program times the same decoding over ucc and over gloo, in turns.

torchrun --standalone --nproc-per-node=2 examples/llm_inference.py
"""

import statistics
import time

import torch
import torch.distributed as dist
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

WORDS, WIDTH, HEADS, LAYERS = 256, 128, 4, 6
TOKENS, TURNS = 32, 5


class Layer:
    """This rank's heads and columns, of weights that are drawn alike on every rank."""

    def __init__(self, random: torch.Generator, rank: int, ranks: int) -> None:
        def part(rows: int, columns: int, dim: int) -> torch.Tensor:
            whole = torch.randn(rows, columns, generator=random, dtype=torch.float64) / columns**0.5
            return whole.chunk(ranks, dim)[rank].contiguous()

        self.query, self.key, self.value = (part(WIDTH, WIDTH, 0) for _ in range(3))
        self.out = part(WIDTH, WIDTH, 1)
        self.up, self.down = part(4 * WIDTH, WIDTH, 0), part(WIDTH, 4 * WIDTH, 1)
        self.seen: list[tuple[torch.Tensor, torch.Tensor]] = []  # keys and values of the tokens so far

    def __call__(self, token: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        inner = rms_norm(token, (WIDTH,))
        query, key, value = (
            linear(inner, each).view(-1, 1, WIDTH // HEADS) for each in (self.query, self.key, self.value)
        )
        self.seen.append((key, value))
        keys, values = (torch.cat(each, dim=1) for each in zip(*self.seen, strict=True))
        attended = linear(scaled_dot_product_attention(query, keys, values).flatten(), self.out)
        dist.all_reduce(attended, group=group)
        token = token + attended
        grown = linear(silu(linear(rms_norm(token, (WIDTH,)), self.up)), self.down)
        dist.all_reduce(grown, group=group)
        return token + grown


@torch.inference_mode()
def decode(layers: list[Layer], ends: torch.Tensor, group: dist.ProcessGroup) -> tuple[list[int], float]:
    """(the words chosen, tokens a second), greedily from word 0. `ends`: embedding and head."""
    embedding, head = ends
    for layer in layers:
        layer.seen.clear()
    words = [0]
    dist.barrier(group)
    start = time.perf_counter()
    for _ in range(TOKENS):
        token = embedding[words[-1]]
        for layer in layers:
            token = layer(token, group)
        words.append(int((head @ rms_norm(token, (WIDTH,))).argmax()))
    return words, TOKENS / (time.perf_counter() - start)


def main() -> None:
    dist.init_process_group("ucc")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if HEADS % ranks:
        raise SystemExit(f"{HEADS} heads cannot be shared by {ranks} ranks")
    groups = {"ucc": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    random = torch.Generator().manual_seed(0)
    layers = [Layer(random, rank, ranks) for _ in range(LAYERS)]
    ends = torch.randn(2, WORDS, WIDTH, generator=random, dtype=torch.float64)

    # One rank with all of the weights, without any group: what must come out.
    alone = dist.new_subgroups(group_size=1)[0]
    random = torch.Generator().manual_seed(0)
    expected, _ = decode([Layer(random, 0, 1) for _ in range(LAYERS)], ends, alone)
    assert len(set(expected)) > 3, expected

    speeds: dict[str, list[float]] = {name: [] for name in groups}
    for _ in range(TURNS):
        for name, group in groups.items():
            words, speed = decode(layers, ends, group)
            assert words == expected, f"over {name}: {words}, not {expected}"
            speeds[name].append(speed)
    if rank == 0:
        medians = {name: statistics.median(each) for name, each in speeds.items()}
        for name, speed in medians.items():
            print(f"{name:<5} {speed:8.1f} tokens/s on {ranks} ranks")
        print(
            f"ucc is {medians['ucc'] / medians['gloo']:.1f} times as fast; the words are those of one process"
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
