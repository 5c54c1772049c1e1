"""Who could connect to a rank: on one host, nobody."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch_ucc.testing import run_ranks

pytestmark = pytest.mark.multirank

LOOPBACK = {"0100007F", "0" * 24 + "01000000"}  # as the kernel prints 127.0.0.1 and ::1
LISTENING = "0A"


def addresses_listened_on() -> set[str]:
    dist.all_reduce(torch.ones(4))
    dist.recv(torch.ones(4)) if dist.get_rank() else dist.send(torch.ones(4), 1)
    own = {
        f"socket:[{inode}]": address.rpartition(":")[0]
        for table in ("tcp", "tcp6")
        for _, address, _, state, *_, inode in (
            line.split()[:10] for line in Path("/proc/self/net", table).read_text().splitlines()[1:]
        )
        if state == LISTENING
    }
    open_files = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            open_files.append(str(entry.readlink()))
        except FileNotFoundError:  # that of the listing itself
            continue
    return {own[name] for name in open_files if name in own}


BY_UCX = {"TORCH_UCC_HOST_PATH": "0"}
CASES = {
    "through memory": {},
    "by the plan": BY_UCX,
    "by torchrun": {**BY_UCX, "LOCAL_WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "1"},
}


@pytest.mark.parametrize("said", CASES.values(), ids=list(CASES))
def test_ranks_of_one_host_listen_nowhere(said: dict[str, str]) -> None:
    assert run_ranks(addresses_listened_on, 2, env=said) == [set(), set()]


def test_what_the_user_says_counts() -> None:
    """Which shows that the ports are seen, too."""
    for addresses in run_ranks(addresses_listened_on, 2, env={**BY_UCX, "UCX_TLS": "all"}):
        assert addresses and addresses <= LOOPBACK


def test_interfaces_that_the_user_names_count() -> None:
    found = {entry.name for entry in Path("/sys/class/net").iterdir()}
    interfaces = sorted(found - {"lo", "bonding_masters"})
    if not interfaces:
        pytest.skip("this machine has no interface but the loopback")
    env = {**BY_UCX, "UCX_TLS": "all", "UCX_NET_DEVICES": ",".join(interfaces)}
    for addresses in run_ranks(addresses_listened_on, 2, env=env):
        assert addresses - LOOPBACK
