"""Ctrl-C, and whatever a program's own handler raises, ends a wait in Python."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch_ucc
from counting import Counting
from torch_ucc._torch import all_gather_single, reduce_scatter_single
from torch_ucc.testing import run_ranks

pytestmark = pytest.mark.multirank

LATE = 10.0
"""Seconds that no load explains. What is promised, one, is asserted of the shortest of the cases."""

WAITS: dict[str, Callable[[], object]] = {
    "all_reduce": lambda: dist.all_reduce(torch.ones(1)),
    "work": lambda: dist.all_reduce(torch.ones(1), async_op=True).wait(),
    "recv": lambda: dist.recv(torch.ones(1), 1),
    "barrier": lambda: dist.barrier(),
    "monitored_barrier": lambda: torch_ucc.monitored_barrier(timeout=timedelta(seconds=60)),
}

DELAYS: list[float] = []


class HandlerError(Exception):
    pass


def _raise(number: int, frame: object) -> None:
    raise HandlerError(number)


def interrupted(wait: str, which: signal.Signals) -> tuple[str, float]:
    dist.all_reduce(torch.ones(1))
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 1:
        store.wait(["interrupted"], timedelta(seconds=60))
        return "", 0.0
    signal.signal(which, signal.default_int_handler if which == signal.SIGINT else _raise)
    sent: list[float] = []

    def send() -> None:
        sent.append(time.monotonic())
        os.kill(os.getpid(), which)

    threading.Timer(0.5, send).start()
    kind = "nothing"
    try:
        WAITS[wait]()
    except (KeyboardInterrupt, HandlerError) as caught:
        kind = type(caught).__name__
    delay = time.monotonic() - sent[0]
    store.set("interrupted", "")
    return kind, delay


@pytest.mark.parametrize(
    ("wait", "which"), [*((wait, signal.SIGINT) for wait in WAITS), ("all_reduce", signal.SIGUSR1)]
)
def test_a_signal_ends_a_wait(wait: str, which: signal.Signals) -> None:
    (kind, delay), _ = run_ranks(
        interrupted, 2, wait, which, group_timeout=60.0, env={"TORCH_UCC_CLOSE_TIMEOUT": "500ms"}
    )
    assert kind == ("KeyboardInterrupt" if which == signal.SIGINT else "HandlerError")
    assert delay < LATE
    DELAYS.append(delay)


def test_it_ends_within_a_second() -> None:
    if not DELAYS:
        pytest.skip("run together with test_a_signal_ends_a_wait, whose delays it looks at")
    assert min(DELAYS) < 1.0, DELAYS


def soon_interrupted(call: Callable[[], object]) -> str:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        call()
    except KeyboardInterrupt:
        return "KeyboardInterrupt"
    return "nothing"


def interrupted_in_barrier() -> object:
    """Rank 0 is, while its barrier waits for an operation before it, and has nothing to send in it."""
    store = dist.distributed_c10d._get_default_store()
    tensor = torch.ones(1000)
    if dist.get_rank() == 1:
        store.wait(["barrier/interrupted"], timedelta(seconds=60))
        dist.all_reduce(tensor)
        dist.barrier()
        dist.all_reduce(tensor)
        return tensor.unique().tolist()
    work = dist.all_reduce(tensor, async_op=True)
    kind = soon_interrupted(dist.barrier)
    store.set("barrier/interrupted", "")
    work.wait()
    dist.all_reduce(tensor)
    return kind


def test_an_interrupted_barrier_goes_on_behind_what_it_waits_for() -> None:
    assert run_ranks(interrupted_in_barrier, 2, group_timeout=30.0) == ["KeyboardInterrupt", [4.0]]


def sparse(value: float) -> torch.Tensor:
    return torch.sparse_coo_tensor(torch.tensor([[0, 2000]]), torch.full((2, 500), value), (3000, 500))


def interrupted_while_sparse() -> object:
    """Rank 0 is, before it knows how much the other one has, and its tensor is the program's again."""
    store = dist.distributed_c10d._get_default_store()
    tensor = sparse(float(dist.get_rank() + 1)).coalesce()
    if dist.get_rank() == 1:
        store.wait(["sparse/interrupted"], timedelta(seconds=60))
        dist.all_reduce(tensor)
        store.set("sparse/over", "")
        return tensor.to_dense()[[0, 1, 2000]].unique().tolist()
    kind = soon_interrupted(lambda: dist.all_reduce(tensor))
    tensor.values().fill_(100)
    store.set("sparse/interrupted", "")
    store.wait(["sparse/over"], timedelta(seconds=60))
    return kind


