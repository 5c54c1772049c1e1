"""Decides how a job talks, from its hosts, its ranks and what the user set. A pure function: nothing is read
or changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch_ucc.topology import algorithms, devices
from torch_ucc.topology.devices import Devices
from torch_ucc.topology.job import Job, Rank
from torch_ucc.topology.transports import (
    OF_LINK_LAYER,
    SHARED_MEMORY,
    allowed,
    connected_ports,
    has_driver,
    of_network,
    why_no_cma,
)
from torch_ucc.topology.user import (
    CLS,
    DEVICE_COLLECTIVES,
    DEVICE_P2P,
    HOST_PATH,
    LEVELS_FROM,
    LOOPBACK,
    NET_DEVICES,
    PPN,
    RAILS,
    RECEIVE_BUFFERS,
    TCP_SEGMENTS,
    TLS,
    TUNE,
    by_whom,
    chosen,
    receive_buffers,
    tls,
)

SAME_HOST, OTHER_HOST = "same host", "other host"
ON_ONE_HOST = "within a host"
IN_MEMORY = "memory that the ranks share"
PLAN, UCX, UCC, US = "the plan", "UCX", "UCC", "torch_ucc"


class Choice(NamedTuple):
    """`by` says who decides: the plan, which then passes it on; a library, which is left alone; or the user,
    by which variable. `setting` overrides it, if anything does."""

    about: str
    value: str
    reason: str
    setting: str
    by: str
    transports: tuple[str, ...] = ()
    """Those of UCX that may turn up, for a choice about a kind of peer."""
    told: tuple[tuple[str, str], ...] = ()
    """What the library is told by it of whose `setting` it is about, where the plan decides: name without
    UCX_ or UCC_, and value."""


class Plan(NamedTuple):
    """`devices` by rank. `problems` forbid to start: each names who cannot talk to whom, and the cure."""

    choices: tuple[Choice, ...]
    devices: tuple[Devices, ...]
    problems: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    def about(self, what: str) -> Choice | None:
        return next((choice for choice in self.choices if choice.about == what), None)

    def ucx_settings(self, rank: int) -> list[tuple[str, str]]:
        """What the plan tells UCX on this rank: name without UCX_, and value."""
        return self._told("UCX_") + self._network(rank)

    def ucc_settings(self, rank: int) -> list[tuple[str, str]]:
        """What it tells UCC's context, likewise."""
        return self._told("UCC_") + self._network(rank)

    def _told(self, library: str) -> list[tuple[str, str]]:
        decided = (each for each in self.choices if each.by == PLAN and each.setting.startswith(library))
        return [told for choice in decided for told in choice.told]

    def _network(self, rank: int) -> list[tuple[str, str]]:
        names, choice = self.devices[rank].names, self.about("network devices")
        return [("NET_DEVICES", ",".join(names))] if names and choice and choice.by == PLAN else []


def make_plan(job: Job) -> Plan:
    several = len(job.hosts) > 1
    layer = _link_layer(job)
    per_rank = _devices(job, layer)
    choices = [
        *([_same_host(job)] if job.most_per_host() > 1 else []),
        *([_other_hosts(job, layer)] if several else []),
        _network_devices(job, per_rank),
        *([_segments(job)] if several and not layer else []),
        *([_rails(job, per_rank)] if not layer and _has_rails(job, per_rank) else []),
        *([_on_one_host(job)] if job.most_per_host() > 1 else []),
        *([_levels(job)] if several and job.most_per_host() > 1 else []),
        _collectives(job),
        _algorithms(job, layer),
        _counts(job),
        _waiting(job),
        *([_accelerators(job)] if any(host.gpus for host in job.hosts) else []),
    ]
    return Plan(tuple(choices), tuple(per_rank), tuple(_problems(job)), tuple(_left_out(job, layer)))


def networks_for_tcp(job: Job) -> list[devices.Shared]:
    """Networks that all hosts share, where the plan chooses among them; the best first."""
    if len(job.hosts) == 1 or _user(job, NET_DEVICES) or _link_layer(job):
        return []
    return devices.shared_networks(job.hosts)


def _link_layer(job: Job) -> str:
    """Of the RDMA ports that ranks of several hosts use, or empty."""
    return devices.link_layer(job.hosts) if len(job.hosts) > 1 and not _only_tcp(job) else ""


def _user(job: Job, names: Sequence[str]) -> str:
    """What the user set, if on any rank: "UCX_TLS=tcp"."""
    return ", elsewhere ".join(_each(job, names))


def _each(job: Job, names: Sequence[str]) -> list[str]:
    """The different ones of all ranks."""
    found = (chosen(rank.settings, names) for rank in job.ranks)
    return list(dict.fromkeys("=".join(each) for each in found if each))


