"""Ranks and whole hosts that end while ranks of other hosts count on them, and silences that are no end.

As in test_deaths.py the groups' own timeouts are a minute: a test that passes in less was not saved by one.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from deaths import GRACE, failure, meet, note, only_these_die, wait_for
from test_deaths import DEATHS, LATE, OPS, others_go_on, survivors_go_on
from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch_ucc.testing.hosts import Hosts, hosts

pytestmark = pytest.mark.multirank

SOON = {"TORCH_UCC_CLOSE_TIMEOUT": "500ms"}
"""For groups that cannot close well: the ranks need not wait for each other long."""

Failure = tuple[str, str, float]


@dataclass(frozen=True)
class Case:
    """What others are doing, in a world of its own, when its last rank dies, which is on host 1."""

    op: str
    how: str = "killed"
    numel: int = 4
    survivors: tuple[int, ...] = (0,)
    pause: float = 0.1  # so that the others are in their call, mostly; with none they begin it about then

    def __str__(self) -> str:
        when = "" if self.pause else "-at-once"
        return f"{self.op}-{self.how}{when}-{self.numel}-{len(self.survivors)}"


SURVIVORS = (0, 1, 2)
"""Of all cases: two on host 0, one on host 1, where the ranks follow that die, one in each case."""

KILLED = [
    *(Case(op) for op in OPS),
    Case("all_reduce", "left"),
    *(
        Case(op, numel=numel, survivors=SURVIVORS)
        for op in ("all_reduce", "all_to_all", "recv_any_source")
        for numel in (4, 1 << 20)
    ),
    Case("all_reduce", numel=1 << 20, survivors=SURVIVORS, pause=0.0),
    Case("all_to_all", numel=1 << 20, survivors=SURVIVORS, pause=0.0),
]
EXITED = [Case("all_reduce", "exited"), Case("recv", "exited", survivors=SURVIVORS)]
CASES = [*KILLED, *EXITED]


def last_rank_dies(folder: str, case: Case) -> None:
    rest = dist.new_group(list(range(len(case.survivors))))
    meet()
    if dist.get_rank() == len(case.survivors):
        time.sleep(case.pause)
        note(folder, time.monotonic())
        DEATHS[case.how]()
    first = failure(lambda: OPS[case.op](case.numel))
    again = failure(lambda: dist.all_reduce(torch.ones(2)))
    tensor = torch.ones(3)
    other = failure(lambda: dist.all_reduce(tensor, group=rest))
    note(folder, [first, again, other, tensor.tolist()])


def die_one_by_one(folder: str) -> None:
    """All cases in one start, in turn, each in a world of its own."""
    shared = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    me = int(os.environ["RANK"])
    for mortal, case in enumerate(CASES, len(SURVIVORS)):
        world = [*case.survivors, mortal]
        if me not in world:
            continue
        if me == 0:
            shared.set(f"turn {case}", "")
        else:
            shared.wait([f"turn {case}"], timedelta(minutes=3))
        dist.init_process_group(
            "ucc",
            store=PrefixStore(str(case), shared),
            rank=world.index(me),
            world_size=len(world),
            timeout=timedelta(seconds=60),
        )
        last_rank_dies(str(Path(folder, str(case))), case)
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def folder(hosts_allowed: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds one folder a case, with what each rank found."""
    path: Path = tmp_path_factory.mktemp("cases")
    for case in CASES:
        (path / str(case)).mkdir()
    mortals = range(len(SURVIVORS), len(SURVIVORS) + len(CASES))
    with hosts(2) as pair, only_these_die(*mortals):
        pair.run(
            die_one_by_one,
            str(path),
            per_host=(2, 1 + len(CASES)),
            init=False,
            timeout=120.0,
            grace=120.0,
        )
    return path


def notes_of(folder: Path, case: Case) -> list[Any]:
    """By rank; that of the dead is when it died."""
    return [
        json.loads((folder / str(case) / str(rank)).read_text()) for rank in range(len(case.survivors) + 1)
    ]


def found_in(folder: Path, case: Case) -> Iterator[tuple[Failure, Failure, float]]:
    """The first failure of each survivor, the next one, and the seconds from the death to the first."""
    *found, died = notes_of(folder, case)
    for first, again, *_ in found:
        yield first, again, first[2] - died


