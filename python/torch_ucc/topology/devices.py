"""Which network devices each rank uses towards other hosts."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import NamedTuple

from torch_ucc.topology.inventory import Interface, Inventory, RdmaPort
from torch_ucc.topology.job import Job, Rank
from torch_ucc.topology.pci import DISTANCES, distance
from torch_ucc.topology.transports import usable_ports

_LAYERS = ("InfiniBand", "Ethernet", "EFA")


class Devices(NamedTuple):
    """Of a rank, as UCX names them; none is: UCX chooses among all."""

    names: tuple[str, ...]
    reason: str


def link_layer(hosts: Sequence[Inventory]) -> str:
    """Of the RDMA ports that every host has: the one that carries most on the host that has least. Empty if
    there is none."""

    def rate(layer: str) -> float:
        return min(
            sum(port.rate_gbps for port in usable_ports(host) if port.link_layer == layer) for host in hosts
        )

    best = max(_LAYERS, key=rate)
    return best if rate(best) > 0 else ""


def rdma(job: Job, layer: str) -> list[Devices]:
    """Of each rank the ports that are nearest to it; ranks with the same ones near share them evenly."""
    chosen: dict[int, Devices] = {}
    for host in range(len(job.hosts)):
        near = {rank.rank: _nearest(job, rank, layer) for rank in job.on(host)}
        for rank, (ports, where) in near.items():
            sharers = [other for other, (theirs, _) in near.items() if theirs == ports]
            each = max(1, len(ports) // len(sharers))
            first = sharers.index(rank) * each % len(ports)
            shared = -(-len(sharers) // len(ports))
            reason = where + (f", shared by {shared} ranks" if shared > 1 else "")
            chosen[rank] = Devices(tuple(port.spec for port in ports[first : first + each]), reason)
    return [chosen[rank.rank] for rank in job.ranks]


def _nearest(job: Job, rank: Rank, layer: str) -> tuple[list[RdmaPort], str]:
    ports = [port for port in usable_ports(job.hosts[rank.host]) if port.link_layer == layer]
    gpu, numa = job.gpu(rank), job.numa(rank)
    order = list(DISTANCES)
    if gpu is not None:
        far = [distance(gpu.device, port.device) if port.device else "SYS" for port in ports]
        best = min(far, key=order.index)
        text = f"{best} to its GPU {gpu.device.pci}: {DISTANCES[best]}"
        return [port for port, each in zip(ports, far, strict=True) if each == best], text
    if len(ports) == 1:
        return ports, "the only usable port of its host"
    if numa is not None:
        own = [port for port in ports if port.device and port.device.numa == numa.id]
        if own:
            return own, f"on NUMA node {numa.id}, as its cores"
        return ports, f"none is on NUMA node {numa.id}, where its cores are"
    if len(job.hosts[rank.host].numa) < 2:
        return ports, "all usable ports of its host, which has one NUMA node"
    return ports, "its cores are on several NUMA nodes"


def tcp(hosts: Sequence[Inventory]) -> list[Devices]:
    """Of each host the interface over which it reaches the others."""
    candidates = [reachable(host) for host in hosts]
    if all(len(each) == 1 for each in candidates):
        return [Devices((), f"{each[0].name} is the only interface that is up") for each in candidates]
    shared = _shared_networks(candidates)
    if shared:
        best = max(shared, key=lambda network: _worth(shared[network]))
        others = ", ".join(str(network) for network in shared if network != best)
        why = f"{_speed(shared[best])}, rather than {others}" if others else "the only network that all share"
        reason = f"every host is on {best}: {why}"
        return [Devices((interface.name,), reason) for interface in shared[best]]
    chosen = []
    for each in candidates:
        default = [interface for interface in each if interface.default_route]
        if default:
            chosen.append(
                Devices((default[0].name,), "the hosts share no network: the default route leads out")
            )
        else:
            chosen.append(Devices((), "the hosts share no network, and there is no default route"))
    return chosen


def reachable(host: Inventory) -> list[Interface]:
    """Interfaces that others may reach. What only joins containers of the host, or a tunnel, counts with the
    default route."""
    return [
        each
        for each in host.interfaces
        if each.up and each.addresses and (each.kind in ("port", "virtual") or each.default_route)
    ]


def _shared_networks(
    candidates: Sequence[Sequence[Interface]],
) -> dict[ipaddress.IPv4Network | ipaddress.IPv6Network, list[Interface]]:
    """On which every host is, with its interface there. One where two have the same address is inside each of
    them."""
    of_host = [
        {ipaddress.ip_interface(text): each for each in interfaces for text in each.addresses}
        for interfaces in candidates
    ]
    shared = {}
    for network in dict.fromkeys(address.network for address in of_host[0]):
        found = [
            [(address.ip, each) for address, each in addresses.items() if address.network == network]
            for addresses in of_host
        ]
        if all(found) and len({each[0][0] for each in found}) == len(found):
            shared[network] = [each[0][1] for each in found]
    return shared


def _worth(interfaces: Sequence[Interface]) -> tuple[int, bool]:
    return min(each.speed_mbps or 0 for each in interfaces), all(each.default_route for each in interfaces)


def _speed(interfaces: Sequence[Interface]) -> str:
    slowest = min(each.speed_mbps or 0 for each in interfaces)
    return (
        f"{slowest / 1000:g} Gb/s"
        if slowest
        else "with the default route"
        if interfaces[0].default_route
        else "the first"
    )