def _devices(job: Job, layer: str) -> list[Devices]:
    if _user(job, NET_DEVICES):
        return [
            Devices(
                tuple(found[1].split(",")) if found else (), "set by the user" if found else "not set here"
            )
            for found in (chosen(rank.settings, NET_DEVICES) for rank in job.ranks)
        ]
    if len(job.hosts) == 1:
        return [
            Devices((LOOPBACK,), "the job has one host, so UCX listens on the loopback interface only")
            for _ in job.ranks
        ]
    if layer:
        return devices.rdma(job, layer)
    of_host = devices.tcp(job.hosts, job.cut)
    return [of_host[rank.host] for rank in job.ranks]


def _only_tcp(job: Job) -> bool:
    """The user leaves no transport but TCP between hosts, on some rank."""
    rdma = {name for names in OF_LINK_LAYER.values() for name in names}
    settings = [chosen(rank.settings, TLS) for rank in job.ranks]
    return any(each and not allowed(each[1]) & rdma for each in settings)


def _set_by_the_user(job: Job, peers: str, said: str) -> Choice:
    settings = (chosen(rank.settings, TLS) for rank in job.ranks)
    transports = {name for each in settings for name in allowed(each[1] if each else "all")}
    value = said.partition("=")[2]
    reason, by = by_whom(said)
    return Choice(peers, value, reason, "UCX_TLS", by, tuple(sorted(transports)))


def _same_host(job: Job) -> Choice:
    hosts = [host for i, host in enumerate(job.hosts) if len(job.on(i)) > 1]
    why_not = next(filter(None, map(why_no_cma, hosts)), "")
    crowded = _crowded(job)
    if said := _user(job, TLS):
        return _set_by_the_user(job, SAME_HOST, said)
    sysv = job.has_sysv()
    found: tuple[str, ...] = ("sysv" if sysv else "posix", "xpmem")
    if why_not:
        reason = f"{why_not}, so large messages are copied twice"
    elif crowded:
        found = (*found, "cma")
        reason = f"{crowded}, and with cma one core copies a large message once"
    else:
        reason = (
            "every rank has a core, and two ranks that copy at the same time are faster than cma. If a rank "
            "is killed while it copies, it can block other ranks of its host in groups without it"
        )
    several = len(job.hosts) > 1
    reason += (
        ". posix is left out, because it does the same as sysv and costs each rank 4 MiB"
        if sysv
        else ". sysv is left out, because a host has none"
    )
    if not several:
        reason += ". TCP is left out, because each poll of it costs a system call"
    return Choice(
        SAME_HOST,
        "shared memory, and cma for large messages" if "cma" in found else "shared memory",
        reason,
        "UCX_TLS",
        PLAN,
        found,
        (
            tls(cma=bool(why_not or crowded), tcp=several, sysv=sysv),
            *([] if _user(job, RECEIVE_BUFFERS) else [receive_buffers(sysv=sysv)]),
        ),
    )


_NAMES = {"InfiniBand": "InfiniBand", "Ethernet": "RoCE", "EFA": "EFA"}


def _other_hosts(job: Job, layer: str) -> Choice:
    if said := _user(job, TLS):
        return _set_by_the_user(job, OTHER_HOST, said)
    if layer:
        return Choice(
            OTHER_HOST,
            _NAMES[layer],
            "every host has a connected port of this kind, and a UCX that can drive it",
            "UCX_TLS",
            UCX,
            OF_LINK_LAYER[layer],
        )
    return Choice(OTHER_HOST, "TCP", _why_tcp(job), "UCX_TLS", UCX, ("tcp",))


def _why_tcp(job: Job) -> str:
    if not any(host.rdma for host in job.hosts):
        return "there is no RDMA device"
    for host in job.hosts:
        if not host.rdma:
            return f"host {host.host} has no RDMA device"
        if not any(port.active for port in host.rdma):
            return f"no RDMA port of host {host.host} is connected"
        layers = sorted({port.link_layer for port in connected_ports(host)})
        if not layers:
            return f"the connected RDMA ports of host {host.host} belong to another network namespace"
        if not any(has_driver(host, each) for each in layers):
            named = " or ".join(_NAMES.get(each, each) for each in layers)
            return f"the UCX of host {host.host} cannot drive {named}: set UCX_HOME to one that can"
    return "no kind of RDMA port is connected on every host"


def _network_devices(job: Job, per_rank: Sequence[Devices]) -> Choice:
    if said := _user(job, NET_DEVICES):
        return Choice("network devices", said.partition("=")[2], "set by the user", "UCX_NET_DEVICES", said)
    values = list(dict.fromkeys(",".join(each.names) or "all" for each in per_rank))
    reasons = list(dict.fromkeys(each.reason for each in per_rank))
    return Choice(
        "network devices",
        values[0] if len(values) == 1 else "different for each rank",
        reasons[0] if len(reasons) == 1 else "each rank uses the devices nearest to it, listed below",
        "UCX_NET_DEVICES",
        UCX if values == ["all"] else PLAN,
    )


