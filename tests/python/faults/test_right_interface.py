"""Hosts with two interfaces, of which one reaches the other host: it is the one that is used, without being
told."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch_ucc
from torch_ucc import testing
from torch_ucc.testing import RankError
from torch_ucc.testing.hosts import Hosts

pytestmark = pytest.mark.multirank


def total_and_description() -> tuple[float, dict[str, Any], dict[str, str]]:
    tensor = torch.ones(1 << 18)
    dist.all_reduce(tensor)
    mine = {name: value for name, value in os.environ.items() if name.startswith(("UCX_", "UCC_"))}
    return float(tensor[0]), torch_ucc.describe(), mine


@pytest.mark.parametrize(
    "dead_ends",
    [
        {0: "10.99.0.1"},
        {0: "10.99.0.1", 1: "10.98.0.1"},
        {0: "10.99.0.1", 1: "10.99.0.1"},
    ],
    ids=["one host has it", "both have their own", "both have the same address there"],
)
def test_a_dead_end_with_the_default_route_is_not_used(pair: Hosts, dead_ends: dict[int, str]) -> None:
    for i, address in dead_ends.items():
        pair.add_dead_end(i, address)
    for total, about, environment in pair.run(total_and_description, per_host=2):
        assert total == 4.0
        assert about["transports"]["other host"] == ["tcp/eth0"] and about["differences"] == []
        assert [each["names"] for each in about["plan"]["devices"]] == [("eth0",)] * 4
        named = [[each["name"] for each in host["interfaces"]] for host in about["topology"]["hosts"]]
        assert named == [["dark0", "eth0", "lo"] if i in dead_ends else ["eth0", "lo"] for i in range(2)]
        assert environment == {}, "nothing is left in the environment"


def test_what_the_user_set_decides_over_the_plan(pair: Hosts) -> None:
    pair.add_dead_end(0, "10.99.0.1")
    for _, about, _ in pair.run(total_and_description, env={"UCX_NET_DEVICES": "eth0"}):
        devices = next(each for each in about["plan"]["choices"] if each["about"] == "network devices")
        assert devices["by"] == "UCX_NET_DEVICES=eth0" and about["transports"]["other host"] == ["tcp/eth0"]


def test_a_setting_that_leaves_no_way_to_the_other_host_is_an_error_on_all(pair: Hosts) -> None:
    with pytest.raises(RankError) as caught:
        pair.run(total_and_description, env={"UCX_TLS": "sm,self"})
    wanted = "UCX_TLS=sm,self on rank 0 (host host0) leaves no way to rank 1 (host host1). Allow tcp"
    assert [wanted in text for text in caught.value.errors.values()] == [True, True]


def test_so_is_one_on_one_host() -> None:
    with pytest.raises(RankError) as caught:
        testing.run_ranks(total_and_description, 2, env={"UCX_TLS": "rc"})
    wanted = "UCX_TLS=rc on rank 0"
    assert [wanted in text for text in caught.value.errors.values()] == [True, True]
