"""Whether the hosts of a job can connect to each other, and whether their clocks agree: every rank asks, over
the job's store."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, Protocol

from torch_ucc.topology.devices import reachable
from torch_ucc.topology.doctor import BROKEN, COSTLY, NOTE, Finding
from torch_ucc.topology.inventory import Inventory

_CONNECT = 5.0  # seconds; a host answers in milliseconds, if no firewall swallows the question
_AT_ONCE = 128  # connections
_CLOCKS = 60.0  # seconds; less may be the delay of a busy machine


class Store(Protocol):
    """The part of torch's stores that is used."""

    def set(self, key: str, value: str, /) -> None: ...
    def add(self, key: str, value: int, /) -> int: ...
    def wait(self, keys: list[str], timeout: timedelta, /) -> None: ...
    def multi_get(self, keys: list[str], /) -> list[bytes]: ...


def survey(
    store: Store,
    rank: int,
    size: int,
    host: Inventory,
    limit: timedelta,
    clock: Callable[[], float] = time.time,
) -> list[Finding]:
    """What this rank finds about the other hosts. Blocks until all ranks called it; raises what the store
    does."""
    with _server() as server:
        own = {
            "host": host.host,
            "id": host.host_id,
            "pid": os.getpid(),
            "pid_namespace": host.limits.pid_namespace,
            "port": server.getsockname()[1],
            "addresses": _addresses(host),
        }
        others = _share(store, "hosts", rank, size, own, limit)
        clocks = _share(store, "clocks", rank, size, clock(), limit)
        found = _try_to_connect(host.host, [o for o in _first_of_each_host(others) if o["id"] != own["id"]])
        _share(store, "done", rank, size, True, limit)  # until then the others may still connect to us
    return found + collisions(rank, others) + _compare(rank, others, clocks)


def compare_makers(
    store: Store, rank: int, size: int, makers: Mapping[str, str], limit: timedelta
) -> list[Finding]:
    """Whether the ranks agree who makes a group of CPU tensors that names a backend, or none. `makers` are
    those of this rank. Blocks until all ranks called it; raises what the store does."""
    of_ranks = _share(store, "makers", rank, size, dict(makers), limit)
    first = of_ranks[0]
    if makers != first:
        return [
            Finding(
                "makers",
                BROKEN,
                f"on rank {rank}, groups for CPU tensors are served {_listed(makers)}, but on rank 0 "
                f"{_listed(first)}: "
                "these ranks cannot create a group together",
                "give all ranks the same TORCH_UCC_REPLACE_GLOO and TORCH_UCC_AS_DEFAULT, and the same torch",
            )
        ]
    if rank == 0:
        return [
            Finding(
                "makers",
                NOTE,
                f"groups for CPU tensors are served {_listed(makers)}",
                "nothing needs to be done",
            )
        ]
    return []


def _listed(makers: Mapping[str, str]) -> str:
    return ", ".join(f"by {maker} if a program asks for {name}" for name, maker in makers.items())


def _share(store: Store, what: str, rank: int, size: int, mine: Any, limit: timedelta) -> list[Any]:
    name = f"torch_ucc/doctor/{what}"
    store.set(f"{name}/{rank}", json.dumps(mine))
    if store.add(f"{name}/arrived", 1) == size:
        store.set(f"{name}/all", "1")
    store.wait([f"{name}/all"], limit)
    return [json.loads(text) for text in store.multi_get([f"{name}/{other}" for other in range(size)])]


def _server() -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


def _addresses(host: Inventory) -> list[str]:
    """Those of IPv4, which UCX prefers. Others only if there are none."""
    all_ = [text.partition("/")[0] for each in reachable(host) for text in each.addresses]
    return [each for each in all_ if ":" not in each] or all_


def _first_of_each_host(ranks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return list({each["id"]: each for each in reversed(ranks)}.values())


def _try_to_connect(here: str, others: Sequence[dict[str, Any]]) -> list[Finding]:
    """To all addresses at the same time, because one that does not answer takes seconds."""

    def fails(to: tuple[str, int]) -> str:
        try:
            socket.create_connection(to, timeout=_CONNECT).close()
        except OSError as error:
            return str(error)
        return ""

    all_ = [(address, other["port"]) for other in others for address in other["addresses"]]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        errors = dict(zip(all_, pool.map(fails, all_), strict=True))
    return [
        finding
        for other in others
        for finding in _judge(here, other, {a: errors[a, other["port"]] for a in other["addresses"]})
    ]


def _judge(here: str, other: dict[str, Any], errors: Mapping[str, str]) -> list[Finding]:
    """`errors`: for each address of the other host, why it cannot be reached; empty if it can."""
    failed = {address: error for address, error in errors.items() if error}
    if not errors:
        return [
            Finding(
                "not-tried",
                NOTE,
                f"{here} did not try to connect to {other['host']}, because none of its addresses is known",
                "nothing needs to be done, if the job works",
            )
        ]
    if not failed:
        return []
    reasons = ", ".join(f"{address} ({why})" for address, why in failed.items())
    if len(failed) < len(errors):
        return [
            Finding(
                "partly-cut-off",
                COSTLY,
                f"{here} can connect to some addresses of {other['host']}, but not to {reasons}",
                "set UCX_NET_DEVICES, unless `torch-ucc plan` already chooses another interface",
            )
        ]
    return [
        Finding(
            "cut-off",
            BROKEN,
            f"{here} cannot connect to {other['host']}: {reasons}",
            "allow connections between the hosts on all TCP ports: look at firewalls and security groups",
        )
    ]


def collisions(rank: int, others: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """Between a process of this rank's container and one of another on the same machine."""
    mine = others[rank]
    here = {
        each["pid"]: number
        for number, each in enumerate(others)
        if (each["id"], each["pid_namespace"]) == (mine["id"], mine["pid_namespace"])
    }
    return [
        Finding(
            "pid-collision",
            BROKEN,
            f"ranks {here[each['pid']]} and {number} are in two containers of the machine of {mine['host']}, "
            f"and both have the PID {each['pid']}: UCC would take them for one process",
            "run all ranks of a machine in one container, or in the PID namespace of the machine "
            "(docker: --pid=host; Kubernetes: hostPID: true)",
        )
        for number, each in enumerate(others)
        if each["id"] == mine["id"] and each["pid_namespace"] != mine["pid_namespace"] and each["pid"] in here
    ]


def _compare(rank: int, others: Sequence[dict[str, Any]], clocks: Sequence[float]) -> list[Finding]:
    """Those that are ahead of this one, so that of each pair one says it."""
    found = {}
    for other, clock in zip(others, clocks, strict=True):
        ahead = clock - clocks[rank]
        if ahead > _CLOCKS:
            found[other["id"]] = Finding(
                "clocks",
                COSTLY,
                f"the clock of {other['host']} is {ahead:.0f} s ahead of the clock of "
                f"{others[rank]['host']}: times in their logs cannot be compared",
                "synchronise the clocks, for example with chrony",
            )
    return list(found.values())