@pytest.mark.parametrize("case", KILLED, ids=str)
def test_a_death_is_noticed(folder: Path, case: Case) -> None:
    """Its connections may be reset, where it had not read what was sent to it."""
    dead = rf"rank {len(case.survivors)} \(host host1, pid \d+\) (has died|was lost: its TCP connection was)"
    for (kind, text, _), (later_kind, later_text, _), delay in found_in(folder, case):
        assert kind == "DistBackendError" and re.search(dead, text), (kind, text)
        assert later_kind == "DistBackendError" and re.search(dead, later_text), (later_kind, later_text)
        assert delay < LATE


def test_it_is_noticed_within_a_second(folder: Path) -> None:
    """In the median: a case may have met a busy machine."""
    delays = sorted(delay for case in KILLED for *_, delay in found_in(folder, case))
    assert delays[len(delays) // 2] < 1.0, delays


@pytest.mark.parametrize("case", EXITED, ids=str)
def test_a_rank_that_exits_with_its_group_open(folder: Path, case: Case) -> None:
    for (kind, text, _), _, delay in found_in(folder, case):
        assert kind == "DistBackendError", (kind, text)
        gone = rf"rank {len(case.survivors)} \(host host1, pid \d+\) has left while the group was open"
        assert re.search(gone, text), text
        assert delay < LATE


@pytest.mark.parametrize("case", [case for case in CASES if case.survivors == SURVIVORS], ids=str)
def test_groups_without_the_dead_go_on(folder: Path, case: Case) -> None:
    """Even while something of the broken group was under way, in which UCX and UCC notice too."""
    *found, _ = notes_of(folder, case)
    for _, _, (kind, text, _), total in found:
        assert (kind, text, total) == ("nothing", "", [3.0, 3.0, 3.0])


def test_errors_of_groups(pair: Hosts, tmp_path: Path) -> None:
    """Backends of groups across hosts say by get_error() which has failed."""
    with only_these_die(2):
        pair.run(others_go_on, str(tmp_path), per_host=(1, 2), group_timeout=60.0, grace=GRACE)
    for rank in (0, 1):
        lost, total, group, world = json.loads((tmp_path / str(rank)).read_text())
        assert (lost, total) == ("DistBackendError", [2.0, 2.0, 2.0])
        assert group.endswith("SUCCESS") and world.endswith("REMOTE_ERROR"), (group, world)


def test_survivors_form_a_smaller_world(pair: Hosts, tmp_path: Path) -> None:
    """On both hosts first, then on one."""
    with only_these_die(2, 3):
        pair.run(survivors_go_on, str(tmp_path), per_host=2, init=False, grace=GRACE)
    for rank in (0, 1):
        assert (tmp_path / f"done {rank}").exists()


def out_of_reach(folder: str) -> None:
    """Of two ranks on a host one waits for the other host, one is idle until the first was told."""
    rank, mate = dist.get_rank(), dist.get_rank() ^ 1
    mates = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
    dist.all_reduce(torch.ones(1))
    Path(folder, f"ready {rank}").touch()
    if rank % 2:
        wait_for(Path(folder, f"told {mate}"))
    lost = failure(lambda: dist.all_reduce(torch.ones(2)))
    Path(folder, f"told {rank}").touch()
    again = failure(lambda: dist.recv(torch.ones(2), (rank + 2) % 4))
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=mates)
    note(folder, [lost, again, tensor.tolist()])


