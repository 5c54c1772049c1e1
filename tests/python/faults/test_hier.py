"""Several hosts with several ranks each, in one UCC team. UCC's hierarchical collectives are used and right
where somebody wants them; and what is said of a call between hosts is what it takes."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import torch.distributed as dist
from test_hosts import values
from torch_ucc.testing.hosts import hosts
from torch_ucc.topology import ask_routes
from torch_ucc.topology.plan import OTHER_HOST, SAME_HOST
from torch_ucc.topology.routes import Route

pytestmark = pytest.mark.multirank

SIZES = (1, 1000, 1 << 18)


def results_and_routes() -> tuple[list[dict[str, list[float]]], list[Route]]:
    """The routes of something small: UCC's hier leaves an all_reduce of more than 4 KiB to basic."""
    with tempfile.TemporaryDirectory() as name:
        ask_routes.listen(Path(name))
        dist.init_process_group("ucc")
        found = [values(numel) for numel in SIZES]
        routes = [ask_routes.ask(op, 1024, Path(name)) for op in ("all_reduce", "broadcast", "send")]
        dist.destroy_process_group()
    return found, routes


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("layers", ["basic", "hier,basic"])
def test_collectives_between_hosts(hosts_allowed: None, count: int, layers: str) -> None:
    size = 2 * count
    with hosts(count) as made:
        env = {"UCC_CLS": layers, "TORCH_UCC_LEVELS_FROM": "16g"}
        told = made.run(results_and_routes, per_host=2, init=False, env=env, timeout=240)
    for rank, (results, _) in enumerate(told):
        for each in results:
            assert each["total"] == [size * (size + 1) / 2]
            assert each["gathered"] == [float(other) for other in range(size)]
            assert each["exchanged"] == [10.0 * other + rank for other in range(size)]
    reduced, broadcast, sent = told[0][1]
    layer = "CL_HIER" if "hier" in layers else "CL_BASIC"
    for route in (reduced, broadcast):
        assert [each.by.split()[0] for each in route.collectives] == [layer], route
    for route in (reduced, sent):
        over = {
            peers: {row.over for row in route.protocols if row.peers == peers}
            for peers in (SAME_HOST, OTHER_HOST)
        }
        assert over[OTHER_HOST] == {"tcp/eth0"}, route
        if route is sent:
            assert not over[SAME_HOST], "messages within a host need no transport of UCX"
        else:
            assert over[SAME_HOST] and not any("tcp" in each for each in over[SAME_HOST]), route
