"""The Work of a collective: how it ends, how often it may be asked, and what its future promises.

Where a rank must be late, the others reach it through the store: no test depends on how long anything takes.
"""

from __future__ import annotations

import datetime
import gc
import threading
import time
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch_ucc._torch import all_gather_single
from torch_ucc.testing import run_ranks, run_script

pytestmark = pytest.mark.multirank

SHORT = datetime.timedelta(milliseconds=20)


def store() -> dist.Store:
    return dist.distributed_c10d._get_default_store()


def say(what: str) -> None:
    store().set(f"test/{what}", "1")


def hear(what: str) -> None:
    store().wait([f"test/{what}"])


def start(value: float = 1.0, numel: int = 4) -> tuple[torch.Tensor, dist.Work]:
    tensor = torch.full((numel,), value)
    return tensor, dist.all_reduce(tensor, async_op=True)


def usable() -> bool:
    tensor, work = start()
    work.wait()
    return float(tensor[0]) == dist.get_world_size()


def wait_too_short() -> list[str]:
    """Rank 1 comes only after rank 0 has seen its waits time out."""
    if dist.get_rank() == 1:
        hear("timed out")
        assert usable()
        return []
    texts = []
    tensor, work = start()
    for _ in range(2):
        try:
            work.wait(SHORT)
        except RuntimeError as error:
            assert isinstance(error, dist.DistBackendError)
            texts.append(str(error))
    assert not work.is_completed()
    say("timed out")
    work.wait()
    assert tensor.tolist() == [2.0] * 4
    assert work.wait() and work.is_completed() and work.exception() is None
    return texts


def test_wait_with_a_timeout_can_be_repeated() -> None:
    texts, _ = run_ranks(wait_too_short, 2)
    assert len(texts) == 2
    for text in texts:
        assert "all_reduce seq 1 of group" in text and "20 ms" in text and "waited for again" in text, text


def poll_only() -> bool:
    if dist.get_rank() == 1:
        hear("pending")
        return usable()
    tensor, work = start()
    assert not work.is_completed()  # it cannot be: the other rank waits for us
    say("pending")
    while not work.is_completed():
        pass
    return tensor.tolist() == [2.0] * 4


def test_polling_alone_completes() -> None:
    assert run_ranks(poll_only, 2) == [True, True]


def nobody_asks() -> bool:
    """An operation ends by itself while its caller computes: only its future's callback tells."""
    ended = threading.Event()
    if dist.get_rank() == 1:
        hear("pending")
    _, work = start()
    work.get_future().add_done_callback(lambda _: ended.set())
    say("pending")
    return ended.wait(50.0)


def test_operation_advances_on_its_own() -> None:
    assert run_ranks(nobody_asks, 2) == [True, True]


def results() -> dict[str, list[torch.Tensor]]:
    rank = float(dist.get_rank())
    found = {}
    reduced, work = start(rank)
    work.wait()
    found["all_reduce"] = work.result()
    assert found["all_reduce"][0].data_ptr() == reduced.data_ptr()
    tensor = torch.full((2,), rank)
    work = dist.broadcast(tensor, 1, async_op=True)
    work.wait()
    found["broadcast"] = work.result()
    output = torch.zeros(2)
    work = all_gather_single(output, torch.tensor([rank]), async_op=True)
    work.wait()
    found["all_gather_into_tensor"] = work.result()
    outputs = [torch.zeros(1) for _ in range(2)]
    work = dist.all_gather(outputs, torch.tensor([rank]), async_op=True)
    work.wait()
    found["all_gather"] = work.result()
    work = dist.barrier(async_op=True)
    work.wait()
    found["barrier"] = work.result()
    return found


def test_result() -> None:
    for found in run_ranks(results, 2):
        lists = {op: [tensor.tolist() for tensor in tensors] for op, tensors in found.items()}
        assert lists == {
            "all_reduce": [[1.0] * 4],
            "broadcast": [[1.0, 1.0]],
            "all_gather_into_tensor": [[0.0, 1.0]],
            "all_gather": [[0.0], [1.0]],
            "barrier": [],
        }


def synchronous() -> tuple[object, list[float]]:
    """As torch calls it without async_op. Rank 1 comes once rank 0 is about to wait, or does."""
    options = dist.AllreduceOptions()
    options.asyncOp = False
    group, tensor = dist.distributed_c10d._get_default_group(), torch.ones(4)
    if dist.get_rank() == 1:
        hear("called")
    else:
        threading.Timer(0.05, say, ["called"]).start()
    return group.allreduce([tensor], options), tensor.tolist()


