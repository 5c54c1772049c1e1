"""A machine for people: a tree of what is where, and a matrix of how far its devices are apart."""

from __future__ import annotations

from collections.abc import Iterator

from torch_ucc._style import bold, columns, dim, table
from torch_ucc.topology.inventory import Device, Inventory, Numa, cpus_in
from torch_ucc.topology.job import link
from torch_ucc.topology.pci import DISTANCES, distance

_LEGEND = {
    "X": "the device itself",
    **DISTANCES,
    "NV#": "connected by # NVLinks",
}


def tree(host: Inventory) -> str:
    return "\n".join(_tree(host)) + "\n"


def _tree(host: Inventory) -> Iterator[str]:
    cpu = host.cpu
    sockets = f"{cpu.sockets} socket{'s' * (cpu.sockets > 1)}"
    memory = size_text(sum(node.memory_bytes for node in host.numa))
    yield bold(
        f"Machine {host.host} ({memory}): {cpu.model or 'unknown processor'}, {sockets}, {cpu.cores} cores"
    )
    parts = [(_node_head(node), list(_devices(host, node))) for node in host.numa]
    parts.append(("not attached to a NUMA node", list(_devices(host, None))))
    lines = iter(columns([row for _, rows in parts for row in rows]))
    for head, rows in parts:
        if rows or not head.startswith("not"):
            yield f"  {bold(head)}"
        yield from (f"    {next(lines)}" for _ in rows)
    yield from (f"  {line}" for line in columns(list(_facts(host))))


def _node_head(node: Numa) -> str:
    return (
        f"NUMA node {node.id} ({size_text(node.memory_bytes)}): {len(cpus_in(node.cpus))} CPUs, {node.cpus}"
    )


def _facts(host: Inventory) -> Iterator[tuple[str, str]]:
    """What holds for the whole machine, or for this process on it."""
    cpu, limits = host.cpu, host.limits
    quota = f"; the cgroup allows the time of {cpu.quota:g} CPUs" if cpu.quota is not None else ""
    yield "usable", f"{len(cpus_in(cpu.usable))} CPUs, {cpu.usable or 'unknown'}{quota}"
    yield "/dev/shm", f"{size_text(limits.shm_bytes)}, {size_text(limits.shm_free)} free"
    memlock = "no limit" if limits.memlock_bytes is None else f"at most {size_text(limits.memlock_bytes)}"
    yield "locked memory", memlock
    for name, one, has in (
        ("UCX", host.ucx, "transports besides shared memory and TCP"),
        ("UCC", host.ucc, "components"),
    ):
        yield (
            name,
            f"{one.version}, {has}: {', '.join(one.modules) or 'none'}" if one.version else "not found",
        )


def node_of(host: Inventory, device: Device | None) -> int | None:
    """The NUMA node of a device, if it says of which it is or there is but one."""
    known = [each.id for each in host.numa]
    if device is None:
        return None
    if device.numa in known:
        return device.numa
    return known[0] if len(known) == 1 else None


_LAYERS = {"Ethernet": "RoCE"}


def _devices(host: Inventory, node: Numa | None) -> Iterator[tuple[str, ...]]:
    """The devices of this NUMA node, or without one those that belong to no node. Each is a row: what it is,
    its name, its PCI address, the rate of its PCIe link, and its state."""

    def here(device: Device | None) -> bool:
        return node_of(host, device) == (node.id if node else None)

    for i, gpu in enumerate(host.gpus):
        if here(gpu.device):
            links = sum(gpu.links.values())
            yield "GPU", f"GPU{i}", *_pci(gpu.device), gpu.name + (f", {links} NVLinks" if links else "")
    for port in host.rdma:
        if here(port.device):
            row = (_LAYERS.get(port.link_layer, port.link_layer), port.spec, *_pci(port.device), port.state)
            yield row if port.active else tuple(map(dim, row))
    for each in host.interfaces:
        if here(each.device) and each.kind != "loopback":
            facts = [
                "up" if each.up else "down",
                each.kind if each.kind != "port" else "",
                f"{each.speed_mbps / 1000:g} Gb/s" if each.speed_mbps else "",
                *each.addresses,
                "default route" if each.default_route else "",
            ]
            row = ("interface", each.name, *_pci(each.device), ", ".join(filter(None, facts)))
            yield row if each.up else tuple(map(dim, row))


def _pci(device: Device | None) -> tuple[str, str]:
    if device is None:
        return "", ""
    return device.pci, f"PCIe {device.link_gbps:g} Gb/s" if device.link_gbps else ""


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
        return "This machine has fewer than two GPUs and RDMA devices, so there is no table of distances.\n"
    nodes = {node.id: node.cpus for node in host.numa}
    head = ["", *(name for name, _ in devices), "CPU Affinity", "NUMA Affinity"]
    rows = []
    for i, (name, device) in enumerate(devices):
        cells = [_cell(host, i, j, device, other) for j, (_, other) in enumerate(devices)]
        rows.append([name, *cells, nodes.get(device.numa, ""), str(device.numa) if device.numa >= 0 else ""])
    used = {"X", *(cell for row in rows for cell in row)}
    has_links = any(cell.startswith("NV") for cell in used)
    legend = [row for row in _LEGEND.items() if row[0] in used or (row[0] == "NV#" and has_links)]
    return "\n".join(
        [
            bold("Distances, as in `nvidia-smi topo -m`:"),
            "",
            table(head, rows),
            "",
            "Legend:",
            *(f"  {line}" for line in columns(legend)),
            "",
        ]
    )


def _cell(host: Inventory, i: int, j: int, device: Device, other: Device) -> str:
    if i == j:
        return "X"
    if max(i, j) < len(host.gpus):
        return link(host.gpus[i], host.gpus[j])
    return distance(device, other)
