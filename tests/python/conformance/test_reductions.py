"""What reduces: every dtype, reduce op, size, layout and way to complete, against the reference."""

import itertools

import pytest
import torch
import torch.distributed as dist
from calls import (
    Failures,
    Report,
    all_reduce_coalesced,
    assert_all_well,
    reduce,
    reduce_scatter_tensor,
    reduce_scatter_tensor_coalesced,
    usable,
)
from reductions import REDUCTIONS
from reference import bits, exactly, reduce_op, sample
from table import try_all
from torch_ucc.testing import run_ranks
from torch_ucc.topology.algorithms import ONE_HOST, OVER_TCP

pytestmark = pytest.mark.multirank


# Number of ranks, and their environment: three go by the rules for algorithms that several hosts have.
AS_ON_HOSTS = {"UCC_TL_UCP_TUNE": OVER_TCP}
JOBS = {"1 rank": (1, {}), "2 ranks": (2, {}), "3 ranks, as on hosts": (3, AS_ON_HOSTS), "4 ranks": (4, {})}


@pytest.fixture(scope="module", params=JOBS.values(), ids=JOBS)
def reports(request: pytest.FixtureRequest) -> list[dict[str, Report]]:
    ranks, env = request.param
    return run_ranks(try_all, ranks, list(REDUCTIONS), timeout=240.0, env=env)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_every_case(reports: list[dict[str, Report]], name: str) -> None:
    cases = REDUCTIONS[name]
    assert_all_well([report[name] for report in reports], at_least=sum(5 * len(case.pairs) for case in cases))


NUMELS = (3, 1000, 1500, 10_000, 70_000, 600_000)


def result_bits() -> dict[int, list[torch.Tensor]]:
    found = {}
    for numel in NUMELS:
        tensors = [sample(torch.float32, dist.get_rank(), 5 + i, numel) for i in range(3)]
        dist.all_reduce(tensors[0])
        all_reduce_coalesced(tensors[1:], "SUM", dist.group.WORLD).wait()
        found[numel] = [bits(tensor) for tensor in tensors]
    return found


@pytest.mark.parametrize("rules", [ONE_HOST, OVER_TCP], ids=["of one host", "over TCP"])
@pytest.mark.parametrize("world_size", [3, 4])
def test_every_rank_gets_the_same_bits(world_size: int, rules: str) -> None:
    """Sums depend on the order of addition: replicas that differ in the last bit drift apart."""
    first, *others = run_ranks(result_bits, world_size, env={"UCC_TL_UCP_TUNE": rules})
    for rank, other in enumerate(others, start=1):
        for numel in NUMELS:
            for i, (ours, theirs) in enumerate(zip(first[numel], other[numel], strict=True)):
                wrong = int((ours != theirs).sum())
                assert not wrong, f"tensor {i} of rank {rank} differs from rank 0's in {wrong} of {numel}"


SPECIAL = (float("nan"), float("inf"), float("-inf"), 0.0, 1.0)
SPECIAL_PAIRS = list(itertools.product(SPECIAL, SPECIAL))
SPECIAL_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
SPECIAL_OPS = ("SUM", "PRODUCT", "MIN", "MAX", "AVG")

Specials = dict[tuple[torch.dtype, str], list[list[str]]]


def special_values() -> Specials:
    """Every pair of special values, one from each of two ranks, by each operation that tells it here."""
    found: Specials = {}
    world, rank = dist.group.WORLD, dist.get_rank()
    for dtype, op in itertools.product(SPECIAL_DTYPES, SPECIAL_OPS):
        mine = torch.tensor([pair[rank] for pair in SPECIAL_PAIRS], dtype=dtype)
        all_reduced, reduced, scattered = mine.clone(), mine.clone(), torch.empty_like(mine)
        dist.all_reduce(all_reduced, reduce_op(op))
        reduce(reduced, 0, op, world).wait()
        reduce_scatter_tensor(scattered, mine.repeat(2), op, world).wait()
        results = [all_reduced, scattered, *([reduced] if rank == 0 else [])]
        found[dtype, op] = [[str(value) for value in tensor.tolist()] for tensor in results]
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
        for which, got in enumerate(by_case[dtype, op]):
            triples = zip(SPECIAL_PAIRS, got, expected, strict=True)
            wrong = [each for each in triples if float(each[1]) != float(each[2]) and each[1] != each[2]]
            assert not wrong, f"rank {rank}, result {which}: (inputs, got, expected) {wrong}"


