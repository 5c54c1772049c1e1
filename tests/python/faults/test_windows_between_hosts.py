"""Windows of a group that spans hosts: mapped within a host, written by messages between hosts."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist
from torch_ucc._torch import HAS_2_14
from torch_ucc.testing.hosts import Hosts, hosts

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


def deregistered_during_a_put() -> bool:
    """The signal has come, and its data are on their way, when the tensor is deregistered and used anew."""
    tensor = torch.zeros(16_000_000)
    window = dist._new_window(tensor)
    untouched = True
    if dist.get_rank() == 0:
        window.put(torch.ones(len(tensor)), 1, 0, False)
        window.tensor_deregister()
    else:
        arrival = window.wait_signal(0, True)
        for _ in range(20):
            under_way = not arrival.is_completed()
            time.sleep(0.005)
        window.tensor_deregister()
        tensor.fill_(7.0)
        time.sleep(1)
        untouched = under_way and bool((tensor == 7.0).all())
    dist.barrier()
    dist.destroy_process_group()
    return untouched


def test_nothing_arrives_in_a_deregistered_tensor(hosts_allowed: None) -> None:
    """Over a link on which the data takes half a second."""
    with hosts(2, rate="1gbit") as slow:
        assert slow.run(deregistered_during_a_put) == [True, True]


def test_puts_between_hosts(pair: Hosts) -> None:
    near, far = ["UNIFIED"] * 2, ["SEPARATE"] * 2
    assert pair.run(everybody_puts, per_host=2) == [near + far] * 2 + [far + near] * 2
