"""A machine for people: a tree of what is where, and a matrix of how far its devices are apart."""

from __future__ import annotations

from collections.abc import Iterator

from torch_ucc.topology.inventory import Device, Inventory, Numa, cpus_in, usable_cores
from torch_ucc.topology.job import link
from torch_ucc.topology.pci import DISTANCES, distance

_LEGEND = {
    "X": "itself",
    **DISTANCES,
    "NV#": "that many NVLinks",
}


def tree(host: Inventory) -> str:
    return "\n".join(_tree(host)) + "\n"


def _tree(host: Inventory) -> Iterator[str]:
    cpu = host.cpu
    sockets = f"{cpu.sockets} socket{'s' * (cpu.sockets > 1)}"
    quota = f", {cpu.quota:g} of them by its control group" if cpu.quota is not None else ""
    yield f"{host.host}: {cpu.model or 'unknown processor'}, {sockets}, {cpu.cores} cores"
    yield f"  this process may use {usable_cores(cpu)} CPUs ({cpu.usable or 'unknown'}{quota})"
    for node in host.numa:
        count = len(cpus_in(node.cpus))
        yield f"  NUMA node {node.id}: {count} CPUs ({node.cpus}), {size_text(node.memory_bytes)}"
        yield from (f"    {line}" for line in _devices(host, node, len(host.numa) == 1))
    loose = list(_devices(host, None, False))
    if loose:
        yield "  not attached to a NUMA node:"
        yield from (f"    {line}" for line in loose)
    limits = host.limits
    memlock = "unlimited" if limits.memlock_bytes is None else size_text(limits.memlock_bytes)
    shm = f"{size_text(limits.shm_bytes)}, {size_text(limits.shm_free)} free"
    yield f"  /dev/shm: {shm}; locked memory: {memlock}"
    for name, one in (("UCX", host.ucx), ("UCC", host.ucc)):
        yield f"  {name} {one.version or '(not found)'}: {', '.join(one.modules) or 'no modules'}"


def node_of(host: Inventory, device: Device | None) -> int | None:
    """The NUMA node of a device, if it says of which it is or there is but one."""
    known = [each.id for each in host.numa]
    if device is None:
        return None
    if device.numa in known:
        return device.numa
    return known[0] if len(known) == 1 else None


def _devices(host: Inventory, node: Numa | None, everything: bool) -> Iterator[str]:
    """Those of the node; of none, those that belong to none. With `everything` what has no node belongs to
    this one."""

    def here(device: Device | None) -> bool:
        return node_of(host, device) == (node.id if node else None)

    for gpu in host.gpus:
        if here(gpu.device):
            links = sum(gpu.links.values())
            yield f"GPU {gpu.device.pci} {gpu.name}{_link(gpu.device)}" + (
                f", {links} NVLinks" if links else ""
            )
    for port in host.rdma:
        if here(port.device):
            where = f" {port.device.pci}{_link(port.device)}" if port.device else ""
            yield f"{port.link_layer} {port.spec}{where}, {port.state}"
    for each in host.interfaces:
        if here(each.device) and each.kind != "loopback":
            speed = f", {each.speed_mbps / 1000:g} Gb/s" if each.speed_mbps else ""
            state = ("" if each.up else ", down") + (", default route" if each.default_route else "")
            addresses = f" {', '.join(each.addresses)}" if each.addresses else ""
            yield f"interface {each.name} ({each.kind}){addresses}{speed}{state}"


def _link(device: Device) -> str:
    return f", PCIe {device.link_gbps:g} Gb/s" if device.link_gbps else ""


def size_text(count: int) -> str:
    for unit, bits in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if count >= 1 << bits:
            return f"{count / (1 << bits):.0f} {unit}"
    return f"{count} B"


def matrix(host: Inventory) -> str:
    """As `nvidia-smi topo -m`: GPUs and RDMA devices beside each other."""
    devices: list[tuple[str, Device]] = [(f"GPU{i}", gpu.device) for i, gpu in enumerate(host.gpus)]
    devices += [(port.name, port.device) for port in host.rdma if port.device]
    if len(devices) < 2:
        return "fewer than two devices: there are no distances\n"
    nodes = {node.id: node.cpus for node in host.numa}
    rows = [["", *(name for name, _ in devices), "CPUs", "NUMA"]]
    for i, (name, device) in enumerate(devices):
        cells = [_cell(host, i, j, device, other) for j, (_, other) in enumerate(devices)]
        rows.append([name, *cells, nodes.get(device.numa, ""), str(device.numa) if device.numa >= 0 else ""])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    used = {"X", *(cell for row in rows[1:] for cell in row)}
    has_links = any(cell.startswith("NV") for cell in used)
    legend = [
        f"  {name}: {text}" for name, text in _LEGEND.items() if name in used or (name == "NV#" and has_links)
    ]
    return "\n".join([*lines, "", *legend]) + "\n"


def _cell(host: Inventory, i: int, j: int, device: Device, other: Device) -> str:
    if i == j:
        return "X"
    if max(i, j) < len(host.gpus):
        return link(host.gpus[i], host.gpus[j])
    return distance(device, other)
