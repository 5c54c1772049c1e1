"""Groups: several at once, overlapping, of one rank, over a gloo world, from threads, one after another."""

import datetime
import gc
import os
import threading
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from calls import Failures, assert_all_well
from reference import reduction, sample
from torch_ucc._torch import all_gather_single
from torch_ucc.testing import run_ranks

pytestmark = pytest.mark.multirank

CPU = torch.device("cpu")


def total(group: dist.ProcessGroup | None = None, numel: int = 5) -> float:
    """The sum of 2**rank over the members tells who took part."""
    tensor = torch.full((numel,), 2.0 ** dist.get_rank())
    dist.all_reduce(tensor, group=group)
    assert (tensor == tensor[0]).all()
    return float(tensor[0])


def overlapping_groups() -> list[float]:
    """Every group of ranks there is, all alive, used in turns."""
    rank = dist.get_rank()
    members = [[r for r in range(4) if bits >> r & 1] for bits in range(1, 16)]
    groups = [dist.new_group(each) for each in members]
    mine = [(each, group) for each, group in zip(members, groups, strict=True) if rank in each]
    for numel in (1, 1000, 300_000):
        for each, group in mine:
            assert total(group, numel) == sum(2.0**r for r in each), each
    works = []
    for _, group in mine:
        tensor = torch.full((3,), 2.0**rank)
        works.append((tensor, dist.all_reduce(tensor, group=group, async_op=True)))
    for _, work in reversed(works):
        work.wait()
    return [float(tensor[0]) for tensor, _ in works]


def test_overlapping_groups() -> None:
    results = run_ranks(overlapping_groups, 4)
    for rank, sums in enumerate(results):
        assert sums == [float(bits) for bits in range(1, 16) if bits >> rank & 1]


def group_of_one() -> tuple[float, list[float], list[float]]:
    groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    alone = groups[dist.get_rank()]
    tensor, output = torch.tensor([3.0]), torch.zeros(1)
    dist.broadcast(tensor, dist.get_rank(), group=alone)
    all_gather_single(output, tensor, group=alone)
    dist.barrier(alone)
    averaged = torch.tensor([4.0])
    dist.all_reduce(averaged, dist.ReduceOp.AVG, group=alone)
    return total(alone), output.tolist(), averaged.tolist()


def test_group_of_one() -> None:
    assert run_ranks(group_of_one, 2) == [(1.0, [3.0], [4.0]), (2.0, [3.0], [4.0])]


def reordered() -> tuple[int, list[float]]:
    """Rank and root count within the group."""
    group = dist.new_group([1, 2])
    if dist.get_rank() == 0:
        return -1, []
    tensor = torch.tensor([float(dist.get_rank())])
    dist.broadcast(tensor, group_src=1, group=group)
    output = torch.zeros(2)
    all_gather_single(output, torch.tensor([float(dist.get_rank())]), group=group)
    return group.rank(), [*tensor.tolist(), *output.tolist()]


def test_ranks_within_a_group() -> None:
    assert run_ranks(reordered, 3) == [(-1, []), (0, [2.0, 1.0, 2.0]), (1, [2.0, 1.0, 2.0])]


def again_and_again() -> None:
    """Groups of the same ranks are created and destroyed between uses of the world."""
    for round_ in range(12):
        group = dist.new_group([0, 1])
        assert total(group) == 3.0, round_
        assert total() == 3.0, round_
        dist.destroy_process_group(group)
        assert total() == 3.0, round_
    other = dist.new_group([0])
    assert (total(other) == 1.0) if dist.get_rank() == 0 else True
    gc.collect()
    assert total() == 3.0


def test_groups_destroyed_and_created_again() -> None:
    run_ranks(again_and_again, 2)


def used_after_destroy() -> tuple[str, str]:
    group = dist.new_group([0, 1])
    backend = group._get_backend(CPU)
    dist.destroy_process_group(group)
    try:
        backend.allreduce([torch.ones(1)], dist.AllreduceOptions())
    except Exception as error:
        assert total() == 3.0
        return type(error).__name__, str(error)
    return "accepted", ""


def test_use_of_a_destroyed_group() -> None:
    for kind, text in run_ranks(used_after_destroy, 2):
        assert kind == "DistBackendError" and "shut down" in text, (kind, text)


def init_again(same_store: bool) -> list[float]:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    timeout = datetime.timedelta(seconds=60)
    store = dist.TCPStore(host, port, is_master=False, timeout=timeout)
    sums = []
    for round_ in range(3):
        used = dist.PrefixStore("all" if same_store else f"round {round_}", store)
        dist.init_process_group("ucc", store=used, rank=rank, world_size=size, timeout=timeout)
        sums += [total(), total(dist.new_group([0, 1]))]
        dist.destroy_process_group()
    return sums


