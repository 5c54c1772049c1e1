"""TORCH_UCC_CROSS_CHECK: ranks on several hosts that do not make the same call all get an error, at once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from deaths import failure
from torch_ucc.testing.hosts import Hosts

pytestmark = pytest.mark.multirank

CHECKED = {"TORCH_UCC_CROSS_CHECK": "1"}

CALLS: dict[str, tuple[Callable[[], object], Callable[[], object], str, str]] = {
    "op": (
        lambda: dist.all_reduce(torch.ones(4)),
        lambda: dist.broadcast(torch.ones(4), 0),
        "all_reduce",
        "broadcast",
    ),
    "size": (
        lambda: dist.all_reduce(torch.ones(4)),
        lambda: dist.all_reduce(torch.ones(5)),
        "float32[4]",
        "float32[5]",
    ),
    "dtype": (
        lambda: dist.all_reduce(torch.ones(4)),
        lambda: dist.all_reduce(torch.ones(4, dtype=torch.int32)),
        "float32[4]",
        "int32[4]",
    ),
    "reduce op": (
        lambda: dist.all_reduce(torch.ones(4)),
        lambda: dist.all_reduce(torch.ones(4), dist.ReduceOp.MAX),
        "SUM",
        "MAX",
    ),
    "root": (
        lambda: dist.broadcast(torch.ones(4), 0),
        lambda: dist.broadcast(torch.ones(4), 1),
        "root 0",
        "root 1",
    ),
}


def differ(what: str) -> tuple[str, str, float]:
    """The last rank calls something else. Afterwards all reduce: the group stays usable."""
    common, other, *_ = CALLS[what]
    is_last = dist.get_rank() == dist.get_world_size() - 1
    kind, error, _ = failure(other if is_last else common)
    total = torch.ones(3)
    dist.all_reduce(total)
    return kind, error, total.sum().item()


@pytest.mark.parametrize("what", CALLS)
@pytest.mark.parametrize("per_host", [1, 2])
def test_every_rank_is_told_both_calls(pair: Hosts, what: str, per_host: int) -> None:
    _, _, first, second = CALLS[what]
    for kind, error, total in pair.run(differ, what, per_host=per_host, env=CHECKED, group_timeout=60.0):
        assert (kind, total) == ("ValueError", 6.0 * per_host), (kind, error)
        assert "do not make the same call" in error and first in error and second in error, error
        assert f"rank {2 * per_host - 1} calls" in error, error
