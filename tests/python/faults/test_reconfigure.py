"""Groups whose members are replaced while they exist: torch's reconfigure, of torch 2.14 and later.

Most tests run by shared memory and by UCC. The groups' own timeouts are a minute, so a test that passes in
less was not saved by one.
"""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch_ucc
from deaths import GRACE, failure, only_these_die
from torch._C._distributed_c10d import ErrorType
from torch_ucc._native import extension
from torch_ucc._torch import HAS_2_14
from torch_ucc.testing import run_ranks
from torch_ucc.testing.hosts import Hosts

pytestmark = [
    pytest.mark.multirank,
    pytest.mark.skipif(not HAS_2_14, reason="torch before 2.14 has no reconfigure"),
]

WAYS = pytest.mark.parametrize("memory", ["1", "0"], ids=["memory", "ucc"])
CPU = torch.device("cpu")
LONG = timedelta(seconds=60)


class Meeting:
    """What ranks tell each other over the store of the job, by the numbers that they were launched with."""

    def __init__(self, store: dist.Store) -> None:
        self.store = store
        self.me = int(os.environ["RANK"])

    def handles(self, key: str, *ranks: int, group: dist.ProcessGroup | None = None) -> list[str]:
        """Those of `ranks`, in that order."""
        self.store.set(f"{key} {self.me}", dist._get_reconfigure_handle(group))
        return [self.store.get(f"{key} {rank}").decode() for rank in ranks]

    def all_here(self, key: str, *ranks: int) -> None:
        self.store.set(f"{key} {self.me}", "here")
        self.store.wait([f"{key} {rank}" for rank in ranks], LONG)


def started(timeout: timedelta = LONG) -> Meeting:
    """A default group without members."""
    dist.init_process_group("ucc", enable_reconfigure=True, timeout=timeout)
    return Meeting(dist.distributed_c10d._get_default_store())


def backend(group: dist.ProcessGroup | None = None) -> Any:
    return (group or dist.group.WORLD)._get_backend(CPU)


def place_in(group: dist.ProcessGroup | None) -> tuple[int, int]:
    """Rank and size. dist.get_rank() would count as the group was when it was made."""
    group = group or dist.group.WORLD
    return group.rank(), group.size()


def join(uuid: int, handles: list[str], group: dist.ProcessGroup | None = None) -> None:
    dist._reconfigure(uuid, handles, group=group, timeout=LONG).wait()
    mine = handles.index(dist._get_reconfigure_handle(group))
    assert place_in(group) == (mine, len(handles))


def check(group: dist.ProcessGroup | None = None) -> None:
    """Collectives of small and large tensors, and messages around the ring."""
    rank, size = place_in(group)
    for numel in (1, 1000, 1 << 18):
        tensor = torch.full((numel,), rank + 1.0)
        dist.all_reduce(tensor, group=group)
        assert torch.equal(tensor, torch.full((numel,), size * (size + 1) / 2))
        work = dist.broadcast(tensor.fill_(rank), group=group, group_src=size - 1, async_op=True)
        work.wait()
        assert torch.equal(tensor, torch.full((numel,), size - 1.0))
    if size > 1:
        sent, received = torch.full((5,), float(rank)), torch.empty(5)
        work = dist.isend(sent, group=group, group_dst=(rank + 1) % size)
        dist.recv(received, group=group, group_src=(rank - 1) % size)
        work.wait()
        assert torch.equal(received, torch.full((5,), float((rank - 1) % size)))
    dist.barrier(group)


