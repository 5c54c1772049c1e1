"""Where ranks run: on this host, or on simulated ones between which there is nothing but a network."""

from __future__ import annotations

import contextlib
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from torch._C._distributed_c10d import TCPStore

from torch_ucc.bench.busy import neighbours
from torch_ucc.testing.hosts import Hosts, hosts, why_not


class Place:
    """This host. `address` is where the ranks' store is, `interface` what leads there.

    `busy` is the number of processes that compute on the same cores.
    """

    address, interface, hosts = "127.0.0.1", "lo", 1

    def __init__(self, busy: int = 0) -> None:
        self.busy = busy

    def store(self) -> TCPStore:
        return TCPStore(self.address, 0, is_master=True, wait_for_workers=False)

    def at(self, rank: int, ranks: int) -> list[str]:
        """What precedes the command of a rank."""
        return []

    def launcher(self, plain: tuple[str, ...], between: tuple[str, ...], ranks: int) -> list[str]:
        """Of MPI: the command before those of the ranks."""
        return [*plain, str(ranks)]


class Between(Place):
    """Simulated hosts, which have the same number of ranks each. `folder` lives as long as they do."""

    address, interface = Hosts.switch, "eth0"

    def __init__(self, made: Hosts, folder: Path) -> None:
        super().__init__()
        self._hosts, self.hosts = made, len(made)
        # Called as ssh would be, with the address of a host and a command line.
        ways = (f"{made.address(i)}) set -- {' '.join(made.at(i))} sh -c" for i in range(len(made)))
        cases = "\n".join(f'{way} "$*" ;;' for way in ways)
        self._agent = folder / "agent"
        self._agent.write_text(f'#!/bin/sh\nhost=$1\nshift\ncase $host in\n{cases}\nesac\nexec "$@"\n')
        self._agent.chmod(self._agent.stat().st_mode | stat.S_IXUSR)

    def store(self) -> TCPStore:
        return self._hosts.store()

    def at(self, rank: int, ranks: int) -> list[str]:
        return self._hosts.at(rank * len(self._hosts) // ranks)

    def launcher(self, plain: tuple[str, ...], between: tuple[str, ...], ranks: int) -> list[str]:
        each = -(-ranks // len(self._hosts))
        named = ",".join(f"{self._hosts.address(i)}:{each}" for i in range(len(self._hosts)))
        program, *options = between
        spread = ["--prtemca", "plm_ssh_agent", str(self._agent), "--host", named]
        return [*self._hosts.at_switch(), program, *spread, *options, str(ranks)]


@contextlib.contextmanager
def place(count: int, rate: str = "", busy: int = 0) -> Iterator[Place]:
    """So many hosts, while the context lasts; `rate` as of `hosts`. One host has `busy` neighbours."""
    if count == 1:
        with neighbours(busy):
            yield Place(busy)
        return
    with tempfile.TemporaryDirectory() as folder, hosts(count, rate=rate) as made:
        yield Between(made, Path(folder))


def why_no_hosts(count: int) -> str | None:
    """What this machine lacks for so many, if anything."""
    return None if count == 1 else why_not()
