"""Which network devices each rank uses towards other hosts."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Sequence
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


MOST_RAILS = 4
"""More were not tried."""


class Shared(NamedTuple):
    """A network that every host is on, with the interface and the address that each host has there."""

    network: ipaddress.IPv4Network | ipaddress.IPv6Network
    interfaces: tuple[Interface, ...]
    addresses: tuple[str, ...]

    @property
    def speed(self) -> int:
        """In Mb/s, on the host that has the slowest interface; 0 if a host does not know."""
        return min(each.speed_mbps or 0 for each in self.interfaces)

    @property
    def is_default(self) -> bool:
        return all(each.default_route for each in self.interfaces)


def tcp(hosts: Sequence[Inventory], cut: Collection[str] = ()) -> list[Devices]:
    """Of each host the interfaces over which it reaches the others: several if they are rails. `cut` are
    networks that do not lead from each host to the next."""
    candidates = [reachable(host) for host in hosts]
    if all(len(each) == 1 for each in candidates):
        return [_only(host, each[0]) for host, each in zip(hosts, candidates, strict=True)]
    if shared := shared_networks(hosts):
        usable = [each for each in shared if str(each.network) not in cut] or shared[:1]
        rails = [each for each in usable if _is_rail(each, usable[0])][:MOST_RAILS]
        reason = _why(rails, shared, cut)
        return [
            Devices(tuple(interface.name for interface in of_host), reason)
            for of_host in zip(*(rail.interfaces for rail in rails), strict=True)
        ]
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


def _only(host: Inventory, interface: Interface) -> Devices:
    """Named if UCX would also use interfaces that join containers of the host, or tunnels."""
    if any(
        each.up and each.addresses and each.kind != "loopback"
        for each in host.interfaces
        if each != interface
    ):
        return Devices((interface.name,), f"{interface.name} is the only interface that leads to other hosts")
    return Devices((), f"{interface.name} is the only interface that is up")


def _why(rails: Sequence[Shared], shared: Sequence[Shared], cut: Collection[str]) -> str:
    """Why these networks of all that the hosts share."""
    best, *more = rails
    others = [each for each in shared if each not in rails]
    left = ", ".join(str(each.network) for each in others if str(each.network) not in cut)
    dead = ", ".join(str(each.network) for each in others if str(each.network) in cut)
    speed = (
        f"{best.speed / 1000:g} Gb/s"
        if best.speed
        else "with the default route"
        if best.interfaces[0].default_route
        else "the first"
    )
    networks = ", ".join(str(each.network) for each in rails)
    if more:
        speed += " each"
    elif not others:
        speed = "the only network that all share"
    reason = f"every host is on {networks}: {speed}"
    if left:
        reason += f", rather than {left}"
    if more:
        reason += ". UCX divides large messages among these networks"
    if dead:
        reason += f". A host could not connect to the next one over {dead}"
    return reason


def _is_rail(network: Shared, best: Shared) -> bool:
    """Whether UCX uses both at the same time: every host knows that its two interfaces are equally fast, and
    UCX finds the address on this network."""
    if network is best:
        return True
    return all(
        each.speed_mbps and each.speed_mbps == other.speed_mbps and _first_address(each) == address
        for each, other, address in zip(network.interfaces, best.interfaces, network.addresses, strict=True)
    )


def _first_address(interface: Interface) -> str:
    """The one that UCX uses: it prefers IPv4."""
    v4 = [each for each in interface.addresses if ":" not in each]
    return (v4 or interface.addresses)[0].partition("/")[0]


def reachable(host: Inventory) -> list[Interface]:
    """Interfaces that others may reach. What only joins containers of the host, or a tunnel, counts with the
    default route."""
    return [
        each
        for each in host.interfaces
        if each.up and each.addresses and (each.kind in ("port", "virtual") or each.default_route)
    ]


def shared_networks(hosts: Sequence[Inventory]) -> list[Shared]:
    """Those on which every host is, the best first. Each has a link of its own on every host. A network where
    two hosts have the same address is inside each of them."""
    of_host = [
        {ipaddress.ip_interface(text): each for each in reachable(host) for text in each.addresses}
        for host in hosts
    ]
    shared = []
    for network in dict.fromkeys(address.network for address in of_host[0]):
        found = [
            [(str(address.ip), each) for address, each in addresses.items() if address.network == network]
            for addresses in of_host
        ]
        if all(found) and len({each[0][0] for each in found}) == len(found):
            addresses, interfaces = zip(*(each[0] for each in found), strict=True)
            shared.append(Shared(network, interfaces, addresses))
    shared.sort(key=lambda each: (each.speed, each.is_default), reverse=True)
    apart: list[Shared] = []
    for each in shared:
        if not any(_share_a_link(each, other) for other in apart):
            apart.append(each)
    return apart


def _share_a_link(one: Shared, other: Shared) -> bool:
    """On some host, such as two VLANs of one card."""
    return any(
        {mine.name, *mine.over} & {theirs.name, *theirs.over}
        for mine, theirs in zip(one.interfaces, other.interfaces, strict=True)
    )