_MOST_FOR_LONG_SEGMENTS = 1024
"""Ranks: each may hold as many segments that came in part, 256 MB of 256 KB."""


def _segments(job: Job) -> Choice:
    """What UCX sends by one system call, the larger where it need not copy. A sender goes by what it would
    itself receive, so this is for all ranks or for none."""
    about, setting = "segments of TCP", TCP_SEGMENTS[0]
    if said := _user(job, TCP_SEGMENTS):
        return Choice(about, said.partition("=")[2], "set by the user", setting, said)
    if len(job.ranks) > _MOST_FOR_LONG_SEGMENTS:
        reason = (
            f"a rank may hold one of each peer, and the job has more than {_MOST_FOR_LONG_SEGMENTS} ranks"
        )
        return Choice(about, "64 KB, 8 KB where copied", reason, setting, UCX)
    return Choice(
        about,
        "256 KB, 64 KB where copied",
        "UCX sends each segment by one system call. With its own sizes, 64 KB and 8 KB, large messages "
        "take longer",
        setting,
        PLAN,
        told=(("TCP_RX_SEG_SIZE", "256k"), ("TCP_TX_SEG_SIZE", "64k")),
    )


def _has_rails(job: Job, per_rank: Sequence[Devices]) -> bool:
    return not _user(job, NET_DEVICES) and len(per_rank[0].names) > 1


def _rails(job: Job, per_rank: Sequence[Devices]) -> Choice:
    about, setting = "rails of TCP", "UCX_MAX_EAGER_RAILS"
    if said := _user(job, RAILS):
        reason, by = by_whom(said)
        return Choice(about, said.partition("=")[2], reason, setting, by)
    number = str(len(per_rank[0].names))
    return Choice(
        about,
        number,
        "UCX divides data of several segments among so many interfaces. By itself it divides only data that "
        "it writes to the memory of the peer, which excludes send and recv",
        setting,
        PLAN,
        told=(("MAX_EAGER_RAILS", number), ("MAX_RNDV_RAILS", number)),
    )


def _on_one_host(job: Job) -> Choice:
    setting = HOST_PATH[0]
    if (said := _user(job, HOST_PATH)).endswith("=0"):
        return Choice(ON_ONE_HOST, "UCC and UCX", "set by the user", setting, said)
    return Choice(
        ON_ONE_HOST,
        IN_MEMORY,
        "each rank writes to its own memory, and the other ranks read it. This serves collectives of groups "
        "on one host, and messages between ranks of a host. If ranks cannot map this memory, UCC and UCX "
        "serve them, as the other rows say",
        setting,
        US,
    )


def _levels(job: Job) -> Choice:
    about, setting = "collectives of hosts with several ranks", LEVELS_FROM[0]
    if _user(job, HOST_PATH).endswith("=0"):
        return Choice(about, "by UCC alone", f"{HOST_PATH[0]} is 0", setting, US)
    said = _user(job, LEVELS_FROM)
    return Choice(
        about,
        "on each host first, then between hosts" + (f", from {said.partition('=')[2]} on" if said else ""),
        "the ranks of a host share memory. A rank then exchanges only its share by UCC, with the ranks that "
        "have the same place on other hosts, so it sends less over the network, and to fewer ranks",
        setting,
        said or US,
    )


def _collectives(job: Job) -> Choice:
    if said := _user(job, CLS):
        reason, by = by_whom(said)
        return Choice("collectives", said.partition("=")[2], reason, "UCC_CLS", by)
    if len(job.hosts) > 1 and job.most_per_host() > 1:
        reason = "hier, which reduces on each host first, was no faster between simulated hosts"
    elif len(job.hosts) > 1:
        reason = "hier gains nothing if each host has one rank"
    else:
        reason = "hier is for several hosts"
    return Choice("collectives", "basic", reason, "UCC_CLS", UCC)


def _algorithms(job: Job, layer: str) -> Choice:
    about, setting = "algorithms", TUNE[0]
    several = len(job.hosts) > 1
    crowded = not several and job.crowd() is not None
    rules = algorithms.OVER_TCP if several else algorithms.one_host(crowded)
    first = ""
    if said := _each(job, TUNE):
        reason, by = by_whom(said[0])  # ranks on which it differs are refused when they meet
        theirs = said[0].partition("=")[2]
        rules = algorithms.beside(rules, theirs)
        if layer or rules == theirs:
            return Choice(about, theirs, reason, setting, by)
        first = f"{by} decides for the cases that it names. For the others, "
    if layer:
        return Choice(
            about, "UCC's", f"other algorithms were not measured over {_NAMES[layer]}", setting, UCC
        )
    why = "with few ranks and few bytes the number of steps decides, and this tree has the fewest"
    if crowded:
        why += ", also for more bytes if ranks share cores"
    shown = rules.replace("#", ", ")
    return Choice(
        about,
        f"a knomial tree for {'messages' if crowded else 'small messages'} of few ranks",
        f"{first}{why}: {shown}",
        setting,
        PLAN,
        told=(("TL_UCP_TUNE", rules),),
    )


