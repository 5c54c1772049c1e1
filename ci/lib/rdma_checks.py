"""What ci/rdma checks in its guest: torch-ucc between simulated hosts that have an RDMA device each.

The hosts are simulated (`torch_ucc.testing.hosts`). Each gets an rxe device on its network interface: RoCE in
software, by the kernel. A device counts the packets that it sends, so a check can tell that data took this
way. Nothing is set that would choose a transport: the plan and UCX choose.

The kernel's parameter rdma=NAME,NAME names the checks to run; without it, all of them run.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import itertools
import multiprocessing
import os
import random
import re
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch_ucc
from torch_ucc.testing import RankError
from torch_ucc.testing.hosts import Hosts, hosts

LIMIT = 1200.0
"""Seconds for the ranks of a check. The emulator is about 30 times slower than the machine."""
GROUP_LIMIT = 300.0
SENT = "ports/1/hw_counters/sent_pkts"
DEVICES = Path("/sys/class/infiniband")


class WrongError(Exception):
    """A check found something that must not be."""


def expect(true: bool, what: object) -> None:
    if not true:
        raise WrongError(str(what))


def sent() -> dict[str, int]:
    """Packets that each device has sent; only the first network namespace shows them."""
    return {path.name: int((path / SENT).read_text()) for path in sorted(DEVICES.iterdir())}


@contextlib.contextmanager
def data_goes_over_rdma(at_least: int) -> Iterator[None]:
    """Each device must have sent at least so many packets in the block."""
    before = sent()
    yield
    grown = {name: count - before[name] for name, count in sent().items()}
    print(f"  packets: {', '.join(f'{name} sent {count}' for name, count in grown.items())}")
    expect(min(grown.values()) >= at_least, f"fewer than {at_least} packets: {grown}")


def add_devices(pair: Hosts) -> None:
    """An rxe device for each host. With an MTU of 4200 a packet carries 4096 bytes."""
    for i in range(len(pair)):
        inside = ["nsenter", f"--net=/proc/{pair.pid(i)}/ns/net"]
        run(*pair.at_switch(), "ip", "link", "set", f"host{i}", "mtu", "4200")
        run(*inside, "ip", "link", "set", "eth0", "mtu", "4200")
        run(*inside, "rdma", "link", "add", f"rxe{i}", "type", "rxe", "netdev", "eth0")
    run(*pair.at_switch(), "ip", "link", "set", "switch", "mtu", "4200")


def run(*command: str) -> None:
    subprocess.run(command, check=True)


# What ranks do. All of it runs in processes of `hosts`.


def command(*arguments: str) -> tuple[int, str]:
    """Status and output of `torch-ucc` in a rank of a job."""
    from torch_ucc.cli import main

    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        status = main(list(arguments))
    return status, output.getvalue()


def command_alone(
    arguments: tuple[str, ...], without: tuple[str, ...], locked: int | None
) -> tuple[int, str]:
    """The same in a process of no job, `without` these variables. `locked`: how many bytes it may lock."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", *without):
        os.environ.pop(name, None)
    if locked is not None:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (locked, locked))
    return command(*arguments)


def all_operations(sizes: tuple[int, ...]) -> tuple[int, int, list[str], dict[str, Any]]:
    """Each operation in each of its ways, with three pairs of type and reduction. Each result is compared
    with the one that `conformance/reference.py` computes."""
    calls, table = importlib.import_module("calls"), importlib.import_module("table")
    failures, chance, salts = calls.Failures(), random.Random(2026), itertools.count(1)
    for case in table.CASES:
        for numel in sizes:
            for pair in chance.sample(case.pairs, min(3, len(case.pairs))):
                point = table.at_random(pair, numel, next(salts), chance, dist.group.WORLD)
                table.attempt(case, point, chance.choice(table.WAYS), failures)
    return (*failures.report(), torch_ucc.describe())


def large_messages(numel: int) -> float:
    """A ring of messages and a sum, both larger than UCX sends eagerly. Returns an element of the sum."""
    rank, size = dist.get_rank(), dist.get_world_size()
    mine, theirs = torch.full((numel,), float(rank)), torch.empty(numel)
    send = dist.P2POp(dist.isend, mine, (rank + 1) % size)
    recv = dist.P2POp(dist.irecv, theirs, (rank - 1) % size)
    for work in dist.batch_isend_irecv([send, recv]):
        work.wait()
    expect(bool((theirs == (rank - 1) % size).all()), "the message is wrong")
    dist.all_reduce(mine)
    expect(bool((mine == size * (size - 1) / 2).all()), "the sum is wrong")
    return float(mine[-1])


