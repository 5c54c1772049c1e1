"""Reads a host: sysfs, procfs and the few things that only a call can tell, all through one `Root`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from torch_ucc.topology import network, pci
from torch_ucc.topology.cores import quota
from torch_ucc.topology.inventory import Cpu, Gpu, Inventory, Limits, Numa, RdmaPort, Software
from torch_ucc.topology.root import Root

_CPU = "/sys/devices/system/cpu"
_NODE = "/sys/devices/system/node"
_PCI = "/sys/bus/pci/devices"
_RDMA = "/sys/class/infiniband"

_GPU_VENDORS = {0x10DE: "NVIDIA", 0x1002: "AMD"}
_GPU_CLASSES = (0x03, 0x12)  # display, processing accelerator
_AMAZON = 0x1D0F
_CAP_SYS_PTRACE = 1 << 19


def probe(root: Root, ucx: Software = Software(), ucc: Software = Software()) -> Inventory:  # noqa: B008  frozen
    """Everything that this process can see of its host."""
    return Inventory(
        host=root.text("/proc/sys/kernel/hostname"),
        host_id=root.text("/proc/sys/kernel/random/boot_id"),
        kernel=root.text("/proc/sys/kernel/osrelease"),
        cpu=_cpu(root),
        numa=_numa(root),
        gpus=_gpus(root),
        rdma=_rdma(root),
        interfaces=network.interfaces(root),
        limits=_limits(root),
        ucx=ucx,
        ucc=ucc,
    )


def software(library: Path, version: str, prefix: str) -> Software:
    """`library` is libucp.so.0 or libucc.so.1; `prefix` starts the names of its loadable parts, such as
    "libuct_"."""
    folder = library.parent / library.name.removeprefix("lib").split(".")[0].replace("ucp", "ucx")
    found = {path.name.removeprefix(prefix).split(".")[0] for path in folder.glob(f"{prefix}*.so*")}
    return Software(version, str(library), tuple(sorted(found)))


def _status(root: Root, name: str) -> str:
    match = re.search(rf"^{name}:\s*(\S+)", root.text("/proc/self/status"), re.MULTILINE)
    return match[1] if match else ""


def _cpu(root: Root) -> Cpu:
    info = root.text("/proc/cpuinfo")
    model = ""
    if name := re.search(r"^model name\s*: (.*)", info, re.MULTILINE):
        model = name[1].strip()
    # Processors of ARM have numbers instead of a name, and only sysfs knows their cores.
    elif arm := re.search(r"^CPU implementer\s*: (\S+)(?:.*\n)*?CPU part\s*: (\S+)", info, re.MULTILINE):
        model = f"implementer {arm[1]}, part {arm[2]}"
    pairs = re.findall(r"^physical id\s*: (\d+)$(?:.*\n)*?core id\s*: (\d+)$", info, re.MULTILINE)
    pairs = pairs or [
        (root.text(f"{at}/physical_package_id"), root.text(f"{at}/core_id"))
        for at in (f"{_CPU}/{name}/topology" for name in root.names(_CPU))
        if root.exists(f"{at}/core_id")
    ]
    count = len(re.findall(r"^processor\s*:", info, re.MULTILINE))
    return Cpu(
        model=model,
        sockets=max(1, len({socket for socket, _ in pairs})),
        cores=len(set(pairs)) or count,
        usable=_status(root, "Cpus_allowed_list"),
        quota=quota(root.text),
    )


def _numa(root: Root) -> tuple[Numa, ...]:
    nodes = []
    for name in root.names(_NODE):
        if re.fullmatch(r"node\d+", name):
            memory = re.search(r"MemTotal:\s*(\d+) kB", root.text(f"{_NODE}/{name}/meminfo"))
            size = int(memory[1]) * 1024 if memory else 0
            nodes.append(Numa(int(name[4:]), root.text(f"{_NODE}/{name}/cpulist"), size))
    return tuple(sorted(nodes, key=lambda node: node.id))


def _gpus(root: Root) -> tuple[Gpu, ...]:
    known = {each.pci: each for each in root.graphics()}
    found = []
    for address in root.names(_PCI):
        at = f"{_PCI}/{address}"
        vendor = _GPU_VENDORS.get(root.number(f"{at}/vendor") or 0)
        kind = (root.number(f"{at}/class") or 0) >> 16
        device = pci.device(root, at) if vendor and kind in _GPU_CLASSES else None
        if vendor and device:
            name = f"{vendor} {root.text(f'{at}/device').removeprefix('0x')}"
            told = known.get(address)
            found.append(Gpu(told.name if told else name, device, dict(told.links) if told else {}))
    return tuple(found)


def _rdma(root: Root) -> tuple[RdmaPort, ...]:
    found = []
    own = network.own_addresses(root)
    for name in sorted(root.names(_RDMA), key=_by_number):
        at = f"{_RDMA}/{name}"
        device = pci.device(root, f"{at}/device")
        is_efa = root.number(f"{at}/device/vendor") == _AMAZON
        for port in root.names(f"{at}/ports"):
            rate = re.match(r"[\d.]+", root.text(f"{at}/ports/{port}/rate"))
            is_ethernet = root.text(f"{at}/ports/{port}/link_layer") == "Ethernet"
            gids = _gids(root, f"{at}/ports/{port}", is_ethernet)
            found.append(
                RdmaPort(
                    name=name,
                    port=int(port),
                    link_layer="EFA" if is_efa else root.text(f"{at}/ports/{port}/link_layer"),
                    active=root.text(f"{at}/ports/{port}/state").startswith("4:"),
                    rate_gbps=float(rate[0]) if rate else 0.0,
                    device=device,
                    netdevs=tuple(root.names(f"{at}/device/net")),
                    gid_types=_gid_types(root, f"{at}/ports/{port}", gids),
                    elsewhere=is_ethernet and _are_elsewhere(gids, own),
                )
            )
    return tuple(found)


def _gids(root: Root, port: str, is_ethernet: bool) -> dict[str, str]:
    """The addresses of a port by number: those that are set and, on Ethernet, lead out of the link."""
    addresses = {i: root.text(f"{port}/gids/{i}") for i in root.names(f"{port}/gids")}
    return {
        i: text
        for i, text in addresses.items()
        if text.strip("0:") and not (is_ethernet and text.startswith("fe80:"))
    }


def _gid_types(root: Root, port: str, gids: Mapping[str, str]) -> tuple[str, ...]:
    """Of these addresses: "IB/RoCE v1", "RoCE v2" or both."""
    return tuple(sorted({root.text(f"{port}/gid_attrs/types/{i}") for i in gids}))


def _are_elsewhere(gids: Mapping[str, str], own: set[str]) -> bool:
    """By default, the kernel shows RDMA devices to all network namespaces. A RoCE port has the addresses of
    its network interface, and works only in the namespace of this interface."""
    addresses = {text.replace(":", "") for text in gids.values()}
    return bool(addresses) and not addresses & own


def _by_number(name: str) -> list[str]:
    """mlx5_9 before mlx5_10."""
    return [part.zfill(6) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _limits(root: Root) -> Limits:
    total, free = root.capacity("/dev/shm")
    capabilities = int(_status(root, "CapEff") or "0", 16)
    return Limits(
        shm_bytes=total,
        shm_free=free,
        memlock_bytes=_limit(root, "Max locked memory"),
        open_files=_limit(root, "Max open files"),
        ptrace_scope=root.number("/proc/sys/kernel/yama/ptrace_scope"),
        may_ptrace_any=bool(capabilities & _CAP_SYS_PTRACE),
        pid_namespace=root.link("/proc/self/ns/pid"),
        user_namespace=root.link("/proc/self/ns/user"),
        ipc_namespace=root.link("/proc/self/ns/ipc"),
        huge_pages=root.number("/proc/sys/vm/nr_hugepages") or 0,
        sysv=root.has_sysv(),
    )


def _limit(root: Root, name: str) -> int | None:
    match = re.search(rf"^{name}\s+(\S+)", root.text("/proc/self/limits"), re.MULTILINE)
    return int(match[1]) if match and match[1].isdigit() else None