def test_others_get_what_an_interrupted_rank_has_of_a_sparse_tensor() -> None:
    assert run_ranks(interrupted_while_sparse, 2, group_timeout=30.0) == ["KeyboardInterrupt", [0.0, 3.0]]


class Stopping(Counting):
    """Asks the other store no more from a call on until `go_on`."""

    def __init__(self, inner: dist.Store, calls: int) -> None:
        super().__init__(inner)
        self._left = calls
        self.stopped, self.go_on = threading.Event(), threading.Event()

    def _note(self, what: str, keys: object) -> None:
        super()._note(what, keys)
        self._left -= 1
        if self._left < 0:
            self.stopped.set()
            assert self.go_on.wait(60)


def interrupted_in_init(calls: int) -> str:
    """Rank 1 stays away after some of its calls of the store."""
    rank, limit = int(os.environ["RANK"]), timedelta(seconds=60)
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    mine, job = (dist.TCPStore(host, port, is_master=False, timeout=limit) for _ in range(2))
    stopping = Stopping(job, calls if rank == 1 else 1_000_000)

    def from_outside() -> None:
        if rank == 1:
            stopping.stopped.wait(60)
            mine.set("test/stopped", "")
            mine.wait(["test/interrupted"])
            stopping.go_on.set()
        else:
            mine.wait(["test/stopped"])
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGINT)

    signal.signal(signal.SIGINT, signal.default_int_handler)
    outside = threading.Thread(target=from_outside)
    outside.start()
    kind = "nothing"
    try:
        within = limit if rank == 0 else timedelta(seconds=5)
        dist.init_process_group("ucc", store=stopping, rank=rank, world_size=2, timeout=within)
        stopping.stopped.set()  # if it needed fewer calls
        while rank == 0:
            time.sleep(0.1)
    except BaseException as caught:
        kind = f"{type(caught).__name__}: {str(caught)[:300]}"
    if rank == 0:
        mine.set("test/interrupted", "")
    outside.join()
    return kind


def interrupted_in_line() -> list[float]:
    """Rank 0's all_reduce has its data, and is interrupted behind one that has not."""
    mine, late, later = torch.full((8,), -1.0), torch.full((8,), -2.0), torch.ones(1)
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 0:
        works = [dist.irecv(late, 1, tag=2), dist.irecv(mine, 1, tag=0), dist.all_reduce(late, async_op=True)]
        signal.signal(signal.SIGUSR1, _raise)
        works[1].wait()
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        with pytest.raises(HandlerError):
            dist.all_reduce(mine)
        store.set("interrupted in line", "")
        for work in works:
            work.wait()
        found = late
    else:
        dist.send(torch.full((8,), 5.0), 0, tag=0)
        store.wait(["interrupted in line"], timedelta(seconds=60))
        dist.send(torch.full((8,), 7.0), 0, tag=2)
        dist.all_reduce(torch.zeros(8))
        found = torch.zeros(8)
        dist.all_reduce(found)
    dist.all_reduce(later)
    return [*found.unique().tolist(), later.item()]


def test_an_interrupted_operation_in_line_goes_on() -> None:
    assert run_ranks(interrupted_in_line, 2) == [[7.0, 2.0], [5.0, 2.0]]


@pytest.mark.parametrize("calls", [0, 2, 4, 8, 12, 16, 20])
def test_ctrl_c_ends_init(calls: int) -> None:
    """The program gets KeyboardInterrupt, not an error of the group, whatever rank 0 waits for."""
    told = run_ranks(interrupted_in_init, 2, calls, init=False, env={"TORCH_UCC_CLOSE_TIMEOUT": "500ms"})
    assert told[0] == "KeyboardInterrupt: ", told


class Interrupted(Counting):
    """Ctrl-C comes while the store is in Python."""

    def _note(self, what: str, keys: object) -> None:
        super()._note(what, keys)
        raise KeyboardInterrupt


def interrupted_in_the_store() -> str:
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = Interrupted(dist.TCPStore(host, port, is_master=False))
    try:
        dist.init_process_group("ucc", store=store, rank=int(os.environ["RANK"]), world_size=2)
    except BaseException as caught:
        return f"{type(caught).__name__}: {str(caught)[:300]}"
    return "nothing"


def test_ctrl_c_in_a_store_of_python_ends_init() -> None:
    told = run_ranks(interrupted_in_the_store, 2, init=False)
    assert told == ["KeyboardInterrupt: "] * 2, told


