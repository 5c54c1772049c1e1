"""all_reduce: every type, reduce op, size, layout and way to complete, against the reference."""

import itertools

import pytest
import torch
import torch.distributed as dist
from calls import COMPLETIONS, Failures, all_reduce, assert_all_well, sizes_of
from layouts import contiguous, layouts_of
from reference import DTYPES, PAIRS, bits, reduce_op, reduction, sample
from torch_ucc.testing import run_ranks

pytestmark = pytest.mark.multirank


def every_case(dtypes: tuple[torch.dtype, ...]) -> tuple[int, int, list[str]]:
    group = dist.group.WORLD
    rank, ranks = dist.get_rank(), list(range(dist.get_world_size()))
    failures = Failures()
    completions = itertools.cycle(COMPLETIONS)
    salt = 0
    for dtype, op in [pair for pair in PAIRS if pair[0] in dtypes]:
        for numel in sizes_of(dtype):
            expected = reduction(dtype, op, ranks, salt, numel)
            mine = sample(dtype, rank, salt, numel)
            layouts = layouts_of(dtype, numel)
            if len(ranks) > 2:  # what a layout changes is each rank's own affair
                layouts = [contiguous, layouts[salt % len(layouts)]]
            for layout in layouts:
                complete = next(completions)
                tensor = layout(mine)
                complete(all_reduce(tensor, op, group))
                case = (dtype, op, numel, layout.__name__, complete.__name__)
                failures.note(case, expected.wrong(tensor))
            salt += 1
    return failures.report()


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_every_type_op_size_and_layout(world_size: int) -> None:
    assert_all_well(run_ranks(every_case, world_size, DTYPES, timeout=180.0), at_least=len(PAIRS) * 12)


def through_the_front_end() -> tuple[int, int, list[str]]:
    """As users call it, where torch itself rewrites some tensors."""
    rank, ranks = dist.get_rank(), list(range(dist.get_world_size()))
    failures = Failures()
    for salt, (dtype, op) in enumerate(PAIRS):
        if dtype is torch.complex32 or (dtype.is_complex and op == "PRODUCT"):
            continue  # refused by torch itself
        expected = reduction(dtype, op, ranks, salt, 1000)
        for async_op in (False, True):
            tensor = sample(dtype, rank, salt, 1000)
            work = dist.all_reduce(tensor, reduce_op(op), async_op=async_op)
            assert (work is not None) == async_op
            if work is not None:
                work.wait()
            failures.note((dtype, op, async_op), expected.wrong(tensor))
    return failures.report()


def test_through_the_front_end() -> None:
    assert_all_well(run_ranks(through_the_front_end, 2), at_least=100)


def result_bits(dtype: torch.dtype, numel: int) -> torch.Tensor:
    tensor = sample(dtype, dist.get_rank(), 5, numel)
    dist.all_reduce(tensor)
    return bits(tensor)


@pytest.mark.parametrize("numel", [3, 1000, 70_000, 600_000])
@pytest.mark.parametrize("world_size", [3, 4])
def test_every_rank_gets_the_same_bits(world_size: int, numel: int) -> None:
    """Sums depend on the order of addition: replicas that differ in the last bit drift apart."""
    first, *others = run_ranks(result_bits, world_size, torch.float32, numel)
    for rank, other in enumerate(others, start=1):
        assert torch.equal(first, other), (
            f"rank {rank} differs from rank 0 in {int((first != other).sum())} elements"
        )


SPECIAL = (float("nan"), float("inf"), float("-inf"), 0.0, 1.0)
SPECIAL_PAIRS = list(itertools.product(SPECIAL, SPECIAL))
SPECIAL_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
SPECIAL_OPS = ("SUM", "PRODUCT", "MIN", "MAX", "AVG")

Specials = dict[tuple[torch.dtype, str], list[str]]


def special_values() -> Specials:
    """Every pair of special values, one from each of two ranks."""
    found = {}
    for dtype, op in itertools.product(SPECIAL_DTYPES, SPECIAL_OPS):
        tensor = torch.tensor([pair[dist.get_rank()] for pair in SPECIAL_PAIRS], dtype=dtype)
        dist.all_reduce(tensor, reduce_op(op))
        found[dtype, op] = [str(value) for value in tensor.tolist()]
    return found


@pytest.fixture(scope="module")
def specials() -> list[Specials]:
    return run_ranks(special_values, 2)


@pytest.mark.parametrize("op", SPECIAL_OPS)
@pytest.mark.parametrize("dtype", SPECIAL_DTYPES, ids=str)
def test_nan_and_infinity(specials: list[Specials], dtype: torch.dtype, op: str) -> None:
    """As torch itself computes them: what is not a number stays visible, on every rank."""
    first, second = (torch.tensor([pair[i] for pair in SPECIAL_PAIRS], dtype=torch.float64) for i in (0, 1))
    by_op = {
        "SUM": torch.add(first, second),
        "AVG": torch.add(first, second) / 2,
        "PRODUCT": torch.mul(first, second),
        "MIN": torch.minimum(first, second),
        "MAX": torch.maximum(first, second),
    }
    expected = [str(value) for value in by_op[op].tolist()]
    for rank, by_case in enumerate(specials):
        triples = zip(SPECIAL_PAIRS, by_case[dtype, op], expected, strict=True)
        wrong = [each for each in triples if float(each[1]) != float(each[2]) and each[1] != each[2]]
        assert not wrong, f"rank {rank}: (inputs, got, expected) {wrong}"
