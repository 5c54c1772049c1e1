"""Collectives in code that inductor makes, without and with its passes that overlap and bucket them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from side_by_side import assert_same
from test_compiled import CASES, inputs
from torch_ucc._torch import functional
from torch_ucc.testing import run_ranks

functional_all_gather_single = functional("all_gather_single")
functional_reduce_scatter_single = functional("reduce_scatter_single")

pytestmark = [pytest.mark.multirank, pytest.mark.slow]


LIMIT = 600.0
"""Seconds for the ranks of a test, which wait for a compiler that takes some for each of ten files."""

# The others are the same in the graph as one of these.
PROGRAM = [case for case in CASES if re.match("functional_|.*_uneven", case.function.__name__)]


def everything(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([case.function(x) for case in PROGRAM])


OVERLAP_AND_BUCKETS: dict[str, Any] = {
    "reorder_for_compute_comm_overlap": True,
    "reorder_for_compute_comm_overlap_passes": [
        "reorder_communication_preserving_peak_memory",
        "sink_waits_iterative",
        "reorder_communication_preserving_peak_memory",
    ],
    "bucket_all_gathers_fx": "all",
    "bucket_reduce_scatters_fx": "all",
    "bucket_all_reduces_fx": "all",
}


def one_millisecond(node: torch.fx.Node, size: int | None = None) -> float:
    return 1.0


# The scheduler of overlaps asks triton for a GPU's bandwidth to estimate times with, unless it is told them.
SCHEDULED: dict[str, Any] = {
    **OVERLAP_AND_BUCKETS,
    "aten_distributed_optimizations.enable_overlap_scheduling": True,
    "aten_distributed_optimizations.collective_bucketing": True,
    "aten_distributed_optimizations.insert_overlap_deps": True,
    "aten_distributed_optimizations.enable_fusion_regions": False,
    "aten_distributed_optimizations.compute_estimator": "analytical",
    "aten_distributed_optimizations.custom_runtime_estimation": one_millisecond,
}
# In this process, and without the precompiled headers that many compilations would pay back.
SOON: dict[str, Any] = {"compile_threads": 1, "cpp_cache_precompile_headers": False}


def by_inductor(settings: Mapping[str, Any]) -> int:
    from torch._inductor import config

    rank = dist.get_rank()
    compiled = torch.compile(everything, fullgraph=True, backend="inductor")
    with config.patch({**SOON, **settings}):
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


@pytest.mark.parametrize("settings", [{}, OVERLAP_AND_BUCKETS], ids=["plain", "overlap and buckets"])
def test_by_inductor(settings: Mapping[str, Any], env: Mapping[str, str]) -> None:
    """Which may reorder collectives, and give the memory of one's result to another."""
    assert run_ranks(by_inductor, 2, settings, timeout=LIMIT, env=env) == [1, 1]


def three_of_each(x: torch.Tensor) -> torch.Tensor:
    """Nobody needs another's result, so that each kind fits into one bucket."""
    group = dist.group.WORLD
    scaled = [x * factor for factor in (2, 3, 4)]
    reduced = [funcol.all_reduce(each, "sum", group) for each in scaled]
    gathered = [functional_all_gather_single(each, 0, group) for each in scaled]
    scattered = [functional_reduce_scatter_single(each, "sum", 0, group) for each in scaled]
    return torch.cat([*reduced, *gathered, *scattered])


def collectives_in_code(settings: Mapping[str, Any]) -> dict[str, int]:
    """How often the compiled code calls each, whatever the form; and that it is right."""
    from torch._inductor import config
    from torch._inductor.utils import run_and_get_code

    xs = inputs(0)
    compiled = torch.compile(three_of_each, fullgraph=True, backend="inductor")
    with config.patch({**SOON, **settings}):
        got, (code,) = run_and_get_code(compiled, xs[dist.get_rank()])
    assert_same(got, three_of_each(xs[dist.get_rank()]) + 0, "compiled")
    kinds = "all_reduce|all_gather_into_tensor|reduce_scatter_tensor"
    return dict(Counter(re.findall(rf"torch\.ops\._c10d_functional\.({kinds})\w*\.default\(", code)))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {"all_reduce": 3, "all_gather_into_tensor": 3, "reduce_scatter_tensor": 3}),
        (SCHEDULED, {"all_reduce": 1, "all_gather_into_tensor": 1, "reduce_scatter_tensor": 1}),
    ],
    ids=["plain", "overlap scheduled, in buckets"],
)
def test_collectives_in_code(
    settings: Mapping[str, Any], expected: Mapping[str, int], env: Mapping[str, str]
) -> None:
    assert run_ranks(collectives_in_code, 2, settings, timeout=LIMIT, env=env) == [expected] * 2