def drives_without_the_gil(fifo: str) -> float:
    """Rank 0 waits while another thread of it keeps the GIL until rank 1 has its result."""
    rank, group = dist.get_rank(), dist.new_group([0, 1])
    tensor, never = torch.ones(1_000_000), torch.ones(1)
    if rank == 1:
        dist.all_reduce(tensor, group=group)
        Path(fifo).write_bytes(b"1")
        dist.send(never, 0)
        return tensor.unique().item()
    work = dist.all_reduce(tensor, group=group, async_op=True)
    keeps = os.open(fifo, os.O_RDWR)
    read = ctypes.PyDLL(None).read  # with the GIL, unlike those of CDLL
    buffer = ctypes.create_string_buffer(1)
    threading.Timer(1.0, lambda: read(keeps, buffer, ctypes.c_size_t(1))).start()
    dist.recv(never, 1)
    work.wait()
    return tensor.unique().item()


def test_a_waiter_that_needs_the_gil_holds_nobody_up(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    assert run_ranks(drives_without_the_gil, 2, str(fifo), group_timeout=60.0) == [2.0, 2.0]


def drives_in_a_handler(enforces: bool) -> list[float | str]:
    """A signal handler of rank 0 ends only once rank 1 has its result; or an operation its timeout."""
    rank, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
    group = dist.new_group([0, 1])
    short = dist.new_group([0, 1], timeout=timedelta(seconds=0.5))
    tensor, never = torch.ones(1_000_000), torch.ones(1)
    if rank == 1:
        store.wait(["test/handles"], timedelta(seconds=60))
        dist.all_reduce(tensor, group=group)
        store.set("test/done", "")
        dist.send(never, 0)
        return [tensor.unique().item(), "rank 1"]
    found: list[float | str] = []

    def handle(number: int, frame: object) -> None:
        late = dist.all_reduce(torch.ones(1), group=short, async_op=True)
        store.set("test/handles", "")
        store.wait(["test/done"], timedelta(seconds=60))
        while enforces and not late.is_completed():
            time.sleep(0.01)
        if enforces:
            found.append(type(late.exception()).__name__)

    signal.signal(signal.SIGUSR1, handle)
    work = dist.all_reduce(tensor, group=group, async_op=True)
    threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
    dist.recv(never, 1)
    work.wait()
    return [tensor.unique().item(), *found]


@pytest.mark.parametrize("enforces", [False, True])
def test_operations_advance_and_time_out_while_a_handler_runs(enforces: bool) -> None:
    env = {"TORCH_UCC_CLOSE_TIMEOUT": "500ms"}
    found, other = run_ranks(drives_in_a_handler, 2, enforces, group_timeout=60.0, env=env)
    assert found == [2.0, *(["DistBackendError"] if enforces else [])]
    assert other == [2.0, "rank 1"]


MINE = 100.0

CALLS: dict[str, Callable[[torch.Tensor], object]] = {
    "all_reduce": lambda tensor: dist.all_reduce(tensor),
    "broadcast": lambda tensor: dist.broadcast(tensor, 0),
    "reduce_scatter": lambda tensor: reduce_scatter_single(tensor[: len(tensor) // 2], tensor),
    "all_gather": lambda tensor: all_gather_single(tensor, tensor[: len(tensor) // 2].clone()),
}


def gets_its_tensor_back_while_profiled(op: str, numel: int) -> list[float]:
    """With a profiler, the call makes a Work even if it is synchronous."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        return gets_its_tensor_back(op, numel)


def gets_its_tensor_back(op: str, numel: int) -> list[float]:
    """The synchronous call of rank 0 is interrupted; its peer still gets what it was called with."""
    rank, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
    tensor = torch.ones(numel)
    if rank == 0:
        signal.signal(signal.SIGUSR1, _raise)
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
        try:
            CALLS[op](tensor)
        except HandlerError:
            tensor.fill_(MINE)
        store.set("test/interrupted", "")
    else:
        store.wait(["test/interrupted"], timedelta(seconds=60))
        CALLS[op](tensor)
    total = torch.ones(1)
    dist.all_reduce(total)
    return [*tensor.unique().tolist(), total.item()]


@pytest.mark.parametrize("numel", [2, 3_000_000])
@pytest.mark.parametrize("op", CALLS)
@pytest.mark.parametrize("body", [gets_its_tensor_back, gets_its_tensor_back_while_profiled])
def test_an_interrupted_call_gives_its_tensor_back(
    body: Callable[[str, int], list[float]], op: str, numel: int
) -> None:
    found, other = run_ranks(body, 2, op, numel, group_timeout=60.0)
    if op == "broadcast" and numel == 2:  # it does not wait for its peer, and may end before the signal
        assert found in ([1.0, 2.0], [MINE, 2.0])
    else:
        assert found == [MINE, 2.0]
    assert other == {"all_reduce": [2.0, 2.0], "reduce_scatter": [1.0, 2.0, 2.0]}.get(op, [1.0, 2.0])