@pytest.mark.parametrize("same_store", [True, False])
def test_init_after_destroy(same_store: bool) -> None:
    assert run_ranks(init_again, 2, same_store, init=False) == [[3.0] * 6] * 2


def ucc_over_gloo(members: list[int]) -> list[float]:
    """No group of ucc covers the world before the first one is used."""
    group = dist.new_group(members, backend="ucc")
    sums = [total()]
    if dist.get_rank() in members:
        assert dist.get_backend(group) == "ucc"
        sums.append(total(group))
    other = dist.new_group([0, 1], backend="ucc")
    if dist.get_rank() in (0, 1):
        sums.append(total(other))
    everybody = dist.new_group(backend="ucc")
    return [*sums, total(everybody), total()]


@pytest.mark.parametrize("members", [[0, 1], [1, 2], [0, 1, 2]])
def test_groups_of_ucc_in_a_world_of_gloo(members: list[int]) -> None:
    for rank, sums in enumerate(run_ranks(ucc_over_gloo, 3, members, backend="gloo")):
        expected = [7.0]
        if rank in members:
            expected.append(sum(2.0**each for each in members))
        if rank in (0, 1):
            expected.append(3.0)
        assert sums == [*expected, 7.0, 7.0], rank


def disjoint_over_gloo() -> float:
    """Two groups that never meet, each the first of its ranks."""
    groups = [dist.new_group(ranks, backend="ucc") for ranks in ([0, 1], [2, 3])]
    return total(groups[dist.get_rank() // 2])


def test_disjoint_groups_in_a_world_of_gloo() -> None:
    assert run_ranks(disjoint_over_gloo, 4, backend="gloo") == [3.0, 3.0, 12.0, 12.0]


def form() -> tuple[float, str]:
    return total(), dist.group.WORLD._get_backend(CPU).name()


@pytest.mark.parametrize(
    ("spec", "cpu"),
    [
        ("torch_ucc", "ucc"),
        ("cpu:ucc", "ucc"),
        ("cpu:ucc,cuda:ucc", "ucc"),
        ("cpu:gloo,cuda:ucc", "gloo"),
        ("cpu:ucc,cuda:gloo", "ucc"),
    ],
)
def test_forms_of_the_backend_string(spec: str, cpu: str) -> None:
    assert run_ranks(form, 2, backend=spec) == [(3.0, cpu)] * 2


def in_threads(bodies: list[Callable[[], None]]) -> None:
    """Run them at once; the first exception of any is raised here."""
    errors: list[BaseException] = []

    def guarded(body: Callable[[], None]) -> None:
        try:
            body()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def threads_on_groups(async_op: bool) -> tuple[int, int, list[str]]:
    rank, size = dist.get_rank(), dist.get_world_size()
    groups = [dist.new_group() for _ in range(4)]
    failures = Failures()

    def body(which: int) -> None:
        random = torch.Generator().manual_seed(which)
        for i in range(150):
            numel = int(torch.randint(1, 3000, (1,), generator=random))
            salt = which * 1000 + i
            tensor = sample(torch.int32, rank, salt, numel)
            work = dist.all_reduce(tensor, group=groups[which], async_op=async_op)
            if work is not None:
                work.wait()
            wrong = reduction(torch.int32, "SUM", list(range(size)), salt, numel).wrong(tensor)
            failures.note((which, i, numel), wrong)

    in_threads([lambda which=which: body(which) for which in range(4)])
    return failures.report()


@pytest.mark.parametrize("async_op", [False, True])
def test_threads_on_groups_of_their_own(async_op: bool) -> None:
    assert_all_well(run_ranks(threads_on_groups, 3, async_op), at_least=600)


def threads_create_groups() -> list[float]:
    """As long as each rank creates them in one order, other threads may be at work."""
    first = dist.new_group()
    stop = threading.Event()
    sums: list[float] = []

    def busy() -> None:
        while True:
            flag = torch.tensor([1.0 if stop.is_set() else 0.0])
            dist.all_reduce(flag, dist.ReduceOp.MIN, group=first)  # all stop at the same call
            if flag.item() == 1.0:
                return

    def create() -> None:
        try:
            sums.extend(total(dist.new_group([0, 1])) for _ in range(5))
        finally:
            stop.set()

    in_threads([busy, create])
    return sums


def test_new_group_while_another_thread_communicates() -> None:
    assert run_ranks(threads_create_groups, 2) == [[3.0] * 5] * 2
