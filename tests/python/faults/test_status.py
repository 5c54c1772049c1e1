"""`torch-ucc status` names who keeps a job from going on, and why: from another process, with one call."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch_ucc.testing.hosts import hosts, why_not

pytestmark = pytest.mark.multirank

LIMIT = 120.0
"""Seconds until a job must be in its fault, and status must see it: for a machine under load."""
RANKS = 3

PROGRAM = """
import os, sys, time
import torch, torch.distributed as dist

fault = sys.argv[1]
dist.init_process_group("ucc")
rank, data = dist.get_rank(), torch.ones(1000)
for _ in range(20):
    dist.all_reduce(data)
if fault == "loop" and rank == 1:
    while True: pass  # in one line, which is that of the stack
if fault == "sleep" and rank == 1:
    time.sleep(1000)
try:
    if fault == "other operation" and rank == 1:
        dist.barrier()  # while the others wait in all_reduce
    while True:
        dist.all_reduce(data)
        time.sleep(0.2 if fault == "slow" and rank == 2 else 0.002)
except RuntimeError:
    time.sleep(1000)  # as a program that handles the error
"""


@contextlib.contextmanager
def job(fault: str, **setting: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The ranks of a program with this fault."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ranks = []
    try:
        for rank in range(RANKS):
            env = {
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": str(RANKS),
                "LOCAL_RANK": str(rank),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(store.port),
                "TORCHELASTIC_USE_AGENT_STORE": "True",
                "OMP_NUM_THREADS": "1",
                **setting,
            }
            ranks.append(subprocess.Popen([sys.executable, "-c", PROGRAM, fault], env=env))
        yield ranks
    finally:
        for each in ranks:
            each.kill()
        for each in ranks:
            each.wait()


def status(*arguments: str, before: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [*before, sys.executable, "-m", "torch_ucc", "status", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def until(
    sees: Callable[[dict[str, Any]], bool], *arguments: str, before: tuple[str, ...] = ()
) -> dict[str, Any]:
    """What status says once it sees what is expected."""
    deadline = time.monotonic() + LIMIT
    while True:
        told = status("--json", *arguments, before=before)
        if told.returncode in (0, 1):
            data: dict[str, Any] = json.loads(told.stdout)
            if sees(data):
                return data
        if time.monotonic() > deadline:
            raise AssertionError(f"status says:\n{told.stdout}\n{told.stderr}")
        time.sleep(0.2)


def blames(rank: int, says: str = "") -> Callable[[dict[str, Any]], bool]:
    """Whether the rank is named as the first cause, in a sentence with these words.

    On a busy machine a rank that will be stuck may be called slow before, and be waited for by some ranks
    before it is by all.
    """
    return lambda data: (
        bool(data["findings"])
        and data["findings"][0]["ranks"] == [rank]
        and says in data["findings"][0]["text"]
    )


def test_a_job_that_runs_well() -> None:
    with job("none") as ranks:
        pid = str(ranks[0].pid)
        data = until(lambda data: len(data["ranks"]) == RANKS and not data["findings"], pid)
        assert data["size"] == RANKS
        assert {each["pid"] for each in data["ranks"]} == {each.pid for each in ranks}


def test_a_rank_in_an_endless_loop() -> None:
    with job("loop") as ranks:
        pid = str(ranks[0].pid)
        data = until(blames(1, "Ranks 0,2 have waited for rank 1"), pid)
        text = data["findings"][0]["text"]
        assert "outside of torch-ucc" in text
        assert "Ranks 0,2 have waited for rank 1" in text
        assert "all_reduce(float32[1000] SUM)" in text
        shown = status(pid, "--rank", "1").stdout
        assert 'File "<string>", line 11 in <module>' in shown, shown
        threads = [line.split()[1] for line in shown.splitlines() if " ucc-" in line]
        assert {"ucc-progress", "ucc-watch"} <= set(threads), shown


def test_a_terminal_gets_colours() -> None:
    with job("loop") as ranks:
        pid = str(ranks[0].pid)
        until(blames(1), pid)
        command = shlex.join([sys.executable, "-m", "torch_ucc", "status", pid])
        for colours, wanted in (({}, True), ({"NO_COLOR": "1"}, False)):
            env = {**os.environ, "TERM": "xterm", "COLUMNS": "100", **colours}
            env = {name: value for name, value in env.items() if name != "NO_COLOR" or colours}
            ran = subprocess.run(
                ["script", "-qec", command, "/dev/null"],
                env=env,
                capture_output=True,
                stdin=subprocess.DEVNULL,
                text=True,
                timeout=60,
                check=False,
            )
            assert ran.returncode == 1, ran.stdout
            assert "Rank 1" in ran.stdout
            assert ("\033[31m! Rank 1" in ran.stdout) == wanted, ran.stdout
            assert ("\n+--" in ran.stdout) == wanted, ran.stdout
        assert "\033" not in status(pid).stdout


def test_a_rank_that_sleeps() -> None:
    with job("sleep") as ranks:
        text = until(blames(1, "sleeps"), str(ranks[0].pid))["findings"][0]["text"]
        assert "sleeps" in text


def test_a_stopped_rank() -> None:
    with job("none") as ranks:
        pid = str(ranks[0].pid)
        until(lambda data: len(data["ranks"]) == RANKS, pid)
        ranks[2].send_signal(signal.SIGSTOP)
        text = until(blames(2, "is stopped"), pid)["findings"][0]["text"]
        assert "is stopped" in text
        assert f"pid {ranks[2].pid}" in text


def test_a_dead_rank() -> None:
    with job("sleep") as ranks:
        pid = str(ranks[1].pid)
        until(blames(1), pid)
        ranks[2].kill()
        text = until(blames(2, "has died"), pid)["findings"][0]["text"]
        assert "has died" in text


@pytest.mark.parametrize("host_path", ["1", "0"])
def test_a_rank_in_the_wrong_operation(host_path: str) -> None:
    with job("other operation", TORCH_UCC_HOST_PATH=host_path) as ranks:
        pid = str(ranks[0].pid)

        def sees(data: dict[str, Any]) -> bool:
            texts = " ".join(each["text"] for each in data["findings"])
            return "barrier" in texts and "all_reduce" in texts and "rank 1" in texts.lower()

        until(sees, pid)


def test_a_slow_rank() -> None:
    with job("slow") as ranks:
        text = until(blames(2, "is slow"), str(ranks[0].pid))["findings"][0]["text"]
        assert text.startswith("Rank 2 is slow: it was the last to call ")


def test_a_job_that_is_not_there() -> None:
    told = status("nonsense")
    assert told.returncode == 2
    assert "no job nonsense" in told.stderr


def looping(rank_that_loops: int) -> None:
    data = torch.ones(1000)
    for _ in range(20):
        dist.all_reduce(data)
    if dist.get_rank() == rank_that_loops:
        time.sleep(1000)
    while True:
        dist.all_reduce(data)
        time.sleep(0.002)


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
@pytest.mark.parametrize("culprit", [0, 3])
def test_ranks_of_another_host(culprit: int) -> None:
    with hosts(2) as made, made.started(looping, culprit, per_host=2) as ranks:
        before = tuple(made.at(0))
        data = until(blames(culprit), before=before)
        assert len(data["ranks"]) == 4
        assert [len(each) for each in data["hosts"].values()] == [2, 2]
        # The rank that host 0 asks for the state of host 1 may be stopped: another one answers.
        ranks.kill(2, signal.SIGSTOP)
        data = until(
            lambda data: any(each["rank"] == 2 and each["state"] == "T" for each in data["ranks"]),
            before=before,
        )
        assert len(data["ranks"]) == 4


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_the_stack_of_a_rank_of_another_host() -> None:
    with hosts(2) as made, made.started(looping, 3, per_host=2) as ranks:
        before = tuple(made.at(0))
        job = until(blames(3), before=before)["job"]
        shown = status("--rank", "3", before=before).stdout
        assert re.search(r'File ".*test_status\.py", line \d+ in looping', shown), shown
        assert f"ssh host1 torch-ucc status {job} --rank 3" in shown
        ranks.kill(3, signal.SIGSTOP)
        shown = status("--rank", "3", before=before).stdout
        assert "no answer: the process is stopped" in shown, shown
        # The other rank of that host may be stopped, too.
        ranks.kill(2, signal.SIGSTOP)
        ranks.kill(3, signal.SIGCONT)
        shown = status("--rank", "3", before=before).stdout
        assert re.search(r'File ".*test_status\.py", line \d+ in looping', shown), shown


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_the_stack_of_a_rank_whose_host_is_silent() -> None:
    with hosts(2) as made, made.started(looping, 1) as ranks:
        before = tuple(made.at(0))
        job = until(blames(1), before=before)["job"]
        assert "in looping" in status("--rank", "1", before=before).stdout
        ranks.kill(1, signal.SIGSTOP)
        shown = status("--rank", "1", before=before)
        assert "nothing was seen of it" in shown.stdout, shown
        assert f"ssh host1 torch-ucc status {job} --rank 1" in shown.stdout


def moving() -> None:
    data = torch.ones(1 << 20)
    while True:
        dist.all_reduce(data)


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_a_host_whose_network_is_slow() -> None:
    with hosts(3) as made, made.started(moving):
        before = tuple(made.at(0))
        until(lambda data: len(data["ranks"]) == 3 and not data["findings"], before=before)
        made.limit(2, "40mbit")

        def sees(data: dict[str, Any]) -> bool:
            return bool(data["findings"]) and data["findings"][0]["ranks"] == [2]

        text = until(sees, before=before)["findings"][0]["text"]
        assert text.startswith("The network of host host2 is slow: host host2 sends "), text


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_a_host_that_gives_no_answer() -> None:
    with hosts(2) as made, made.started(looping, 3, per_host=2):
        before = tuple(made.at(0))
        until(blames(3), before=before)
        made.cut(1)
        data = until(lambda data: bool(data["silent"]) or bool(data["gone"]), before=before)
        assert len(data["silent"]) == 1 or set(data["gone"]) == {"2", "3"}
        accused = {rank for each in data["findings"] for rank in each["ranks"]}
        assert accused <= {int(rank) for rank in data["gone"]}