def _counts(job: Job) -> Choice:
    most = job.most_per_host()
    if said := _user(job, PPN):
        return Choice(
            "ranks on a host", said.partition("=")[2], "set by the user", "UCC_ESTIMATED_NUM_PPN", said
        )
    return Choice(
        "ranks on a host",
        str(most),
        "UCX divides the bandwidth of a device by this number",
        "UCC_ESTIMATED_NUM_PPN",
        PLAN,
        told=(("ESTIMATED_NUM_PPN", str(most)),),
    )


def _waiting(job: Job) -> Choice:
    if crowded := _crowded(job):
        return Choice("waiting", "yield, then sleep, without spinning", crowded, "TORCH_UCC_YIELD_FOR", US)
    return Choice("waiting", "spin, then yield, then sleep", "every rank has a core", "TORCH_UCC_SPIN", US)


def _crowded(job: Job) -> str:
    """Where ranks outnumber their cores, if they do."""
    crowd = job.crowd()
    if crowd is None:
        return ""
    return f"{crowd.ranks} ranks share {crowd.cores} usable cores on host {job.hosts[crowd.host].host}"


def _accelerators(job: Job) -> Choice:
    direct = any(setting.endswith("=direct") for setting in _each(job, DEVICE_P2P))
    native = any(setting.endswith("=native") for setting in _each(job, DEVICE_COLLECTIVES))
    ways = ["staged"] + ["messages direct"] * direct + ["collectives native"] * native
    but = ["for send and recv where UCX takes its memory"] * direct
    but += ["for collectives where UCC computes in its memory"] * native
    seen = ", but ".join(["of a device", *but])
    return Choice(
        "accelerator tensors",
        ", and ".join(ways),
        f"UCC and UCX see no address {seen}. Tensors are copied to pinned memory of the host and back, "
        "large ones slice by slice, in the order of the streams. If NCCL serves the GPUs, it is faster: use "
        'the backend "cpu:ucc,cuda:nccl"',
        (DEVICE_COLLECTIVES if native and not direct else DEVICE_P2P)[0],
        US,
    )


def _problems(job: Job) -> list[str]:
    """One for each rank that cannot reach somebody, about the first of those."""
    found = []
    for rank in job.ranks:
        texts = (_no_way(job, rank, other) for other in job.peers(rank))
        if problem := next(filter(None, texts), ""):
            found.append(problem)
    return found


def _no_way(job: Job, rank: Rank, other: Rank) -> str:
    """Why `rank` has no way to `other`, if so."""
    host = job.hosts[rank.host]
    ways = of_network(host) | (set(SHARED_MEMORY) if rank.host == other.host else set())
    tls = chosen(rank.settings, TLS)
    if tls and not allowed(tls[1]) & ways:
        wanted = ", ".join(sorted(ways)) if len(ways) == 1 else "one of " + ", ".join(sorted(ways))
        return (
            f"{tls[0]}={tls[1]} on {job.name(rank)} leaves no way to {job.name(other)}. "
            f"Allow {wanted} in {tls[0]}, or unset {tls[0]}."
        )
    net = chosen(rank.settings, NET_DEVICES)
    if net and rank.host != other.host and net[1] != "all" and not net[1].startswith("^"):
        there = [each.name for each in host.interfaces if each.up]
        ports = [spec for port in connected_ports(host) for spec in (port.spec, port.name)]
        if not {word.strip() for word in net[1].split(",")} & {*there, *ports}:
            known = ", ".join([*there, *(port.spec for port in connected_ports(host))])
            return (
                f"{net[0]}={net[1]} on {job.name(rank)} names no device that is up there, so there is no "
                f"way to {job.name(other)}. The devices {known} are up."
            )
    return ""


def _left_out(job: Job, layer: str) -> list[str]:
    """RDMA ports that somebody might look for among the devices."""
    if not layer:
        return []
    found = []
    for host in job.hosts:
        reasons = {
            f"not {_NAMES[layer]}": [port.spec for port in connected_ports(host) if port.link_layer != layer],
            "of another network namespace": [
                port.spec for port in host.rdma if port.active and port.elsewhere
            ],
            "not connected": [port.spec for port in host.rdma if not port.active],
        }
        found += [f"{', '.join(ports)} of {host.host}: {why}" for why, ports in reasons.items() if ports]
    return found