@pytest.mark.parametrize("fault", ["vanishes", "is cut off"])
def test_a_host_that(pair: Hosts, tmp_path: Path, fault: str) -> None:
    """Each side is told of the other; what each has to itself goes on."""
    seen_by = {0: 1, 1: 1, 2: 0, 3: 0} if fault == "is cut off" else {0: 1, 1: 1}
    with pair.started(
        out_of_reach, str(tmp_path), per_host=2, group_timeout=60.0, grace=GRACE, env=SOON
    ) as ranks:
        wait_for(*(tmp_path / f"ready {rank}" for rank in range(4)))
        time.sleep(0.1)  # so that they are in their call, mostly
        began = time.monotonic()
        if fault == "vanishes":
            pair.vanish(1)
            with only_these_die(2, 3):
                ranks.values()
        else:
            pair.cut(1)
            ranks.values()
    delays = []
    for rank, other in seen_by.items():
        lost, again, total = json.loads((tmp_path / str(rank)).read_text())
        for kind, text, _ in (lost, again):
            assert kind == "DistBackendError", (kind, text)
            assert re.search(rf"rank \d \(host host{other}, pid \d+\) cannot be reached", text), text
        assert total == [2.0, 2.0, 2.0]
        delays.append(lost[2] - began)
    assert max(delays) < LATE and sorted(delays)[len(delays) // 2 - 1] < 5.0, delays


def go_on_until(done: str) -> int:
    """Sums over all ranks until somebody has seen the file; returns how many."""
    count = 0
    while True:
        mine = torch.full((1000,), float(Path(done).exists()))
        dist.all_reduce(mine)
        count += 1
        assert bool((mine == mine[0]).all()) and float(mine[0]) in (0.0, 1.0, 2.0)
        if mine[0]:
            return count
        Path(f"{done} is not here").touch()
        time.sleep(0.01)


def test_a_short_cut_harms_nothing(pair: Hosts, tmp_path: Path) -> None:
    done = tmp_path / "done"
    with pair.started(go_on_until, str(done), group_timeout=60.0) as ranks:
        wait_for(tmp_path / "done is not here")
        began = time.monotonic()
        pair.cut(1)
        time.sleep(1.0)
        pair.heal(1)
        lasted = time.monotonic() - began
        time.sleep(1.0)
        done.touch()
        if lasted > 1.5:
            pytest.skip(f"this machine took {lasted:.1f} s for a cut of 1 s")
        first, second = ranks.values()
    assert first == second


def wait_beside_a_stopped_rank(folder: str) -> Any:
    """Rank 1 is stopped: a group with a short timeout fails, one with a long timeout gets over it."""
    impatient = dist.new_group([0, 1], timeout=timedelta(seconds=2))
    dist.all_reduce(torch.ones(1))
    Path(folder, f"ready {dist.get_rank()}").touch()
    wait_for(Path(folder, "stopped"))
    found = None
    if dist.get_rank() == 0:
        found = failure(lambda: dist.all_reduce(torch.ones(2), group=impatient))
        Path(folder, "failed").touch()
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    return found, tensor.tolist()


def test_a_stopped_rank_is_not_dead(pair: Hosts, tmp_path: Path) -> None:
    """However much longer it is stopped than a host may be silent."""
    with pair.started(wait_beside_a_stopped_rank, str(tmp_path), group_timeout=60.0, env=SOON) as ranks:
        wait_for(*(tmp_path / f"ready {rank}" for rank in range(2)))
        ranks.kill(1, signal.SIGSTOP)
        (tmp_path / "stopped").touch()
        time.sleep(6.0)
        ranks.kill(1, signal.SIGCONT)
        (found, total), (_, same) = ranks.values()
    assert total == same == [2.0, 2.0]
    kind, text, _ = found
    assert kind == "DistBackendError" and "timed out" in text, (kind, text)
    assert "died" not in text and "cannot be reached" not in text, text


def sockets() -> list[tuple[str, int]]:
    """State and remote port of each TCP socket of this process."""
    own = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            own.add(str(descriptor.readlink()))
        except FileNotFoundError:  # the one that the folder was read by
            continue
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            _, _, remote, state, *_, inode = line.split()[:10]
            if f"socket:[{inode}]" in own:
                found.append((state, int(remote.rpartition(":")[2], 16)))
    return found


LISTEN = "0A"


def listening(at_most: float) -> int:
    """How many sockets listen on this rank once a group is made, or a little later if they are too many."""
    dist.all_reduce(torch.ones(1))
    dist.barrier()
    bound = time.monotonic() + LATE
    while (count := [state for state, _ in sockets()].count(LISTEN)) > at_most and time.monotonic() < bound:
        time.sleep(0.05)
    return count


def test_a_rank_of_several_hosts_listens_at_one_port_of_ours(pair: Hosts) -> None:
    """For torch-ucc status. UCX listens, too, for its TCP: across hosts as on one, on the same devices."""
    same = {"UCX_NET_DEVICES": "all", "TORCH_UCC_HOST_PATH": "0"}
    alone = pair.run(listening, math.inf, per_host=(1, 0), env=same)[0]
    assert alone > 0
    assert pair.run(listening, alone + 1, per_host=2, env=same) == [alone + 1] * 4


def remote_ports() -> list[int]:
    dist.all_reduce(torch.ones(1))
    return [port for _, port in sockets()]


def test_on_one_host_there_is_no_connection_but_to_the_store(pair: Hosts) -> None:
    with pair.started(remote_ports, per_host=(2, 0), env={"UCX_TLS": "sm,self"}) as ranks:
        assert {port for ports in ranks.values() for port in ports} == {ranks.store.port}
