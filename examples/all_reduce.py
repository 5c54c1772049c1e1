"""The shortest program: torchrun --standalone --nproc-per-node=2 examples/all_reduce.py"""

import torch
import torch.distributed as dist

dist.init_process_group("ucc")
total = torch.ones(4)
dist.all_reduce(total)
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {total.tolist()}")
dist.destroy_process_group()