def test_a_synchronous_call_waits_itself() -> None:
    """torch takes no Work for "it has ended", which spares it a Python object and a second call."""
    assert run_ranks(synchronous, 2) == [(None, [2.0] * 4)] * 2


def future_values() -> list[list[float]]:
    """Alone, without wait(); twice; before and after the end; of calls that had nothing to send."""
    tensor, work = start()
    first = work.get_future().wait()
    again = work.get_future().value()
    assert first[0].data_ptr() == again[0].data_ptr() == tensor.data_ptr()
    work.wait()
    late = work.get_future().wait()
    empty = dist.all_reduce(torch.empty(0), async_op=True)
    assert empty.is_completed() and empty.wait()
    assert [each.numel() for each in empty.get_future().wait()] == [0]
    barrier = dist.barrier(async_op=True).get_future().wait()
    assert list(barrier) == []
    return [each[0].tolist() for each in (first, again, late)]


def test_future() -> None:
    assert run_ranks(future_values, 2) == [[[2.0] * 4] * 3] * 2


def chain() -> float:
    """A callback's return value is the next future's value; one that raises gives its error on."""
    _, work = start()
    doubled = work.get_future().then(lambda done: done.value()[0] * 2)
    total = doubled.then(lambda done: float(done.value().sum()))

    def fail(_: torch.futures.Future[float]) -> None:
        raise KeyError("of the user")

    failed = total.then(fail)
    with pytest.raises(Exception, match="of the user"):
        failed.wait()
    assert usable()
    return total.wait()


def test_callbacks_in_a_chain() -> None:
    assert run_ranks(chain, 2) == [16.0] * 2


def collective_in_callback() -> list[float]:
    """A callback issues another collective and waits for it."""
    group = dist.new_group()

    def average(done: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        tensor = done.value()[0].clone()
        dist.all_reduce(tensor, group=group)
        return tensor

    _, work = start()
    return work.get_future().then(average).wait().tolist()


def test_callback_that_communicates() -> None:
    assert run_ranks(collective_in_callback, 2) == [[4.0] * 4] * 2


def wait_in_callback(depth: int) -> float:
    """On rank 0 each callback waits for the future of the next operation, some before that was started."""
    if dist.get_rank() == 1:
        hear("attached")  # a callback that is attached after the end runs at once, in the caller
        for work in [start(float(i))[1] for i in range(depth)]:
            work.wait()
        return 0.0
    works: list[dist.Work] = []
    all_started = threading.Event()

    def body(i: int) -> Callable[[torch.futures.Future[list[torch.Tensor]]], float]:
        def run(done: torch.futures.Future[list[torch.Tensor]]) -> float:
            all_started.wait()
            own = float(done.value()[0][0])
            return own + (ends[i + 1].wait() if i + 1 < depth else 0.0)

        return run

    ends: list[torch.futures.Future[float]] = []
    for i in range(depth):
        works.append(start(float(i))[1])
        ends.append(works[i].get_future().then(body(i)))
    all_started.set()
    say("attached")
    return ends[0].wait()


@pytest.mark.parametrize("depth", [2, 8])
def test_callbacks_that_wait_for_later_operations(depth: int) -> None:
    assert run_ranks(wait_in_callback, 2, depth) == [2.0 * sum(range(depth)), 0.0]


def sequence() -> list[int]:
    """Of the backend: torch's ProcessGroup asks it only where it was built into torch."""
    world, other = dist.group.WORLD, dist.new_group()
    group, second = (each._get_backend(torch.device("cpu")) for each in (world, other))
    seen = [group._get_sequence_number_for_group()]
    for call in (
        lambda: dist.all_reduce(torch.ones(1)),
        lambda: dist.all_reduce(torch.empty(0)),
        lambda: dist.barrier(),
        lambda: dist.all_reduce(torch.ones(1), group=other),
        lambda: dist.broadcast(torch.ones(1), 0),
    ):
        call()
        seen.append(group._get_sequence_number_for_group() - seen[0])
    with pytest.raises(NotImplementedError):
        dist.all_reduce(torch.ones(1), dist.ReduceOp.BXOR)
    seen.append(group._get_sequence_number_for_group() - seen[0])
    seen.append(second._get_sequence_number_for_group())
    return seen[1:]


def test_sequence_numbers_count_what_was_accepted() -> None:
    assert run_ranks(sequence, 2) == [[1, 2, 3, 3, 4, 4, 1]] * 2


def dropped() -> bool:
    """Neither the Work nor its tensor is kept, and the group goes on."""
    for i in range(50):
        dist.all_reduce(torch.full((10_000,), float(i)), async_op=True)
        all_gather_single(torch.empty(20_000), torch.ones(10_000), async_op=True)
    gc.collect()
    return usable()


def test_work_and_tensor_dropped() -> None:
    assert run_ranks(dropped, 2) == [True, True]


def freed_after_call(rounds: int) -> int:
    """The input's memory goes back to the allocator and is filled anew while it is still to be read."""
    wrong = 0
    for i in range(rounds):
        strided = torch.full((50_000, 2), float(i))[:, 0]
        output = torch.zeros(100_000)
        work = all_gather_single(output, strided, async_op=True)
        del strided
        noise = [torch.full((50_000,), -1.0) for _ in range(4)]
        work.wait()
        wrong += int((output != i).sum()) + len(noise) - 4
    return wrong


def test_input_freed_after_the_call() -> None:
    assert run_ranks(freed_after_call, 2, 50) == [0, 0]


def any_order() -> bool:
    """Waited for in an order that differs from rank to rank."""
    order = torch.randperm(64, generator=torch.Generator().manual_seed(dist.get_rank())).tolist()
    started = [start(float(i), 1 + 997 * i) for i in range(64)]
    for i in order:
        tensor, work = started[i]
        work.wait()
        assert (tensor == i * dist.get_world_size()).all(), i
    return True


def test_completed_in_any_order() -> None:
    assert run_ranks(any_order, 3) == [True] * 3


def shared_storage() -> list[float]:
    """Views of one storage in flight at once."""
    whole = torch.zeros(8, 1000) + torch.arange(8.0).unsqueeze(1)
    works = [dist.all_reduce(row, async_op=True) for row in whole]
    columns = torch.ones(1000, 8)
    works += [dist.all_reduce(columns[:, i], async_op=True) for i in range(8)]
    for work in works:
        work.wait()
    assert (columns == 2).all()
    assert (whole == whole[:, :1]).all()
    return whole[:, 0].tolist()


def test_views_of_one_storage() -> None:
    assert run_ranks(shared_storage, 2) == [[2.0 * i for i in range(8)]] * 2


def waited_by_threads() -> bool:
    """One Work, waited for by several threads at once, some of them for a moment only."""
    if dist.get_rank() == 1:
        hear("waiting")
    tensor, work = start()
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            work.wait()
            assert tensor.tolist() == [2.0] * 4
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=wait) for _ in range(4)]
    for thread in threads:
        thread.start()
    say("waiting")
    for thread in threads:
        thread.join()
    return not errors


