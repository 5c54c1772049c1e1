"""Collectives in code that inductor makes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
import torch
import torch.distributed as dist
from side_by_side import assert_same
from test_compiled import CASES, inputs
from torch_ucc.testing import run_ranks

pytestmark = [pytest.mark.multirank, pytest.mark.slow]


LIMIT = 600.0
"""Seconds for the ranks of a test, which wait for a compiler that takes some for each of ten files."""

# The others are the same in the graph as one of these.
PROGRAM = [case for case in CASES if re.match("functional_|.*_uneven", case.function.__name__)]


def everything(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([case.function(x) for case in PROGRAM])


# In this process, and without the precompiled headers that many compilations would pay back.
SOON: dict[str, Any] = {"compile_threads": 1, "cpp_cache_precompile_headers": False}


def by_inductor() -> int:
    from torch._inductor import config

    rank = dist.get_rank()
    compiled = torch.compile(everything, fullgraph=True, backend="inductor")
    with config.patch(SOON):
        for seed in range(2):
            xs = inputs(seed)
            expected = torch.cat([case.expected(xs, rank) for case in PROGRAM])
            assert_same(compiled(xs[rank]), expected, f"rank {rank}, call {seed}")
    assert not torch._dynamo.utils.counters["graph_break"]
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What is compiled once is there for all tests."""
    return {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path_factory.mktemp("inductor"))}


def test_by_inductor(env: Mapping[str, str]) -> None:
    """Which may reorder collectives, and give the memory of one's result to another."""
    assert run_ranks(by_inductor, 2, timeout=LIMIT, env=env) == [1, 1]
