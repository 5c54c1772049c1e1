"""Tensor and sequence parallel with DTensor: a rank has a part of each layer and a part of the sequence.

torchrun --standalone --nproc-per-node=2 examples/tensor_parallel.py
"""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

BATCH, LENGTH, WIDTH = 2, 12, 32


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs + self.down(nn.functional.gelu(self.up(self.norm(inputs))))


def main() -> None:
    dist.init_process_group("ucc")
    torch.manual_seed(0)
    alone = nn.Sequential(Block(), Block()).double()
    inputs = torch.randn(BATCH, LENGTH, WIDTH, dtype=torch.float64)

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = copy.deepcopy(alone)
    for block in model:
        plan = {
            "norm": SequenceParallel(),  # each rank its part of the sequence
            "up": ColwiseParallel(
                input_layouts=Shard(1)
            ),  # all-gather of the sequence, then half of the columns
            "down": RowwiseParallel(
                output_layouts=Shard(1), use_local_output=False
            ),  # sums, reduce-scattered
        }
        parallelize_module(block, mesh, plan)
    whole_to_parts = PrepareModuleInput(
        input_layouts=Replicate(), desired_input_layouts=Shard(1), use_local_output=False
    )
    parallelize_module(model, mesh, whole_to_parts)

    outputs = model(inputs).full_tensor()
    outputs.square().mean().backward()
    expected = alone(inputs)
    expected.square().mean().backward()
    torch.testing.assert_close(outputs, expected)
    for (name, parameter), whole in zip(model.named_parameters(), alone.parameters(), strict=True):
        gradient = parameter.grad
        assert isinstance(gradient, DTensor), name
        torch.testing.assert_close(gradient.full_tensor(), whole.grad)
    if dist.get_rank() == 0:
        weight = model[0].up.weight
        print(f"rank 0 holds {list(weight.to_local().shape)} of a weight of {list(weight.shape)}")
        print("outputs and gradients are those of one process")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
