"""Network interfaces of a host, with their addresses and routes."""

from __future__ import annotations

import ipaddress
import re
import socket
import struct

from torch_ucc.topology import pci
from torch_ucc.topology.inventory import Interface
from torch_ucc.topology.root import Root

_LOOPBACK = 772  # ARPHRD_LOOPBACK
_UP, _GATEWAY, _REJECT = 1, 2, 0x200  # RTF_UP, RTF_GATEWAY, RTF_REJECT
_NET = "/sys/class/net"
_LOWER = "lower_"  # begins the links to the interfaces below


def interfaces(root: Root) -> tuple[Interface, ...]:
    connected, default = _routes(root)
    default = default or _v6_defaults(root)
    v4 = _v4_addresses(_local_addresses(root), connected, default)
    v6 = _v6_addresses(root)
    return tuple(
        Interface(
            name=name,
            kind=_kind(root, name),
            up=_is_up(root, name),
            mtu=root.number(f"{_NET}/{name}/mtu") or 0,
            speed_mbps=_speed(root, name),
            addresses=(*v4.get(name, []), *v6.get(name, [])),
            default_route=name in default,
            device=pci.device(root, f"{_NET}/{name}/device"),
            over=tuple(
                each.removeprefix(_LOWER) for each in root.names(f"{_NET}/{name}") if each.startswith(_LOWER)
            ),
        )
        for name in root.names(_NET)
        if root.exists(f"{_NET}/{name}/type")  # not every entry is an interface: bonding_masters
    )


def own_addresses(root: Root) -> set[str]:
    """All addresses of this network namespace as a GID has them: 16 bytes in hexadecimal digits."""
    v4 = ("0" * 20 + "ffff" + address.packed.hex() for address in _local_addresses(root))
    v6 = (line.split()[0] for line in root.text("/proc/net/if_inet6").splitlines())
    return {*v4, *v6}


def _kind(root: Root, name: str) -> str:
    at = f"{_NET}/{name}"
    if root.number(f"{at}/type") == _LOOPBACK:
        return "loopback"
    if root.exists(f"{at}/bridge"):
        return "bridge"
    if root.exists(f"{at}/tun_flags"):
        return "tunnel"
    return "port" if root.exists(f"{at}/device") or root.exists(f"{at}/bonding") else "virtual"


def _is_up(root: Root, name: str) -> bool:
    """What has no notion of a carrier says "unknown" and works."""
    return root.text(f"{_NET}/{name}/operstate") in ("up", "unknown")


def _speed(root: Root, name: str) -> int | None:
    speed = root.number(f"{_NET}/{name}/speed")  # -1 without a carrier, and no number where it means nothing
    return speed if speed is not None and speed > 0 else None


def _routes(root: Root) -> tuple[dict[str, list[ipaddress.IPv4Network]], set[str]]:
    """Networks that each interface is on, and the interfaces of the default routes with the least metric."""
    connected: dict[str, list[ipaddress.IPv4Network]] = {}
    defaults: list[tuple[int, str]] = []
    for line in root.text("/proc/net/route").splitlines()[1:]:
        name, target, _, flags, _, _, metric, mask = line.split()[:8]
        if not int(flags, 16) & _UP:
            continue
        if int(mask, 16) == 0:
            defaults.append((int(metric), name))
        elif not int(flags, 16) & _GATEWAY:
            network = ipaddress.IPv4Network(f"{_dotted(target)}/{_dotted(mask)}")
            connected.setdefault(name, []).append(network)
    return connected, _of_least_metric(defaults)


def _of_least_metric(routes: list[tuple[int, str]]) -> set[str]:
    least = min((metric for metric, _ in routes), default=0)
    return {name for metric, name in routes if metric == least}


def _dotted(text: str) -> str:
    return socket.inet_ntoa(struct.pack("=L", int(text, 16)))


def _local_addresses(root: Root) -> list[ipaddress.IPv4Address]:
    """Of all interfaces: what the kernel lists does not say of which."""
    found = re.findall(r"\|-- ([\d.]+)\n\s+/32 host LOCAL", root.text("/proc/net/fib_trie"))
    return [ipaddress.IPv4Address(text) for text in dict.fromkeys(found)]


def _v4_addresses(
    addresses: list[ipaddress.IPv4Address],
    connected: dict[str, list[ipaddress.IPv4Network]],
    default: set[str],
) -> dict[str, list[str]]:
    """By interface. In some clouds, and in containers, an address is on no network: then it is that of the
    only interface with a default route, if that has no other address."""
    found = {
        name: [f"{each}/{network.prefixlen}" for network in networks for each in addresses if each in network]
        for name, networks in connected.items()
    }
    of_networks = [network for networks in connected.values() for network in networks]
    left = [
        f"{each}/32"
        for each in addresses
        if not each.is_loopback and not any(each in network for network in of_networks)
    ]
    if len(default) == 1 and not found.get(min(default)):
        found[min(default)] = left
    return found


def _v6_defaults(root: Root) -> set[str]:
    """The interfaces of the default routes with the least metric."""
    defaults: list[tuple[int, str]] = []
    for line in root.text("/proc/net/ipv6_route").splitlines():
        _, length, *_, metric, _, _, flags, name = line.split()
        if int(length, 16) == 0 and int(flags, 16) & _UP and not int(flags, 16) & _REJECT:
            defaults.append((int(metric, 16), name))
    return _of_least_metric(defaults)


def _v6_addresses(root: Root) -> dict[str, list[str]]:
    """Those that can be reached from elsewhere."""
    found: dict[str, list[str]] = {}
    for line in root.text("/proc/net/if_inet6").splitlines():
        digits, _, length, scope, _, name = line.split()
        if int(scope, 16) == 0:
            address = ipaddress.IPv6Address(bytes.fromhex(digits))
            found.setdefault(name, []).append(f"{address}/{int(length, 16)}")
    return found