def shapes() -> None:
    """Before there are members, alone, in pairs, all, fewer, more, in another order, the same again."""
    meeting = started()
    me = meeting.me
    assert failure(lambda: dist.all_reduce(torch.ones(1)))[1].endswith("call reconfigure() first")
    assert backend().get_error() == ErrorType.SUCCESS
    join(10 + me, meeting.handles("alone", me))
    check()
    pair = (0, 1) if me < 2 else (2, 3)
    join(20 + me // 2, meeting.handles("pairs", *pair))
    check()
    join(30, meeting.handles("all", 0, 1, 2, 3))
    check()
    fewer = meeting.handles("fewer", 0, 2, 3)
    if me != 1:
        join(40, fewer)
        check()
        meeting.all_here("left", me)
    elif os.environ["TORCH_UCC_HOST_PATH"] == "1":  # by UCC it would wait for its timeout
        meeting.store.wait([f"left {rank}" for rank in (0, 2, 3)], LONG)
        assert failure(lambda: dist.barrier())[0] == "DistBackendError"  # of the group that the others left
        assert backend().get_error() in (ErrorType.REMOTE_ERROR, ErrorType.COMM_ERROR)
    join(50, meeting.handles("all again", 0, 1, 2, 3))
    check()
    join(60, meeting.handles("turned", 2, 0, 3, 1))
    check()
    join(61, meeting.handles("as they are", 2, 0, 3, 1))
    check()
    dist.destroy_process_group()


@WAYS
def test_members_come_and_go(memory: str) -> None:
    run_ranks(shapes, 4, init=False, env={"TORCH_UCC_HOST_PATH": memory})


def unordered() -> list[int]:
    """Handles as a set: the ranks are chosen, and alike on all."""
    meeting = started()
    handles = meeting.handles("all", 0, 1, 2)
    dist._reconfigure(1, set(handles), timeout=LONG).wait()
    check()
    told = torch.tensor([meeting.me])
    everybody = [torch.empty_like(told) for _ in range(3)]
    dist.all_gather(everybody, told)
    assert int(everybody[dist.get_rank()]) == meeting.me
    dist.destroy_process_group()
    return [int(each) for each in everybody]


@WAYS
def test_handles_in_no_order(memory: str) -> None:
    first, second, third = run_ranks(unordered, 3, init=False, env={"TORCH_UCC_HOST_PATH": memory})
    assert first == second == third and sorted(first) == [0, 1, 2]


def refusals() -> dict[str, tuple[str, str]]:
    meeting = started()
    both = meeting.handles("both", 0, 1)
    mine, other = both[meeting.me], both[1 - meeting.me]
    join(1, both)
    calls: dict[str, Callable[[], object]] = {
        "none": lambda: dist._reconfigure(2, []),
        "not mine": lambda: dist._reconfigure(2, [other]),
        "twice": lambda: dist._reconfigure(2, [mine, other, mine]),
        "foreign": lambda: dist._reconfigure(2, [mine, "gloo:0:1:2"]),
        "used": lambda: dist._reconfigure(1, both),
        "no time": lambda: dist._reconfigure(2, both, timeout=timedelta(0)),
    }
    found = {}
    for name, call in calls.items():
        found[name] = failure(call)[:2]
        check()
    join(2, both)
    check()
    dist.destroy_process_group()
    return found


@WAYS
def test_what_is_refused_leaves_the_group_as_it_was(memory: str) -> None:
    for found in run_ranks(refusals, 2, init=False, env={"TORCH_UCC_HOST_PATH": memory}):
        for name, kind, words in (
            ("none", "ValueError", "at least one handle"),
            ("not mine", "ValueError", "is not among those of the new members"),
            ("twice", "ValueError", "is given twice"),
            ("foreign", "ValueError", "'gloo:0:1:2' is not a handle of a ucc group"),
            ("used", "DistBackendError", "the uuid 1 was already used"),
            ("no time", "ValueError", "the timeout must be above 0"),
        ):
            assert found[name][0] == kind and words in found[name][1], (name, found[name])
            assert found[name][1].startswith("reconfigure of group "), found[name]


def told_otherwise() -> str:
    """Rank 1 is given the handles in another order. The next attempt goes well."""
    meeting = started()
    handles = meeting.handles("all", 0, 1, 2)
    given = handles if meeting.me != 1 else [handles[0], handles[2], handles[1]]
    limit = LONG if meeting.me == 1 else timedelta(seconds=5)
    meeting.all_here("begin", 0, 1, 2)
    _, text, _ = failure(lambda: dist._reconfigure(1, given, timeout=limit))
    assert backend().get_error() == ErrorType.COMM_ERROR
    assert "its last reconfigure() failed" in failure(lambda: dist.barrier())[1]
    meeting.all_here("failed", 0, 1, 2)
    join(2, handles)
    check()
    dist.destroy_process_group()
    return text


@WAYS
def test_ranks_that_were_told_different_members(memory: str) -> None:
    first, second, third = run_ranks(told_otherwise, 3, init=False, env={"TORCH_UCC_HOST_PATH": memory})
    assert "but the first of them was given torch_ucc:" in second
    assert "rank(s) 1 of 3" in first, first  # for which the others wait
    assert third


def one_stays_away() -> tuple[str, float]:
    meeting = started()
    handles = meeting.handles("all", 0, 1, 2)
    join(1, handles)
    text, seconds = "", 0.0
    meeting.all_here("begin", 0, 1, 2)
    if meeting.me != 2:
        began = time.monotonic()
        _, text, ended = failure(lambda: dist._reconfigure(2, handles, timeout=timedelta(seconds=5)))
        seconds = ended - began
    meeting.all_here("failed", 0, 1, 2)
    if meeting.me != 2:
        join(3, handles[:2])
        check()
    dist.destroy_process_group()
    return text, seconds


@WAYS
def test_a_member_that_does_not_come(memory: str) -> None:
    found = run_ranks(one_stays_away, 3, init=False, env={"TORCH_UCC_HOST_PATH": memory})
    for text, seconds in found[:2]:
        assert "rank(s) 2 of 3" in text and 4.9 < seconds < 50, (text, seconds)


def hooked() -> list[int]:
    """An abort hook holds for the groups of all later members, once for each."""
    meeting = started()
    handles = meeting.handles("all", 0, 1)
    calls: list[int] = []
    backend().register_abort_hook(1, lambda: calls.append(dist.get_world_size()))
    for uuid in (1, 2):
        join(uuid, handles)
        meeting.all_here(f"joined {uuid}", 0, 1)
        backend().abort()
    dist.destroy_process_group()
    return calls


def test_abort_hooks_are_kept() -> None:
    assert run_ranks(hooked, 2, init=False) == [[2, 2], [2, 2]]


def shut_down_meanwhile() -> tuple[str, str]:
    """Another thread shuts the group down while it waits for members."""
    meeting = started()
    thread = threading.Timer(0.5, lambda: backend().shutdown())
    thread.start()
    other = f"{meeting.handles('mine', meeting.me)[0]} of nobody"
    handles = [meeting.handles("mine", meeting.me)[0], other]
    text = failure(lambda: dist._reconfigure(1, handles, timeout=timedelta(seconds=3)))[1]
    thread.join()
    return text, failure(lambda: dist.barrier())[1]


def test_a_group_that_was_shut_down_stays_so() -> None:
    for text, later in run_ranks(shut_down_meanwhile, 1, init=False):
        assert "rank(s) 1 of 2" in text and "was shut down" in later, (text, later)


def aborted() -> str:
    meeting = started()
    handles = meeting.handles("all", 0, 1)
    join(1, handles)
    meeting.all_here("joined", 0, 1)
    backend().abort()
    text = failure(lambda: dist.barrier())[1]
    assert backend().get_error() == ErrorType.COMM_ERROR
    join(2, handles)
    assert backend().get_error() == ErrorType.SUCCESS
    check()
    dist.destroy_process_group()
    return text


@WAYS
def test_after_an_abort(memory: str) -> None:
    for text in run_ranks(aborted, 2, init=False, env={"TORCH_UCC_HOST_PATH": memory}):
        assert "was shut down" in text


def timed_out() -> None:
    """Rank 0 does not call. The others' timeout ends the group, and all join again."""
    meeting = started()
    handles = meeting.handles("all", 0, 1, 2)
    join(1, handles)
    check()
    if meeting.me != 0:
        backend().set_timeout(timedelta(seconds=1))
        assert "timed out" in failure(lambda: dist.all_reduce(torch.ones(4)))[1]
        assert backend().get_error() == ErrorType.TIMEOUT
        backend().set_timeout(LONG)
    meeting.all_here("seen", 0, 1, 2)
    join(2, handles)
    check()
    dist.destroy_process_group()


@WAYS
def test_after_a_timeout(memory: str) -> None:
    run_ranks(timed_out, 3, init=False, env={"TORCH_UCC_HOST_PATH": memory})


def killed_in_an_all_reduce(folder: str, numel: int, dying: int) -> None:
    meeting = started()
    everybody = range(3)
    join(1, meeting.handles("all", *everybody))
    check()
    tensor = torch.ones(numel)
    if meeting.me == dying:
        dist.all_reduce(tensor, async_op=True)
        os.kill(os.getpid(), signal.SIGKILL)
    kind = "nothing"
    while kind == "nothing":  # the dead one may have taken part in the first
        kind, text, _ = failure(lambda: dist.all_reduce(tensor))
    assert re.search(r"rank \d \(host .+, pid \d+\) has died", text), text
    assert backend().get_error() == ErrorType.REMOTE_ERROR
    rest = [rank for rank in everybody if rank != dying]
    join(2, meeting.handles("rest", *rest))
    assert backend().get_error() == ErrorType.SUCCESS
    check()
    dist.destroy_process_group()
    Path(folder, str(meeting.me)).write_text("done")


@WAYS
@pytest.mark.parametrize(("numel", "dying"), [(4, 0), (4, 1), (1 << 22, 2), (1 << 22, 0)])
def test_after_a_kill_in_an_all_reduce(tmp_path: Path, memory: str, numel: int, dying: int) -> None:
    with only_these_die(dying):
        run_ranks(
            killed_in_an_all_reduce,
            3,
            str(tmp_path),
            numel,
            dying,
            init=False,
            grace=GRACE,
            env={"TORCH_UCC_HOST_PATH": memory},
        )
    assert {int(path.name) for path in tmp_path.iterdir()} == {0, 1, 2} - {dying}


def in_flight() -> list[str]:
    """A receive and a collective that nobody answers are given up, and write nothing any more."""
    meeting = started()
    handles = meeting.handles("all", 0, 1)
    join(1, handles)
    received, summed = torch.full((100_000,), 7.0), torch.full((100_000,), 7.0)
    works = []
    if meeting.me == 0:
        works = [dist.irecv(received, 1), dist.all_reduce(summed, async_op=True)]
    join(2, handles)
    check()
    texts = [failure(lambda work=work: work.wait())[1] for work in works]
    assert torch.equal(received, torch.full_like(received, 7.0))
    assert torch.equal(summed, torch.full_like(summed, 7.0))
    dist.destroy_process_group()
    return texts


@WAYS
def test_what_is_in_flight_is_given_up(memory: str) -> None:
    texts, none = run_ranks(in_flight, 2, init=False, env={"TORCH_UCC_HOST_PATH": memory})
    assert none == []
    assert all("reconfigured while it was in flight" in text for text in texts) and len(texts) == 2, texts


def several_groups() -> None:
    """Three groups of one process change their members at different times."""
    meeting = started()
    me = meeting.me
    join(1, meeting.handles("all", 0, 1, 2))
    options = torch_ucc.Options()
    options.enable_reconfigure = True
    others = [dist.new_group([0, 1, 2], pg_options=options) for _ in range(2)]
    for number, group in enumerate(others):
        join(1, meeting.handles(f"other {number}", 0, 1, 2, group=group), group)
        check(group)
    check()
    handles = meeting.handles("fewer", 1, 2, group=others[0])
    if me != 0:
        join(2, handles, others[0])
        check(others[0])
    check()
    check(others[1])
    join(3, meeting.handles("turned", 2, 1, 0))
    check()
    check(others[1])
    dist.destroy_process_group()


@WAYS
def test_several_groups_of_a_process(memory: str) -> None:
    run_ranks(several_groups, 3, init=False, env={"TORCH_UCC_HOST_PATH": memory})


def many_times(turns: int) -> int:
    """What grows with the number of changes: bytes of resident memory."""
    meeting = started()
    handles = meeting.handles("all", 0, 1)

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    began = 0
    for turn in range(turns):
        join(turn, handles)
        dist.all_reduce(torch.ones(1000))
        if turn == turns // 4:
            began = resident()
    grown = resident() - began
    assert len(extension.compiled().open_contexts()) == 1
    dist.destroy_process_group()
    return grown


def test_nothing_is_left_of_former_members() -> None:
    turns = 100
    for grown in run_ranks(many_times, 2, turns, init=False):
        assert grown < turns * 64 * 1024, grown


def across_hosts(folder: str) -> None:
    """Two hosts of two ranks. A rank of the second host dies, and the others go on."""
    meeting = started()
    join(1, meeting.handles("all", 0, 1, 2, 3))
    check()
    if meeting.me == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    while failure(lambda: dist.all_reduce(torch.ones(1 << 16)))[0] == "nothing":
        pass
    join(2, meeting.handles("rest", 0, 1, 2))
    check()
    Path(folder, str(meeting.me)).write_text(json.dumps(dist.get_rank()))
    dist.destroy_process_group()


@pytest.mark.usefixtures("hosts_allowed")
def test_on_several_hosts(pair: Hosts, tmp_path: Path) -> None:
    with only_these_die(3):
        pair.run(across_hosts, str(tmp_path), per_host=2, init=False, grace=GRACE)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2"]
