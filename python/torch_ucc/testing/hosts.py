"""Simulates several hosts on this machine, connected only by a network, for tests and the bench.

    with hosts(2) as pair:
        assert pair.run(total, per_host=2) == [6.0] * 4

A host is a set of namespaces. Each host has its own network address, host name, boot id, process ids,
System V IPC, /dev/shm and network interfaces, and its own steady clock if the caller asks for it. Hosts share
only files. A virtual cable connects each host to a switch: a bridge in its own network namespace, with the
address at which the store is served. The network of the machine does not change.

Hosts end with the process of the caller, however it ends: a process holds each host and ends when the pipe
from the caller is closed. The other processes of the host end with it, and the kernel removes the rest.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from torch._C._distributed_c10d import TCPStore

from torch_ucc.testing import running, stacks

_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"  # ip(8) is not on everybody's
_ENV = {**os.environ, "PATH": _PATH}
_NETWORK = "10.77.0"  # of the first cable; the second is on 10.78.0, and so on
_SWITCH = f"{_NETWORK}.254"
_HOST = ("--net", "--mount", "--ipc", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc")
_MAKE_HOST = """
mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /dev/shm
mkdir /dev/shm/own
cat /proc/sys/kernel/random/uuid >/dev/shm/own/boot_id
mount --bind /dev/shm/own/boot_id /proc/sys/kernel/random/boot_id
echo "$2" >/dev/shm/own/hosts
mount --bind /dev/shm/own/hosts /etc/hosts
rm -r /dev/shm/own
echo "$1" >/proc/sys/kernel/hostname
"""

# A host's clock, where the kernel has clocks for namespaces: without, all hosts share one.
_CLOCK = ["time_for_children"] * Path("/proc/self/ns/time_for_children").exists()

_libc = ctypes.CDLL(None, use_errno=True)


def why_not() -> str | None:
    """Return why this machine cannot simulate hosts, or None."""
    missing = [name for name in ("ip", "unshare", "nsenter", "mount") if not shutil.which(name, path=_PATH)]
    if missing:
        return f"simulated hosts need the commands {', '.join(missing)}"
    probe = ["unshare", *_HOST, "ip", "link", "add", "name", "probe", "type", "bridge"]
    tried = subprocess.run(probe, env=_ENV, stderr=subprocess.PIPE, text=True)
    return f"this process may not create hosts: {tried.stderr.strip()}" if tried.returncode else None


@contextlib.contextmanager
def hosts(
    count: int, clocks_ahead: Sequence[int] | None = None, rate: str = "", cables: int = 1
) -> Iterator[Hosts]:
    """Create `count` hosts that a switch connects. They are named host0, host1 and so on.

    `clocks_ahead` sets how many seconds the steady clock of each host is ahead of the one of this machine.
    Steady clocks of real hosts differ, because they count from the start of the host. `rate` limits what each
    host sends over a cable, in the form of tc(8): "4gbit". Without it, only the machine limits it.
    `cables` is the number of interfaces of each host: eth0, eth1 and so on, each with its own switch and
    network. The store and the names of the hosts use the network of eth0.
    """
    addresses = {f"host{i}": _address(i) for i in range(count)}
    names = "".join(
        f"{address} {name}\n"
        for name, address in {"localhost": "127.0.0.1", "switch": _SWITCH, **addresses}.items()
    )
    with contextlib.ExitStack() as stack:
        switch = stack.enter_context(_Namespaces("", "--net"))
        switch.ip(
            # Fixed addresses: the kernel would give a bridge the address of one of its ports, and a new one
            # when the ports change.
            *(
                f"link add name {_bridge(cable)} address 02:00:00:00:00:{cable + 1:02x} type bridge"
                for cable in range(cables)
            ),
            f"addr add {_SWITCH}/24 dev {_bridge(0)}",
            *(f"link set dev {_bridge(cable)} up" for cable in range(cables)),
            "link set dev lo up",
        )
        made = []
        for i, name in enumerate(addresses):
            clock = ("--time", f"--monotonic={clocks_ahead[i]}") if clocks_ahead else ()
            host = stack.enter_context(_Namespaces(_MAKE_HOST, *_HOST, *clock, arguments=(name, names)))
            host.ip("link set dev lo up")
            for cable in range(cables):
                bridge, port, end = _bridge(cable), _port(i, cable), f"eth{cable}"
                switch.ip(
                    f"link add name {port} master {bridge} type veth peer name {end} netns {host.pid}",
                    f"link set dev {port} up",
                )
                host.ip(f"addr add {_address(i, cable)}/24 dev {end}", f"link set dev {end} up")
                if rate:
                    host.limit(rate, end)
            made.append(host)
        yield Hosts(switch, made, cables)


def _address(i: int, cable: int = 0) -> str:
    first, second, third = map(int, _NETWORK.split("."))
    return f"{first}.{second + cable}.{third}.{i + 1}"


def _bridge(cable: int) -> str:
    return f"switch{cable or ''}"


def _port(i: int, cable: int) -> str:
    """At the switch."""
    return f"host{i}" + (f".{cable}" if cable else "")


class Hosts:
    """The hosts that `hosts` creates."""

    switch = _SWITCH
    """The address of the switch, at which the store is served."""

    def __init__(self, switch: _Namespaces, made: Sequence[_Namespaces], cables: int) -> None:
        self._switch = switch
        self._hosts = made
        self._cables = cables

    def __len__(self) -> int:
        return len(self._hosts)

    def pid(self, i: int) -> int:
        """Return the id of the process that holds host i, for `continue_at`."""
        return self._hosts[i].pid

    def address(self, i: int, cable: int = 0) -> str:
        return _address(i, cable)

    def at(self, i: int) -> list[str]:
        """Return the words to put before a command so that it runs on host i, in the root folder."""
        kinds = ("net", "ipc", "uts", "pid", "mount")
        files = {"pid": "pid_for_children", "mount": "mnt"}
        at = f"/proc/{self._hosts[i].pid}/ns"
        return ["nsenter", *(f"--{kind}={at}/{files.get(kind, kind)}" for kind in kinds)]

    def at_switch(self) -> list[str]:
        """Return the words to put before a command so that it runs in the network of the switch."""
        return ["nsenter", f"--net=/proc/{self._switch.pid}/ns/net"]

    def store(self) -> TCPStore:
        """Create a store that this process serves."""
        with self._switch.network_entered():
            return TCPStore(_SWITCH, 0, is_master=True, wait_for_workers=False)

    def cut(self, i: int, cable: int = 0) -> None:
        """Drop all packets between host i and the others on this cable. The link stays up."""
        self._switch.ip(f"link set dev {_port(i, cable)} nomaster")

    def heal(self, i: int, cable: int = 0) -> None:
        """Undo `cut` of the same cable."""
        self._switch.ip(f"link set dev {_port(i, cable)} master {_bridge(cable)}")

    def sent(self, i: int, cable: int = 0) -> int:
        """Return how many bytes host i has sent over this cable."""
        command = [*self.at(i), "cat", f"/sys/class/net/eth{cable}/statistics/tx_bytes"]
        return int(subprocess.run(command, env=_ENV, stdout=subprocess.PIPE, check=True).stdout)

    def limit(self, i: int, rate: str) -> None:
        """Limit what host i sends over eth0 from now on. `rate` has the form of tc(8): "4gbit"."""
        self._hosts[i].limit(rate)

    def add_dead_end(self, i: int, address: str) -> None:
        """Add an interface dark0 with this address and the default route to host i.

        Its link is up, but nothing answers.
        """
        self._switch.ip(
            f"link add name dark{i} type veth peer name dark0 netns {self._hosts[i].pid}",
            f"link set dev dark{i} up",
        )
        network = address.rpartition(".")[0]
        self._hosts[i].ip(
            f"addr add {address}/24 dev dark0",
            "link set dev dark0 up",
            f"route add default via {network}.254 dev dark0",
        )

    def forbid(self, i: int, other: int) -> None:
        """Forbid host i to connect to host `other` on the network of eth0."""
        self._hosts[i].ip(f"route add prohibit {_NETWORK}.{other + 1}/32")

    def vanish(self, i: int) -> None:
        """Remove host i as if it lost its power: cut all its cables, then kill all its processes."""
        for cable in range(self._cables):
            self.cut(i, cable)
        self._hosts[i].kill()

    def run(self, fn: Callable[..., Any], *args: Any, **how: Any) -> list[Any]:
        """Call `fn(*args)` on all ranks and return their values, by rank. `how`: see `started`."""
        with self.started(fn, *args, **how) as ranks:
            return ranks.values()

    @contextlib.contextmanager
    def started(
        self,
        fn: Callable[..., Any],
        *args: Any,
        per_host: int | Sequence[int] = 1,
        backend: str = "ucc",
        timeout: float = 60.0,
        init: bool = True,
        group_timeout: float | None = None,
        env: Mapping[str, str] | None = None,
        grace: float = 5.0,
    ) -> Iterator[Ranks]:
        """Do the same as `torch_ucc.testing.run_ranks` on these hosts, in the background of the `with` block.

        `per_host` is the number of ranks on each host, or a sequence with the number for each host. The first
        ranks are on host 0, the next ones on host 1, and so on. `timeout` counts from the call of
        `Ranks.values`. Ranks that still run at the end of the block are killed.
        """
        counts = [per_host] * len(self._hosts) if isinstance(per_host, int) else per_host
        places = [(i, local) for i, count in enumerate(counts) for local in range(count)]
        store = self.store()
        common = {
            **os.environ,
            "GLOO_SOCKET_IFNAME": "eth0",
            "OMP_NUM_THREADS": "1",
            "WORLD_SIZE": str(len(places)),
            "GROUP_WORLD_SIZE": str(len(counts)),
            "MASTER_ADDR": _SWITCH,
            "MASTER_PORT": str(store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            **(env or {}),
        }
        call = pickle.dumps((fn, args))
        context = running.fork_context()
        with tempfile.TemporaryDirectory(prefix="hosts-") as name:
            folder = Path(name)
            ranks: list[_Rank] = []
            try:
                for rank, (i, local) in enumerate(places):
                    own = {"RANK": str(rank), "LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": str(counts[i])}
                    launch = running.Launch(
                        call, {**common, **own}, backend, init, group_timeout or timeout, folder
                    )
                    process = context.Process(target=_rank_main, args=(self._hosts[i].pid, launch, rank))
                    process.start()
                    ranks.append(_Rank(rank, process, folder))
                yield Ranks(ranks, store, timeout, grace)
            finally:
                running.kill_all(ranks)
                for each in ranks:
                    running.forward_output(each)


class Ranks:
    """The ranks that `Hosts.started` starts. `store` is their store."""

    def __init__(self, ranks: Sequence[_Rank], store: TCPStore, timeout: float, grace: float) -> None:
        self.store = store
        self._ranks = ranks
        self._timeout = timeout
        self._grace = grace

    def pid(self, rank: int) -> int:
        """Return the process id of the rank on this machine. On its host, the rank has another one."""
        return self._ranks[rank].pid

    def kill(self, rank: int, which: signal.Signals = signal.SIGKILL) -> None:
        os.kill(self.pid(rank), which)

    def values(self) -> list[Any]:
        """Wait until all ranks have ended and return their values. Raises `torch_ucc.testing.RankError`."""
        unended, why = running.wait_for(self._ranks, self._timeout, self._grace)
        if unended:
            running.print_stacks(unended, why)
        return running.values_of(self._ranks, unended, why)


@dataclass(frozen=True)
class _Rank(running.Rank):
    """Its process, a child of ours, waits on this machine for the rank, its only child."""

    @property
    def pid(self) -> int:
        return continued(super().pid)


def _rank_main(host: int, launch: running.Launch, rank: int) -> None:
    continue_at(host)
    running.rank_main(launch, rank)


def continue_at(host: int) -> None:
    """Continue on another host, in a child of this process. `host` is what `Hosts.pid` returns.

    This process then waits, and ends as the child ends. A process cannot move itself to a namespace of
    process ids; only its children can be there.
    """
    _libc.prctl(running.PR_SET_PDEATHSIG, signal.SIGKILL)
    here = Path.cwd()
    _enter(host, "net", "ipc", "uts", "pid_for_children", "mnt", *_CLOCK)
    os.chdir(here)
    child = os.fork()
    if child == 0:
        return
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code < 0:
        os.kill(os.getpid(), -code)
    os._exit(code)


def _enter(pid: int, *kinds: str) -> None:
    """Move this thread, or what it will fork, into namespaces of the process."""
    with contextlib.ExitStack() as stack:
        for file in [stack.enter_context(Path(f"/proc/{pid}/ns/{kind}").open()) for kind in kinds]:
            _setns(file)


def _setns(file: TextIO) -> None:
    if _libc.setns(file.fileno(), 0):
        raise OSError(ctypes.get_errno(), f"setns to {file.name}")


def continued(pid: int) -> int:
    """Return the child in which process `pid` continues, or `pid` if it did not call `continue_at`."""
    return next(iter(stacks.descendants(pid)), pid)


class _Namespaces:
    """Namespaces that unshare(1) makes with `options` and `script` completes, for the life of the context."""

    def __init__(self, script: str, *options: str, arguments: Sequence[str] = ()) -> None:
        whole = f"{script}\necho made\nexec cat >/dev/null"
        self._process = subprocess.Popen(
            ["unshare", *options, "sh", "-ec", whole, "sh", *arguments],
            env=_ENV,
            stdin=subprocess.PIPE,  # ends when we do, and so does cat
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> _Namespaces:
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "made\n":
            self.kill()
            raise RuntimeError("a simulated host could not be created: the reason is on stderr")
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """A process whose namespaces, and those of its children, these are."""
        return self._process.pid

    def kill(self) -> None:
        """End every process here; the kernel then removes the namespaces."""
        self._process.kill()
        self._process.communicate()

    def ip(self, *commands: str) -> None:
        """Run commands of ip(8) on the network here."""
        self._batch("ip", commands)

    def limit(self, rate: str, interface: str = "eth0") -> None:
        """What the interface may send."""
        self._batch("tc", [f"qdisc replace dev {interface} root tbf rate {rate} burst 256kb latency 20ms"])

    def _batch(self, program: str, commands: Sequence[str]) -> None:
        batch = ["nsenter", f"--net=/proc/{self.pid}/ns/net", program, "-batch", "-"]
        subprocess.run(batch, env=_ENV, input="\n".join(commands), text=True, check=True)

    @contextlib.contextmanager
    def network_entered(self) -> Iterator[None]:
        """Sockets that this thread makes are on the network here."""
        with Path("/proc/thread-self/ns/net").open() as home:
            _enter(self.pid, "net")
            try:
                yield
            finally:
                _setns(home)