def fails_and_goes_on(group: dist.ProcessGroup) -> tuple[str, float, float]:
    """Calls an all_reduce that must fail, then sums in `group`.

    Returns the error, the seconds until it came, and an element of the sum.
    """
    began, error = time.monotonic(), ""
    try:
        dist.all_reduce(torch.ones(1000))
    except dist.DistBackendError as raised:
        error = str(raised)
    took = time.monotonic() - began
    total = torch.full((100_000,), float(dist.get_rank()))
    dist.all_reduce(total, group=group)
    return error, took, float(total[-1])


def goes_on_without(dead: int) -> tuple[str, float, float]:
    """Rank `dead` kills itself while the others wait for it. The others then use a group without it. Returns
    as fails_and_goes_on() does."""
    size, rank = dist.get_world_size(), dist.get_rank()
    rest = [each for each in range(size) if each != dead]
    group = dist.new_group(rest)
    dist.barrier()
    if rank == dead:
        time.sleep(2)
        os.kill(os.getpid(), signal.SIGKILL)
    return fails_and_goes_on(group)


def link_is_cut(folder: str) -> tuple[str, float, float]:
    """The host of the last ranks cannot be reached any more. Returns as
    fails_and_goes_on() does."""
    size, rank = dist.get_world_size(), dist.get_rank()
    half = size // 2
    mates = [dist.new_group(list(range(half))), dist.new_group(list(range(half, size)))][rank // half]
    dist.barrier()
    Path(folder, f"ready {rank}").touch()
    while not Path(folder, "cut").exists():
        time.sleep(0.1)
    return fails_and_goes_on(mates)


# The checks.


def commands(pair: Hosts) -> None:
    """`topo`, `plan`, `doctor` on a host, then `doctor` and `info` of a job on both hosts."""
    plan = ("plan", "--hosts", "2", "--ranks-per-host", "2")
    text = on_one_host(pair, ("topo",), 0)
    expect(bool(re.search(r"rxe0:1 .* 10 Gb/s\n", text)), "topo does not name the host's device")
    expect(
        bool(re.search(r"rxe1:1 .* 10 Gb/s, of another network namespace", text)),
        "topo takes rxe1 for a device of the host",
    )
    text = on_one_host(pair, plan, 0)
    expect("RoCE" in text and "rxe0:1\n" in text, "the plan does not select RoCE on rxe0:1")
    text = on_one_host(pair, ("doctor",), 0)
    expect("rxe1:1 cannot be used" in text, "doctor does not name the device of the other host")
    text = on_one_host(pair, ("doctor",), 1, locked=65536)
    expect("may lock only 64 KiB of memory" in text, "doctor does not see the limit of locked memory")
    # The UCX of PyPI, without verbs.
    text = on_one_host(pair, ("doctor",), 1, without=("UCX_HOME",))
    expect("rxe0:1 (Ethernet) cannot be used: UCX 1.22" in text, "doctor does not see that UCX has no verbs")
    text = on_one_host(pair, plan, 0, without=("UCX_HOME",))
    expect(
        "cannot drive RoCE: set UCX_HOME" in " ".join(text.split()), "the plan does not say why it takes TCP"
    )
    for name in ("doctor", "info"):
        answers = pair.run(command, name, per_host=1, init=False, timeout=LIMIT)
        status, text = answers[0]
        show((name, "of the job"), status, text)
        expect(status == 0, f"{name} ended with status {status}")
    expect("other host  rc_verbs/rxe0:1" in text, "info does not say that rank 0 uses rc_verbs on rxe0:1")
    expect("other host  rc_verbs/rxe1:1" in text, "info does not say that rank 1 uses rc_verbs on rxe1:1")


def on_one_host(
    pair: Hosts,
    arguments: tuple[str, ...],
    status: int,
    *,
    without: tuple[str, ...] = (),
    locked: int | None = None,
) -> str:
    """What the command prints on host 0. It must end with this status."""
    how = (arguments, without, locked)
    ((found, text),) = pair.run(command_alone, *how, per_host=(1, 0), init=False, timeout=LIMIT)
    show(arguments, found, text)
    expect(found == status, f"{arguments[0]} ended with status {found} instead of {status}")
    return str(text)


def show(arguments: tuple[str, ...], status: int, output: str) -> None:
    print(f"  torch-ucc {' '.join(arguments)}: status {status}")
    for line in output.splitlines():
        print(f"    {line}")


def operations(pair: Hosts, per_host: int) -> None:
    with data_goes_over_rdma(at_least=1000):
        reports = pair.run(
            all_operations, (3, 70_000), per_host=per_host, timeout=LIMIT, group_timeout=GROUP_LIMIT
        )
    for rank, (checked, count, first, about) in enumerate(reports):
        print(f"  rank {rank}: {checked} results compared, {count} wrong; {about['transports']}")
        expect(count == 0, first)
        expect(checked >= 100, f"only {checked} results were compared")
        expect(not about["differences"], about["differences"])
        used = about["transports"]["other host"]
        expect(any(name.startswith(("rc_", "ud_")) for name in used) and "tcp" not in used, used)


def two_ranks(pair: Hosts) -> None:
    operations(pair, 1)


def four_ranks(pair: Hosts) -> None:
    operations(pair, 2)


def large(pair: Hosts) -> None:
    """Messages of 16 MB, of which each device sends half of the packets at least."""
    numel = 4 << 20
    with data_goes_over_rdma(at_least=2 * 4 * numel // 4096):
        pair.run(large_messages, numel, per_host=1, timeout=LIMIT, group_timeout=GROUP_LIMIT)


def death(pair: Hosts) -> None:
    """The last of four ranks, on the second host, is killed. The three others, on both hosts, go on."""
    with data_goes_over_rdma(at_least=50):
        found = survivors(pair, {3}, lambda: pair.started(goes_on_without, 3, per_host=2, **TIMES))
    for rank, (error, took, total) in found.items():
        print(f"  rank {rank} after {took:.2f} s: {error}")
        expect("rank 3 (host host1" in error and "died" in error, error)
        expect(total == 3.0, f"the sum of the survivors is {total}")


TIMES: dict[str, Any] = {"timeout": LIMIT, "group_timeout": GROUP_LIMIT, "grace": LIMIT}


def survivors(pair: Hosts, dead: set[int], start: Callable[[], Any]) -> dict[int, Any]:
    """What the ranks return that do not die."""
    with start() as ranks:
        try:
            ranks.values()
        except RankError as error:
            expect(set(error.errors) == dead and not error.unended, error)
        else:
            raise WrongError("no rank died")
        return {each.rank: each.verdict()[1] for each in ranks._ranks if each.rank not in dead}


def cut(pair: Hosts) -> None:
    """The switch loses the second host. Each host notices, and the groups within a host go on."""
    folder = Path("/tmp/cut")
    folder.mkdir()
    try:
        with pair.started(link_is_cut, str(folder), per_host=2, **TIMES) as ranks:
            deadline = time.monotonic() + LIMIT
            while len(list(folder.iterdir())) < 4:
                expect(time.monotonic() < deadline, "the ranks did not get ready")
                time.sleep(0.1)
            pair.cut(1)
            (folder / "cut").touch()
            found = ranks.values()
    finally:
        pair.heal(1)
    for rank, (error, took, total) in enumerate(found):
        print(f"  rank {rank} after {took:.2f} s: {error}")
        expect(error and took < GROUP_LIMIT, f"rank {rank} noticed nothing before its timeout")
        expect(total == (1.0 if rank < 2 else 5.0), f"the sum of rank {rank}'s host is {total}")


CHECKS: dict[str, Callable[[Hosts], None]] = {
    each.__name__: each for each in (two_ranks, commands, large, four_ranks, death, cut)
}


def wanted() -> list[str]:
    word = Path("/proc/cmdline").read_text().partition(" rdma=")[2].split()
    names = word[0].split(",") if word else []
    return list(filter(None, names)) or list(CHECKS)


def main() -> int:
    began = time.monotonic()
    failed = []
    # All ranks are forks of this server. Without torch's compiler, which no check uses, it starts faster.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["rdma_checks", "table", "torch_ucc.testing.freeze"])
    forkserver.ensure_running()
    with hosts(2) as pair:
        add_devices(pair)
        for name in wanted():
            started = time.monotonic()
            print(f"rdma: {name}", flush=True)
            try:
                CHECKS[name](pair)
                word = "passed"
            except Exception:
                traceback.print_exc(file=sys.stdout)
                failed.append(name)
                word = "FAILED"
            print(f"rdma: {name} {word} in {time.monotonic() - started:.0f} s", flush=True)
    if failed:
        print(f"rdma: guest: failed: {', '.join(failed)}", flush=True)
        return 1
    print(f"rdma: guest: all checks passed in {time.monotonic() - began:.0f} s", flush=True)
    return 0