def overlapping() -> Report:
    """The output lies within the input: at its own place, at another rank's, or across two."""
    group, rank, size = dist.group.WORLD, dist.get_rank(), dist.get_world_size()
    failures = Failures()
    for numel in (2, 1000, 300_000):
        for start in (rank * numel, (rank + 1) % size * numel, numel // 2 if size > 1 else 0):
            whole = torch.arange(float(numel * size)) % 1000 + rank
            output = whole[start : start + numel]
            reduce_scatter_tensor(output, whole, "SUM", group).wait()
            before = torch.arange(float(numel * size)) % 1000
            expected = before[rank * numel : (rank + 1) * numel] * size + sum(range(size))
            failures.note((numel, start), exactly(expected).wrong(output))
            rest = torch.cat([whole[:start], whole[start + numel :]])
            untouched = torch.cat([before[:start], before[start + numel :]]) + rank
            failures.note((numel, start, "rest"), exactly(untouched).wrong(rest))
    return failures.report()


@pytest.mark.parametrize("world_size", [1, 3])
def test_output_within_the_input(world_size: int) -> None:
    assert_all_well(run_ranks(overlapping, world_size), at_least=18)


def inputs_that_overlap() -> Report:
    """Each input is half of the one before, and the output is one of them."""
    group, rank, size = dist.group.WORLD, dist.get_rank(), dist.get_world_size()
    failures = Failures()
    for numel in (2, 1000, 300_000):
        for place in range(size):
            whole = torch.arange(numel * (size + 1) / 2) % 1000 + rank
            inputs = [whole[each * numel // 2 :][:numel] for each in range(size)]
            before = torch.arange(numel * (size + 1) / 2) % 1000
            expected = before[rank * numel // 2 :][:numel] * size + sum(range(size))
            output = inputs[(rank + place) % size]
            dist.reduce_scatter(output, inputs, group=group)
            failures.note((numel, place), exactly(expected).wrong(output))
    return failures.report()


@pytest.mark.parametrize("world_size", [2, 3])
def test_inputs_that_overlap_and_an_output_among_them(world_size: int) -> None:
    assert_all_well(run_ranks(inputs_that_overlap, world_size), at_least=6)


def mixed_dtypes() -> list[list[float]]:
    """Tensors of one coalesced call need not have one dtype."""
    rank, world = dist.get_rank(), dist.group.WORLD
    tensors = [
        torch.full((3,), 1 + rank, dtype=dtype) for dtype in (torch.int8, torch.float64, torch.bfloat16)
    ]
    all_reduce_coalesced(tensors, "SUM", world).wait()
    outputs = [torch.zeros(1, dtype=torch.float32), torch.zeros(2, dtype=torch.int64)]
    inputs = [torch.arange(2.0), torch.arange(4)]
    reduce_scatter_tensor_coalesced(outputs, inputs, "SUM", world).wait()
    return [tensor.tolist() for tensor in (*tensors, *outputs)]


def test_coalesced_calls_of_several_dtypes() -> None:
    for rank, found in enumerate(run_ranks(mixed_dtypes, 2)):
        assert found == [[3.0] * 3, [3.0] * 3, [3.0] * 3, [2.0 * rank], [4.0 * rank, 4.0 * rank + 2]]


def sparse_specials() -> dict[str, object]:
    """Indices given twice, of different numbers of elements, of two sparse dimensions, and no element."""
    rank = dist.get_rank()
    twice = torch.sparse_coo_tensor([[0, 0, 2]], torch.tensor([1.0, 2.0, 4.0 + rank]), (4,))
    dist.all_reduce(twice)
    corner = torch.sparse_coo_tensor([[rank], [1]], [float(rank + 1)], (2, 2))
    work = dist.all_reduce(corner, async_op=True)
    work.wait()
    nothing = torch.sparse_coo_tensor(torch.empty(1, 0), torch.empty(0), (3,))
    dist.all_reduce(nothing)
    return {
        "twice": twice.to_dense().tolist(),
        "values": twice.coalesce().values().tolist(),
        "corner": corner.to_dense().tolist(),
        "result": work.result()[0].to_dense().tolist(),
        "nothing": nothing.to_dense().tolist(),
        "number of elements": nothing._nnz(),
    }


def test_sparse() -> None:
    assert (
        run_ranks(sparse_specials, 2)
        == [
            {
                "twice": [6.0, 0.0, 9.0, 0.0],
                "values": [6.0, 9.0],
                "corner": [[0.0, 1.0], [0.0, 2.0]],
                "result": [[0.0, 1.0], [0.0, 2.0]],
                "nothing": [0.0, 0.0, 0.0],
                "number of elements": 0,
            }
        ]
        * 2
    )


def sparse_of_another_shape() -> tuple[str, str, bool]:
    rank = dist.get_rank()
    tensor = torch.sparse_coo_tensor([[0]], [1.0], (4 + rank,))
    kind, text = "", "accepted"
    try:
        dist.all_reduce(tensor)
    except Exception as error:
        kind, text = type(error).__name__, str(error)
    return kind, text, usable()


def test_sparse_of_different_shapes() -> None:
    """Only the exchange between the ranks shows it, and it costs the group nothing else."""
    for rank, (kind, text, still_usable) in enumerate(run_ranks(sparse_of_another_shape, 2)):
        assert (kind, still_usable) == ("ValueError", True), (kind, text)
        assert "sparse_all_reduce" in text and f"tensor of rank {1 - rank}" in text, text


def premul_by_tensor() -> list[float]:
    tensor = torch.tensor([1.0, 2.0])
    dist.all_reduce(tensor, dist._make_nccl_premul_sum(torch.tensor([3.0 + dist.get_rank()])))
    return tensor.tolist()


def test_premul_sum_by_a_factor_of_each_rank() -> None:
    assert run_ranks(premul_by_tensor, 2) == [[7.0, 14.0]] * 2
