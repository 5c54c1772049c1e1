"""Counts steps, in a file, by the size of their world; ends once it is alone after others had been there.

until_alone.py STEPS_FILE
"""

import datetime
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

STEPS_ALONE = 5

steps = Path(sys.argv[1])
dist.init_process_group("ucc", timeout=datetime.timedelta(seconds=60))
world_size = dist.get_world_size()
alone_after_others = world_size == 1 and steps.exists() and "2" in steps.read_text().split()
left = STEPS_ALONE if alone_after_others else sys.maxsize
while left:
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == world_size
    if dist.get_rank() == 0:
        with steps.open("a") as file:
            file.write(f"{world_size}\n")
    left -= 1
    time.sleep(0.05)  # an agent sees a membership that changed between two looks of its own
dist.destroy_process_group()