def test_waited_for_by_several_threads() -> None:
    assert run_ranks(waited_by_threads, 2) == [True, True]


def gil_is_free() -> int:
    """Python runs on while a thread waits for a late rank."""
    if dist.get_rank() == 1:
        hear("counted")
        assert usable()
        return 1000
    _, work = start()
    waiter = threading.Thread(target=work.wait)
    waiter.start()
    count = 0
    while count < 1000:
        count += 1
        time.sleep(0)
    say("counted")
    waiter.join()
    return count


def test_waiting_leaves_python_to_others() -> None:
    assert run_ranks(gil_is_free, 2) == [1000, 1000]


# --- callbacks and the end of the process -----------------------------------------------------------------

CALLBACK_AT_EXIT = """
import sys, time, torch, torch.distributed as dist
dist.init_process_group("ucc")

def slow(future):
    time.sleep(1.5)
    print("called", flush=True)
    return future.value()

work = dist.all_reduce(torch.ones(1), async_op=True)
work.get_future().then(slow)
work.wait()
if "destroy" in sys.argv:
    dist.destroy_process_group()
sys.exit(0)
"""


@pytest.mark.parametrize("destroys", [False, True])
def test_a_callback_that_still_runs_at_exit_is_waited_for(destroys: bool) -> None:
    script = CALLBACK_AT_EXIT.replace('"destroy" in sys.argv', str(destroys))
    env = {"TORCH_UCC_CLOSE_TIMEOUT": "200ms"}
    assert run_script(script, 2, timeout=300.0, env=env).count("called") == 2


def set_by_the_user() -> float:
    """A user sets the future of an operation that cannot have ended; each rank does so in turn."""
    tensor, shared = torch.ones(300_000), store()
    for i in range(6):
        mine = i % 2 == dist.get_rank()
        if not mine:
            shared.wait([f"test/set/{i}"])
        work = dist.all_reduce(tensor, async_op=True)
        if mine:
            work.get_future().set_result([tensor])
            shared.set(f"test/set/{i}", "")
        work.wait()
    other = torch.ones(1)
    dist.all_reduce(other)
    return other.item()


def test_a_future_that_its_user_sets() -> None:
    assert run_ranks(set_by_the_user, 2) == [2.0, 2.0]
