"""The table of a plan: what carries each operation, by its size."""

from __future__ import annotations

import pytest
from jobs import HERE
from torch_ucc.topology.explain import paths
from torch_ucc.topology.inventory import from_json
from torch_ucc.topology.job import Job, copies, uniform
from torch_ucc.topology.plan import make_plan

VM = from_json((HERE / "machines" / "small_vm.json").read_text())


def job(hosts: int, ranks: int, **settings: str) -> Job:
    return uniform(copies(VM, hosts), ranks, settings)


def table(made: Job) -> dict[tuple[str, str], tuple[str, str]]:
    """Path and reason by operation and size."""
    rows = paths(made, make_plan(made))
    return {(operations.split(",")[0], size): (path, why) for operations, size, path, why in rows}


IN_LEVELS = "shared memory on each host, UCC over TCP between hosts"


@pytest.mark.parametrize(
    ("hosts", "ranks", "settings", "key", "path"),
    [
        (1, 2, {}, ("all_reduce", "all"), "shared memory"),
        (1, 2, {}, ("send", "all"), "shared memory"),
        (2, 1, {}, ("all_reduce", "all"), "UCC over TCP"),
        (2, 1, {}, ("send", "all"), "UCX over TCP"),
        (2, 2, {}, ("all_gather", "all"), IN_LEVELS),
        (2, 2, {}, ("all_to_all", "all"), "shared memory on each host, UCX over TCP between hosts"),
        (2, 2, {"TORCH_UCC_LEVELS_FROM": "64k"}, ("all_reduce", "below 64k"), "UCC over TCP"),
        (2, 2, {"TORCH_UCC_LEVELS_FROM": "64k"}, ("all_reduce", "from 64k"), IN_LEVELS),
        (2, 2, {"TORCH_UCC_HOST_PATH": "0"}, ("all_reduce", "all"), "UCC over TCP"),
        (
            1,
            2,
            {"TORCH_UCC_HOST_PATH": "0", "UCX_TLS": "tcp,self"},
            ("send", "all"),
            "UCX over UCX_TLS=tcp,self",
        ),
    ],
)
def test_a_path(hosts: int, ranks: int, settings: dict[str, str], key: tuple[str, str], path: str) -> None:
    assert table(job(hosts, ranks, **settings))[key][0] == path


def test_hosts_with_different_numbers_of_ranks() -> None:
    """Their ranks cannot exchange equal shares."""
    even = job(2, 2)
    uneven = Job(even.hosts, even.ranks[:3])
    found = table(uneven)
    assert found["all_reduce", "all"][0] == IN_LEVELS
    assert found["all_gather", "all"] == ("UCC over TCP", "the hosts have different numbers of ranks")


def test_why_ucc_serves_a_job_on_one_host() -> None:
    assert table(job(1, 2, TORCH_UCC_HOST_PATH="0"))["all_reduce", "all"][1] == "TORCH_UCC_HOST_PATH is 0"
