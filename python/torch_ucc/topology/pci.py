"""PCI devices: where they are, how fast their link is, and how far two of them are apart."""

from __future__ import annotations

import re

from torch_ucc.topology.inventory import Device
from torch_ucc.topology.root import Root

# As `nvidia-smi topo -m` names them, the nearest first.
DISTANCES = {
    "PIX": "the path crosses at most one PCIe bridge",
    "PXB": "the path crosses several PCIe bridges, but no host bridge",
    "PHB": "the path crosses the PCIe host bridge of a CPU",
    "NODE": "the path crosses several PCIe host bridges of one NUMA node",
    "SYS": "the path crosses the link between NUMA nodes",
}

_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")
# Bits that carry data, of those that a transfer has: 8b/10b, then 128b/130b; since 64 GT/s there is no such
# loss.
_ENCODING = {2.5: 0.8, 5.0: 0.8, 8.0: 128 / 130, 16.0: 128 / 130, 32.0: 128 / 130}


def device(root: Root, path: str) -> Device | None:
    """The PCI device that `path` in sysfs leads to; a virtual function's or a port's path may go on below
    it."""
    whole = root.resolved(path)
    parts = whole.split("/")
    while parts and not _ADDRESS.match(parts[-1]):
        parts.pop()
    if not parts:
        return None
    at = "/".join(parts)
    numa = root.number(f"{at}/numa_node")
    chain = tuple(part for part in parts if _ADDRESS.match(part) or part.startswith("pci"))
    return Device(parts[-1], chain, -1 if numa is None else numa, _link_gbps(root, at))


def distance(one: Device, other: Device) -> str:
    """One of DISTANCES."""
    if one.path[:1] != other.path[:1]:
        same_node = one.numa == other.numa or -1 in (one.numa, other.numa)
        return "NODE" if same_node else "SYS"
    shared = 0
    for mine, its in zip(one.path, other.path, strict=False):
        if mine != its:
            break
        shared += 1
    if shared == 1:
        return "PHB"
    # Below what they share is, of each, the port of the switch that leads to it, and the device itself.
    below = max(len(one.path), len(other.path)) - shared
    return "PIX" if below <= 2 else "PXB"


def _link_gbps(root: Root, at: str) -> float | None:
    speed = re.match(r"([\d.]+) GT/s", root.text(f"{at}/current_link_speed"))
    width = root.number(f"{at}/current_link_width")
    if speed is None or not width:
        return None
    transfers = float(speed[1])
    return round(transfers * width * _ENCODING.get(transfers, 1.0), 1)
