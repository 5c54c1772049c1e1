"""The network between the hosts of a job, from what their kernels know of its TCP connections.

A host is named only if its connections are much slower than all connections between other hosts. So at least
three hosts are needed. Other transports than TCP are not seen.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch_ucc.status.segment import parts_of
from torch_ucc.tracing.text import duration, size

WORSE = 4
"""A host is slow if its connections are so many times as slow as those of the others."""
RTT_NS = 1_000_000
"""A shorter round trip is not slow."""
RECENT_MS = 10_000
"""A connection that has sent nothing for longer tells nothing of the network as it is now."""
BUSY_MS = 500
"""Nor does the rate of one that has sent nothing for so long."""

_BY_FAMILY = 20  # SOCK_DIAG_BY_FAMILY
_SOCK_DIAG = 4  # NETLINK_SOCK_DIAG
_DUMP = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_INFO = 2  # INET_DIAG_INFO
_ESTABLISHED = 1 << 1
_HEAD = struct.Struct("<IHHII")
_REQUEST = struct.Struct("<BBBxI48x")
_MESSAGE = struct.Struct("<Bxxx4x16s16s12x12xI4x")
"""family, both addresses, user"""
_ATTRIBUTE = struct.Struct("<HH")
_TCP_INFO = struct.Struct("<7xB36xI100xI8xQ")
"""flags, ms since data was sent, shortest round trip in us, rate; of a kernel from 4.9 on"""


@dataclass(frozen=True)
class Connection:
    """One end of a TCP connection to another address."""

    source: str
    target: str
    """Addresses."""
    rtt_ns: int
    """The shortest round trip of the last minutes."""
    rate: int
    """Bytes a second, when data was delivered last."""
    is_full: bool
    """Whether the network limited this rate. Otherwise the program had no more data to send."""
    idle_ms: int
    """Since data was sent."""


def here() -> list[Connection]:
    """Those of this user on this host. None if the kernel does not tell."""
    found: list[Connection] = []
    for family in (socket.AF_INET, socket.AF_INET6):
        request = _REQUEST.pack(family, socket.IPPROTO_TCP, 1 << _INFO - 1, _ESTABLISHED)
        facts = b""
        try:
            with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
                kernel.send(_HEAD.pack(_HEAD.size + len(request), _BY_FAMILY, _DUMP, 0, 0) + request)
                while part := kernel.recv(1 << 16, socket.MSG_DONTWAIT):
                    facts += part
        except OSError:  # all parts have been read, or the kernel does not tell
            pass
        found += decode(facts, os.geteuid())
    return found


def from_report(report: bytes) -> list[Connection]:
    """Those of another host."""
    facts = (rest for line, rest in parts_of(report) if line == b"tcp")
    return [connection for each in facts for connection in decode(each)]


def decode(facts: bytes, user: int | None = None) -> Iterator[Connection]:
    """The answers of a kernel to a sock_diag(7) request. `user`: only connections of this user."""
    at = 0
    while at + _HEAD.size + _MESSAGE.size <= len(facts):
        length, kind, *_ = _HEAD.unpack_from(facts, at)
        message = facts[at + _HEAD.size : at + length]
        at += max(_HEAD.size, (length + 3) & ~3)
        if kind != _BY_FAMILY or len(message) < _MESSAGE.size:
            continue
        family, source, target, owner = _MESSAGE.unpack_from(message)
        info = _attribute(message[_MESSAGE.size :], _INFO)
        if source != target and user in (None, owner) and len(info) >= _TCP_INFO.size:
            flags, idle_ms, rtt_us, rate = _TCP_INFO.unpack_from(info)
            is_full = not flags & 1
            yield Connection(
                _address(family, source), _address(family, target), rtt_us * 1000, rate, is_full, idle_ms
            )


def _attribute(attributes: bytes, wanted: int) -> bytes:
    at = 0
    while at + _ATTRIBUTE.size <= len(attributes):
        length, kind = _ATTRIBUTE.unpack_from(attributes, at)
        if kind == wanted:
            return attributes[at + _ATTRIBUTE.size : at + length]
        at += max(_ATTRIBUTE.size, (length + 3) & ~3)
    return b""


def _address(family: int, raw: bytes) -> str:
    if family == socket.AF_INET:
        return str(ipaddress.IPv4Address(raw[:4]))
    address = ipaddress.IPv6Address(raw)
    return str(address.ipv4_mapped or address)


# --- which host is slow -------------------------------------------------------------------------------------

Flows = Mapping[tuple[str, str], Sequence[Connection]]
"""The connections that have sent data lately, by the hosts of both ends."""


def slow_host(connections: Mapping[str, Sequence[Connection]]) -> tuple[str, str] | None:
    """The host whose network is slow, and a sentence that says why. `connections` are by host."""
    flows = _flows(connections)
    hosts = sorted({host for pair in flows for host in pair})
    if len(hosts) < 3:
        return None
    found = [(host, why) for host in hosts for judge in _JUDGES if (why := judge(flows, host))]
    named = dict(found)
    return found[0] if len(named) == 1 else None


def _flows(connections: Mapping[str, Sequence[Connection]]) -> Flows:
    """Without addresses that several hosts have, such as those of containers."""
    owners: dict[str, set[str]] = defaultdict(set)
    for host, ends in connections.items():
        for end in ends:
            owners[end.source].add(host)
    flows: dict[tuple[str, str], list[Connection]] = defaultdict(list)
    for host, ends in connections.items():
        for end in ends:
            if len(owners[end.source]) == len(owners[end.target]) == 1 and end.idle_ms <= RECENT_MS:
                (there,) = owners[end.target]
                if there != host:
                    flows[host, there].append(end)
    return flows


def _far(flows: Flows, host: str) -> str:
    """A long way to this host, and a short one between all others."""
    trips: dict[frozenset[str], int] = {}
    for pair, ends in flows.items():
        known = [end.rtt_ns for end in ends if 0 < end.rtt_ns < 0xFFFFFFFF * 1000]
        if known:
            trips[frozenset(pair)] = min(*known, trips.get(frozenset(pair), known[0]))
    own = [trip for pair, trip in trips.items() if host in pair]
    others = [trip for pair, trip in trips.items() if host not in pair]
    if len(own) < 2 or not others or min(own) < max(RTT_NS, WORSE * max(others)):
        return ""
    return (
        f"a round trip to host {host} takes {duration(min(own))} or more, and a round trip between other "
        f"hosts takes at most {duration(max(others))}"
    )


def _sends_slowly(flows: Flows, host: str) -> str:
    mine = {there: ends for (here, there), ends in flows.items() if here == host}
    return _slowly(flows, host, mine, "sends", lambda pair: pair[0])


def _receives_slowly(flows: Flows, host: str) -> str:
    mine = {here: ends for (here, there), ends in flows.items() if there == host}
    return _slowly(flows, host, mine, "receives", lambda pair: pair[1])


def _slowly(
    flows: Flows,
    host: str,
    mine: Mapping[str, Sequence[Connection]],
    does: str,
    end_of: Callable[[tuple[str, str]], str],
) -> str:
    """Whether all that this host sends, or receives, is much less than each other host can.

    What it sends in all is known: the network limits it, and the sum of the rates is the most that it was. Of
    the others, the best rate of one connection is what they can do at least. A rate is also low for a moment
    if a process did not get a core, so only what several looks say is true.
    """
    full = [o for o, ends in mine.items() if any(end.is_full and end.idle_ms <= BUSY_MS for end in ends)]
    if len(full) < 2:
        return ""
    total = sum(end.rate for ends in mine.values() for end in ends)
    best: dict[str, int] = defaultdict(int)
    for pair, ends in flows.items():
        if host not in pair:
            best[end_of(pair)] = max(best[end_of(pair)], *(end.rate for end in ends))
    others = {each for pair in flows for each in pair} - {host}
    if not total or any(best[other] < WORSE * total for other in others):
        return ""
    rest = f"each other host {does} {size(min(best.values()))}/s or more"
    return f"host {host} {does} {size(total)}/s in all, and {rest}"


_JUDGES = (_far, _sends_slowly, _receives_slowly)
