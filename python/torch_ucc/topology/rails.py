"""Asks which of the networks that all hosts share carry connections, before a plan uses them."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import socket
from collections.abc import Callable, Iterable, Sequence

from torch_ucc.topology.devices import Shared
from torch_ucc.topology.job import Job
from torch_ucc.topology.plan import networks_for_tcp

Exchange = Callable[[bytes], Sequence[bytes]]
"""Returns what each rank said, by rank; blocks until all did."""

_CONNECT = 2.0  # seconds: time for the kernel to repeat a lost packet once


def cut(job: Job, rank: int, exchange: Exchange) -> frozenset[str]:
    """The networks that UCX would use over which a host cannot connect to the next one, the last host to the
    first. The result is the same on all ranks.

    One rank of each host makes a single connection over each network, whatever the number of hosts: if a
    network is in two parts, some host and the next one are in different parts. All ranks must call this
    function, because it calls `exchange` twice; with fewer than two networks it does nothing.
    """
    networks = networks_for_tcp(job)
    if len(networks) < 2:
        return frozenset()
    here = job.ranks[rank].host
    there = (here + 1) % len(job.hosts)
    asks = job.on(here)[0].rank == rank
    with contextlib.ExitStack() as stack:
        ports = [_listen(stack, each.addresses[here]) if asks else 0 for each in networks]
        theirs = json.loads(exchange(json.dumps(ports).encode())[job.on(there)[0].rank])
        failed = [
            str(each.network)
            for each, port in zip(networks, theirs, strict=True)
            if asks and not _connects(each, here, there, port)
        ]
        said = exchange(json.dumps(failed).encode())  # until then the others may still connect
    return frozenset(network for each in said for network in json.loads(each))


def _listen(stack: contextlib.ExitStack, address: str) -> int:
    """Listens until the stack ends, on a port that UCX may use. Returns the port, or 0 if it cannot."""
    for port in _ports(os.environ.get("UCX_TCP_PORT_RANGE", "0")):
        with contextlib.suppress(OSError):
            server = socket.create_server((address, port), family=_family(address))
            return int(stack.enter_context(server).getsockname()[1])
    return 0


def _ports(text: str) -> Iterable[int]:
    """Of "20000-20100". 0 stands for any port."""
    first, _, last = text.partition("-")
    if first.isdigit() and last.isdigit():
        return range(int(first), int(last) + 1)
    return (0,)


def _connects(network: Shared, here: int, there: int, port: int) -> bool:
    own, other = network.addresses[here], network.addresses[there]
    try:
        socket.create_connection((other, port), _CONNECT, source_address=(own, 0)).close()
    except OSError:
        return False
    return True


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET
