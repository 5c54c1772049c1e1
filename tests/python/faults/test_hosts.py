"""Simulated hosts: they are several, groups across them compute right, and each fault is what it says."""

from __future__ import annotations

import itertools
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch_ucc
from torch._C._distributed_c10d import TCPStore
from torch_ucc.testing import RankError, running, stacks
from torch_ucc.testing.hosts import Hosts, Ranks, hosts
from torch_ucc.topology.algorithms import OVER_TCP

pytestmark = pytest.mark.multirank

FAR = 600.0
"""Seconds: a limit that no test reaches."""


def identity() -> tuple[str, str, list[str], list[str]]:
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    links = [name for _, name in socket.if_nameindex()]
    return socket.gethostname(), boot_id, sorted(links), [each.name for each in Path("/dev/shm").iterdir()]


def test_hosts_are_told_apart(pair: Hosts) -> None:
    own = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    (zero, boot0, links0, shm0), (same, boot1, *_), (one, boot2, *_) = pair.run(
        identity, per_host=(2, 1), init=False
    )
    assert (zero, same, one) == ("host0", "host0", "host1")
    assert boot0 == boot1 and len({boot0, boot2, own}) == 3
    assert links0 == ["eth0", "lo"] and shm0 == []


def seconds_of_all_reduce(numel: int) -> float:
    dist.barrier()
    began = time.monotonic()
    dist.all_reduce(torch.ones(numel))
    return time.monotonic() - began


def test_a_network_may_be_slow() -> None:
    with hosts(2, rate="80mbit") as pair:
        assert min(pair.run(seconds_of_all_reduce, 1 << 20)) > 0.3  # 4 MiB each way, 10 MB a second


def values(numel: int) -> dict[str, list[float]]:
    """One element of each part of each result; all elements of a part are the same."""
    rank, size = dist.get_rank(), dist.get_world_size()
    total = torch.full((numel,), float(rank + 1))
    dist.all_reduce(total)
    gathered = [torch.empty(numel) for _ in range(size)]
    dist.all_gather(gathered, torch.full((numel,), float(rank)))
    sent = [torch.full((numel,), 10.0 * rank + other) for other in range(size)]
    exchanged = [torch.empty(numel) for _ in range(size)]
    dist.all_to_all(exchanged, sent)
    received = [torch.empty(numel) for _ in range(size - 1)]
    works = [dist.isend(sent[other], other) for other in range(size) if other != rank]
    for step, tensor in enumerate(received, 1):
        dist.recv(tensor, (rank - step) % size)
    for work in works:
        assert work is not None
        work.wait()
    results = {"total": [total], "gathered": gathered, "exchanged": exchanged, "received": received}
    for tensors in results.values():
        assert all(bool((tensor == tensor[0]).all()) for tensor in tensors)
    return {name: [float(tensor[0]) for tensor in tensors] for name, tensors in results.items()}


def values_and_transports() -> tuple[list[dict[str, list[float]]], dict[str, Any]]:
    return [values(numel) for numel in (1, 1000, 1 << 20)], torch_ucc.describe()


@pytest.mark.parametrize("per_host", [1, 2])
def test_groups_across_hosts(pair: Hosts, per_host: int) -> None:
    """Right values at every size, over TCP between the hosts and shared memory within each."""
    size = 2 * per_host
    for rank, (results, about) in enumerate(pair.run(values_and_transports, per_host=per_host)):
        assert (
            results
            == [
                {
                    "total": [size * (size + 1) / 2],
                    "gathered": [float(other) for other in range(size)],
                    "exchanged": [10.0 * other + rank for other in range(size)],
                    "received": [10.0 * ((rank - step) % size) + rank for step in range(1, size)],
                }
            ]
            * 3
        )
        assert about["hosts"] == ["host0", "host1"] and about["ranks"] == size
        assert about["transports"]["other host"] == ["tcp/eth0"], about
        assert about["options"]["UCC_TL_UCP_TUNE"] == {"value": OVER_TCP, "source": "plan"}
        within = about["transports"].get("same host", [])
        # Without cma UCX keeps TCP in reserve; none of its protocols uses it within a host.
        assert any(name.endswith("/memory") for name in within) == (per_host > 1), about


