"""Hosts and the ranks on them: what a plan is made for."""

from __future__ import annotations

import ipaddress
import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from torch_ucc.topology import inventory
from torch_ucc.topology.inventory import Gpu, Inventory, Numa, cpus_in, usable_cores
from torch_ucc.topology.pci import distance


class Rank(NamedTuple):
    """`local` counts the ranks of its host; `gpu` is the PCI address of the one it uses, or empty; `settings`
    are what `user.settings_here` finds."""

    rank: int
    host: int
    local: int
    usable: str
    gpu: str
    settings: Mapping[str, str]


class Crowd(NamedTuple):
    """So many ranks of a host that share fewer cores."""

    host: int
    ranks: int
    cores: int


class Job:
    """A host is what shares memory: containers that do not are hosts of their own, though their machine be
    one. `cut` are networks that all hosts share and that do not lead from each to the next: see rails.py."""

    def __init__(self, hosts: Sequence[Inventory], ranks: Sequence[Rank], cut: Collection[str] = ()) -> None:
        self.hosts, self.ranks, self.cut = tuple(hosts), tuple(ranks), frozenset(cut)
        self._by_host: list[list[Rank]] = [[] for _ in self.hosts]
        for rank in self.ranks:
            self._by_host[rank.host].append(rank)

    def on(self, host: int) -> list[Rank]:
        return self._by_host[host]

    def peers(self, rank: Rank) -> list[Rank]:
        """One of the same host and one of another, where there are such: all others are like one of them."""
        near = next((each for each in self.on(rank.host) if each is not rank), None)
        far = next((each for each in (self.ranks[0], self.ranks[-1]) if each.host != rank.host), None)
        if far is None:
            far = next((each for each in self.ranks if each.host != rank.host), None)
        return [each for each in (near, far) if each is not None]

    def most_per_host(self) -> int:
        return max(len(self.on(host)) for host in range(len(self.hosts)))

    def has_sysv(self) -> bool:
        """Shared memory of System V, on every host."""
        return all(host.limits.sysv for host in self.hosts)

    def name(self, rank: Rank) -> str:
        return f"rank {rank.rank} (host {self.hosts[rank.host].host})"

    def gpu(self, rank: Rank) -> Gpu | None:
        return next((gpu for gpu in self.hosts[rank.host].gpus if gpu.device.pci == rank.gpu), None)

    def numa(self, rank: Rank) -> Numa | None:
        """The node that all CPUs of the rank are on, of several."""
        nodes = self.hosts[rank.host].numa
        mine = set(cpus_in(rank.usable))
        own = [node for node in nodes if mine and mine <= set(cpus_in(node.cpus))]
        return own[0] if len(nodes) > 1 and own else None

    def cores(self, host: int) -> int:
        return usable_cores(self.hosts[host].cpu)

    def crowd(self) -> Crowd | None:
        """The first ranks that outnumber their cores, if there are such. Ranks that are kept to different
        cores share none."""
        for (host, cpus), ranks in Counter((each.host, each.usable) for each in self.ranks).items():
            cores = usable_cores(self.hosts[host].cpu._replace(usable=cpus))
            if ranks > cores:
                return Crowd(host, ranks, cores)
        return None


def own_gpu(gpus: Sequence[Gpu], local: int, environment: Mapping[str, str]) -> str:
    """Of the GPUs that CUDA shows, the one with this process's number on its host, as programs choose it."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    shown = list(gpus)
    if visible is not None:
        numbers = visible.split(",")
        if not all(number.isdigit() for number in numbers):  # by name, or none
            return ""
        shown = [gpus[int(number)] for number in numbers if int(number) < len(gpus)]
    if not shown:
        return ""
    return shown[local % len(shown)].device.pci


def uniform(hosts: Sequence[Inventory], ranks_each: int, settings: Mapping[str, str] | None = None) -> Job:
    """As torchrun would start it: as many ranks on each host, each free to run on all of its CPUs."""
    ranks = [
        Rank(
            rank=i * ranks_each + local,
            host=i,
            local=local,
            usable=host.cpu.usable,
            gpu=own_gpu(host.gpus, local, {}),
            settings=dict(settings or {}),
        )
        for i, host in enumerate(hosts)
        for local in range(ranks_each)
    ]
    return Job(hosts, ranks)


def copies(host: Inventory, count: int) -> list[Inventory]:
    """A job's hosts, of which one is known: they differ in name, and in their addresses. Where a network
    has no room for so many hosts, they are on a larger one."""

    def other(text: str, i: int) -> str:
        address = ipaddress.ip_interface(text)
        length = address.network.prefixlen
        if length < address.max_prefixlen - 1:  # on a network, which must have room for all hosts
            length = min(length, address.max_prefixlen - (2 * count).bit_length())
        network = ipaddress.ip_interface(f"{address.ip}/{length}").network
        first, size = int(network.network_address), max(network.num_addresses, count)
        return f"{type(address.ip)(first + (int(address.ip) - first + i) % size)}/{length}"

    def interfaces(i: int) -> tuple[inventory.Interface, ...]:
        return tuple(
            each
            if each.kind in ("loopback", "bridge")
            else each._replace(addresses=tuple(other(address, i) for address in each.addresses))
            for each in host.interfaces
        )

    def name(i: int) -> str:
        digits = re.search(r"\d+$", host.host)
        if digits is None:
            return f"{host.host}+{i}"
        return host.host[: digits.start()] + str(int(digits[0]) + i).zfill(len(digits[0]))

    return [host._replace(interfaces=interfaces(0))] + [
        host._replace(host=name(i), host_id=f"{host.host_id}+{i}", interfaces=interfaces(i))
        for i in range(1, count)
    ]


def encode(host: Inventory, settings: Mapping[str, str], visible: str | None) -> bytes:
    """What a rank tells the others."""
    steady = host._replace(limits=host.limits._replace(shm_free=0))  # alike on ranks of a host: decoded once
    mine = {"host": inventory.as_data(steady), "settings": dict(settings), "visible": visible}
    return json.dumps(mine, separators=(",", ":")).encode()


def decode(records: Sequence[bytes]) -> Job:
    """Of every rank's record, in order. Raises ValueError."""
    hosts: dict[tuple[str, str, str], int] = {}
    inventories: list[Inventory] = []
    count: list[int] = []
    ranks = []
    read: dict[bytes, tuple[Inventory, dict[str, str], str | None]] = {}
    for number, record in enumerate(records):
        try:
            if record not in read:
                data = json.loads(record)
                read[record] = inventory.from_dict(data["host"]), data["settings"], data["visible"]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"rank {number} published a record of its host that cannot be read: {error}"
            ) from None
        host, settings, visible = read[record]
        key = (host.host_id, host.limits.pid_namespace, host.limits.ipc_namespace)
        where = hosts.setdefault(key, len(inventories))
        if where == len(inventories):
            inventories.append(host)
            count.append(0)
        elif not host.limits.sysv:  # for this rank, whatever the first one has
            limits = inventories[where].limits._replace(sysv=False)
            inventories[where] = inventories[where]._replace(limits=limits)
        local = count[where]
        count[where] += 1
        seen = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
        ranks.append(Rank(number, where, local, host.cpu.usable, own_gpu(host.gpus, local, seen), settings))
    return Job(inventories, ranks)


def link(one: Gpu, other: Gpu) -> str:
    """How `nvidia-smi topo -m` names the way between two GPUs: NV4 for four NVLinks, else a distance."""
    count = min(one.links.get("switch", 0), other.links.get("switch", 0)) or one.links.get(
        other.device.pci, 0
    )
    return f"NV{count}" if count else distance(one.device, other.device)
