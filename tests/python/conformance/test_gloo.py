"""The same calls on a ucc and a gloo group of the same ranks, and our cases on gloo, wherever gloo can."""

import random
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from calls import Failures, Report, assert_all_well
from layouts import contiguous
from points import Case
from reference import exactly, reduce_op
from table import CASES, at_random
from torch_ucc._torch import all_gather_single
from torch_ucc.testing import run_ranks

pytestmark = pytest.mark.multirank

DTYPES = (
    torch.bool,
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
)
OPS = ("SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "AVG")


def gloo_can(dtype: torch.dtype, op: str) -> bool:
    if op == "AVG":
        return dtype.is_floating_point
    if op in ("BAND", "BOR", "BXOR"):
        return not dtype.is_floating_point and dtype is not torch.bool
    # gloo adds the bytes of booleans, and multiplies them.
    return dtype is not torch.bool or op in ("MIN", "MAX")


def small_values(dtype: torch.dtype, numel: int, seed: int) -> torch.Tensor:
    """Small whole numbers: whatever the order of addition, the result is exact in every type."""
    random = torch.Generator().manual_seed(seed)
    low = 0 if dtype in (torch.bool, torch.uint8) else -3
    return torch.randint(low, 2 if dtype is torch.bool else 4, (numel,), generator=random).to(dtype)


def side_by_side() -> Report:
    gloo = dist.new_group(backend="gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    failures = Failures()
    seed = rank
    for dtype in DTYPES:
        for numel in (0, 1, 257, 70_000, 300_000):
            for op in OPS:
                if not gloo_can(dtype, op):
                    continue
                seed += size
                ours = small_values(dtype, numel, seed)
                theirs = ours.clone()
                dist.all_reduce(ours, reduce_op(op))
                dist.all_reduce(theirs, reduce_op(op), group=gloo)
                failures.note(("all_reduce", dtype, op, numel), exactly(theirs).wrong(ours))
            mine = small_values(dtype, numel, seed + 7)
            ours, theirs = mine.clone(), mine.clone()
            dist.broadcast(ours, size - 1)
            dist.broadcast(theirs, size - 1, group=gloo)
            failures.note(("broadcast", dtype, numel), exactly(theirs).wrong(ours))
            ours, theirs = (torch.empty(numel * size, dtype=dtype) for _ in range(2))
            all_gather_single(ours, mine)
            all_gather_single(theirs, mine, group=gloo)
            failures.note(("all_gather_into_tensor", dtype, numel), exactly(theirs).wrong(ours))
    return failures.report()


@pytest.mark.parametrize("world_size", [2, 3])
def test_equal_to_gloo(world_size: int) -> None:
    assert_all_well(run_ranks(side_by_side, world_size), at_least=300)


NOT_OF_GLOO = {
    "all_gather_uneven": "parts of one size only",
    "all_to_all_uneven": "parts of one size only",
    "gather_uneven": "parts of one size only",
    "scatter_uneven": "parts of one size only",
    "all_to_all_single_rows": "contiguous tensors only",
    "recv_any_source": "nothing from oneself",
    "gather_single": "has none, up to torch 2.14",
}


def gloo_takes(case: Case, dtype: torch.dtype, op: str) -> bool:
    if dtype not in DTYPES or op == "PREMUL_SUM":
        return False
    if case.name == "sparse_all_reduce" and op != "SUM":
        return False
    return op == "" or gloo_can(dtype, op)


def cases_on_gloo() -> Report:
    """With two ranks, where gloo rounds once as we do. It may change what we promise only to read."""
    failures, chance = Failures(), random.Random(0)
    for case in CASES:
        if case.name in NOT_OF_GLOO:
            continue
        for salt, pair in enumerate(pair for pair in case.pairs if gloo_takes(case, *pair)):
            point = at_random(pair, 1000, salt, chance, dist.group.WORLD)
            point = replace(point, layout=contiguous, out_layout=contiguous)
            if case.name in ("send", "recv"):
                point = replace(point, root=1)
            try:
                call = case.build(point)
                for work in call.start(True):
                    work.wait()
            except Exception as error:
                failures.note((case.name, *point.label()), repr(error))
                continue
            for claim in call.outputs:
                failures.note((case.name, *point.label()), claim.wrong())
    return failures.report()


def test_cases_are_true_of_gloo() -> None:
    """What we hold to be right is not only our own opinion."""
    assert_all_well(run_ranks(cases_on_gloo, 2, backend="gloo"), at_least=500)
