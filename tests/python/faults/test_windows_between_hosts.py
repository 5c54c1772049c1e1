"""Windows of a group that spans hosts: mapped within a host, written by messages between hosts."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch_ucc._torch import HAS_2_14
from torch_ucc.testing.hosts import Hosts

pytestmark = [
    pytest.mark.multirank,
    pytest.mark.skipif(not HAS_2_14, reason="torch before 2.14 has no windows"),
]

CPU = torch.device("cpu")


def everybody_puts() -> list[str]:
    """To everybody else, and to oneself. Returns how the tensors of the ranks are reached."""
    rank, size = dist.get_rank(), dist.get_world_size()
    numel = 50_000
    tensor = dist.group.WORLD._get_backend(CPU).allocate_tensor(size * numel, dtype=torch.float32, device=CPU)
    window = dist._new_window(tensor)
    for turn in range(5):
        for other in range(size):
            window.put(torch.full((numel,), rank + turn * 100.0), other, rank * numel, False)
        for other in range(size):
            window.wait_signal(other, False)
            assert torch.equal(
                tensor[other * numel : (other + 1) * numel], torch.full((numel,), other + turn * 100.0)
            )
        dist.barrier()
    found = [window.get_attr(other).access_type.name for other in range(size)]
    window.tensor_deregister()
    dist.destroy_process_group()
    return found


def test_puts_between_hosts(pair: Hosts) -> None:
    near, far = ["UNIFIED"] * 2, ["SEPARATE"] * 2
    assert pair.run(everybody_puts, per_host=2) == [near + far] * 2 + [far + near] * 2