@pytest.mark.parametrize("per_host", [1, 2])
def test_hosts_that_reach_each_other_give_no_warning(
    pair: Hosts, per_host: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """All lines between the ranks can be made, also where two ranks connect to each other."""
    pair.run(dist.barrier, per_host=per_host)
    told = capsys.readouterr()
    assert "cannot open a TCP connection" not in told.out + told.err


def misled() -> float:
    """With the variables that vLLM sets on CPUs."""
    os.environ["LOCAL_WORLD_SIZE"] = os.environ["WORLD_SIZE"]
    dist.init_process_group("ucc")
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    return float(tensor)


def test_a_wrong_number_of_ranks_on_the_host_does_no_harm(pair: Hosts) -> None:
    assert pair.run(misled, init=False) == [2.0, 2.0]


def wait_until(condition: Callable[[], bool]) -> None:
    bound = time.monotonic() + FAR
    while not condition():
        assert time.monotonic() < bound
        time.sleep(0.01)


def beat() -> None:
    """Count in the store for ever."""
    store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    while True:
        store.add(os.environ["RANK"], 1)
        time.sleep(0.01)


def beats(ranks: Ranks, rank: int) -> int:
    return int(ranks.store.add(str(rank), 0))


def wait_for_beats(ranks: Ranks, rank: int) -> None:
    """Until two more have come: one may have been on its way when this was called."""
    seen = beats(ranks, rank)
    wait_until(lambda: beats(ranks, rank) >= seen + 2)


def test_a_host_is_cut_and_healed_and_vanishes(pair: Hosts) -> None:
    with pair.started(beat, init=False) as ranks:
        wait_for_beats(ranks, 0)
        wait_for_beats(ranks, 1)
        pair.cut(1)
        wait_for_beats(ranks, 0)  # by then what was on its way has come
        seen = beats(ranks, 1)
        time.sleep(0.3)
        assert beats(ranks, 1) == seen
        pair.heal(1)
        wait_for_beats(ranks, 1)
        pair.vanish(1)
        wait_for_beats(ranks, 0)
        ranks.kill(0)
        with pytest.raises(RankError) as caught:
            ranks.values()
    assert caught.value.errors == dict.fromkeys((0, 1), "ended with signal SIGKILL and left no result")


def stay(folder: str) -> None:
    Path(folder, os.environ["RANK"]).touch()
    while True:
        time.sleep(3600)


def test_the_limit_shows_stacks_and_kills(
    pair: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    clock = itertools.chain([time.monotonic()], itertools.repeat(time.monotonic() + 10 * FAR))
    with pair.started(stay, str(tmp_path), per_host=(0, 1), init=False, timeout=FAR) as ranks:
        wait_until((tmp_path / "0").exists)
        pid = ranks.pid(0)
        monkeypatch.setattr(running, "_now", lambda: next(clock))
        with pytest.raises(RankError, match="had not ended after 600 s: 0"):
            ranks.values()
    assert stacks.ended(pid)
    said = capfd.readouterr().err
    assert "in stay" in said and "C stacks" in said


ABANDONED = """
import json, os, pathlib, sys, time
from torch_ucc.testing.hosts import hosts
from test_hosts import stay
from torch_ucc.testing import stacks

if __name__ == "__main__":
    with hosts(2) as pair, pair.started(stay, sys.argv[1], init=False):
        while not all(pathlib.Path(sys.argv[1], rank).exists() for rank in "01"):
            time.sleep(0.01)
        print(json.dumps(stacks.descendants(os.getpid())), flush=True)
        time.sleep(3600)
"""


def test_nothing_outlives_the_caller(hosts_allowed: None, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(ABANDONED)
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    with subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "TMPDIR": str(tmp_path)},  # its own is left there
    ) as caller:
        assert caller.stdout is not None
        below = json.loads(caller.stdout.readline())
        assert len(below) > 7, "three holders, two ranks and those who wait for them"
        caller.kill()
        wait_until(lambda: all(map(stacks.ended, below)))
