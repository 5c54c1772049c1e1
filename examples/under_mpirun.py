"""The shortest program, started by the mpirun of Open MPI. It uses only the launcher of MPI, and no MPI call:

mpirun -n 2 -x MASTER_ADDR=127.0.0.1 -x MASTER_PORT=29500 python examples/under_mpirun.py
"""

import os

import torch
import torch.distributed as dist

dist.init_process_group(
    "ucc",
    rank=int(os.environ["OMPI_COMM_WORLD_RANK"]),
    world_size=int(os.environ["OMPI_COMM_WORLD_SIZE"]),
)
total = torch.ones(4)
dist.all_reduce(total)
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {total.tolist()}")
dist.destroy_process_group()
