"""Builds the part of a machine's sysfs and procfs that is read, below a folder."""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch_ucc.topology.nvml import Graphics
from torch_ucc.topology.root import Root

GIB = 1 << 30
INITIAL = {"pid": "pid:[4026531836]", "user": "user:[4026531837]", "ipc": "ipc:[4026531839]"}
EVERY_CAPABILITY = "000001ffffffffff"
OF_A_USER = "0000000000000000"


@dataclass
class FakeRoot:
    """Call what the machine has, then `root()`. Paths are those of Linux."""

    folder: Path
    shm: tuple[int, int] = (0, 0)
    graphics: list[Graphics] = field(default_factory=list)
    sysv: bool = True
    _routes: list[str] = field(default_factory=list)
    _local: list[str] = field(default_factory=list)
    _v6: list[str] = field(default_factory=list)

    def root(self) -> Root:
        self.file(
            "/proc/net/route",
            "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n"
            + "".join(self._routes),
        )
        self.file("/proc/net/fib_trie", "Main:\n" + "".join(self._local) + "Local:\n" + "".join(self._local))
        self.file("/proc/net/if_inet6", "".join(self._v6))
        return Root(
            self.folder,
            capacity=lambda _: self.shm,
            graphics=lambda: self.graphics,
            has_sysv=lambda: self.sysv,
        )

    def file(self, path: str, text: str) -> None:
        at = self.folder / path.lstrip("/")
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_text(text + "\n")

    def link(self, path: str, to: str) -> None:
        """`to` is a path, or a text that is none."""
        at = self.folder / path.lstrip("/")
        at.parent.mkdir(parents=True, exist_ok=True)
        target = self.folder / to.lstrip("/")
        at.symlink_to(os.path.relpath(target, at.parent) if to.startswith("/") else to)

    def host(
        self,
        name: str,
        boot_id: str,
        kernel: str,
        *,
        capabilities: str = OF_A_USER,
        usable: str,
        memlock: str = "unlimited",
        open_files: str = "1048576",
        ptrace_scope: int | None = 0,
        namespaces: dict[str, str] = INITIAL,
        huge_pages: int = 0,
    ) -> None:
        self.file("/proc/sys/kernel/hostname", name)
        self.file("/proc/sys/kernel/random/boot_id", boot_id)
        self.file("/proc/sys/kernel/osrelease", kernel)
        self.file("/proc/sys/vm/nr_hugepages", str(huge_pages))
        self.file(
            "/proc/self/status", f"Name:\tpython\nCapEff:\t{capabilities}\nCpus_allowed_list:\t{usable}"
        )
        self.file(
            "/proc/self/limits",
            "Limit                     Soft Limit           Hard Limit           Units\n"
            f"Max open files            {open_files}              {open_files}              files\n"
            f"Max locked memory         {memlock}            {memlock}            bytes",
        )
        if ptrace_scope is not None:
            self.file("/proc/sys/kernel/yama/ptrace_scope", str(ptrace_scope))
        for kind, text in namespaces.items():
            self.link(f"/proc/self/ns/{kind}", text)

    def cpus(self, model: str, nodes: Sequence[str], cores_each: int, memory_gib: int, threads: int) -> None:
        """`nodes` lists the CPUs of each NUMA node, which is a socket here; `memory_gib` is that of a
        node."""
        lines = []
        for node, cpus in enumerate(nodes):
            at = f"/sys/devices/system/node/node{node}"
            self.file(f"{at}/cpulist", cpus)
            self.file(f"{at}/meminfo", f"Node {node} MemTotal:       {memory_gib * GIB // 1024} kB")
            for core in range(cores_each):
                lines += [
                    f"processor\t: {len(lines)}\nmodel name\t: {model}\nphysical id\t: {node}\n"
                    f"siblings\t: {cores_each * threads}\ncore id\t\t: {core}\n"
                ] * threads
        self.file("/proc/cpuinfo", "\n".join(lines))

    def pci(
        self, path: str, vendor: int, device: int, kind: int, numa: int, speed: float = 32.0, width: int = 16
    ) -> str:
        """`path` leads from the root complex down: "pci0000:15/15:01.0/18:00.0". Returns its folder."""
        top, *below = path.split("/")
        chain = [f"0000:{part}" for part in below]
        at = "/".join(["/sys/devices", top, *chain])
        values = {
            "vendor": f"{vendor:#06x}",
            "device": f"{device:#06x}",
            "class": f"{kind:#08x}",
            "numa_node": str(numa),
            "current_link_speed": f"{speed} GT/s PCIe",
            "current_link_width": str(width),
        }
        for name, text in values.items():
            self.file(f"{at}/{name}", text)
        self.link(f"/sys/bus/pci/devices/{chain[-1]}", at)
        return at

    def nvidia(
        self, path: str, device: int, numa: int, name: str, links: dict[str, int] | None = None
    ) -> None:
        at = self.pci(path, 0x10DE, device, 0x030200, numa)
        self.graphics.append(Graphics(at.rpartition("/")[2], name, links or {}))

    def rdma(
        self,
        name: str,
        at: str,
        rate: str,
        link_layer: str = "InfiniBand",
        state: str = "4: ACTIVE",
        gid: str = "0000:0000:0000:0000:0000:ffff:0a96:0001",
    ) -> None:
        """`gid`: the address that leads out of an Ethernet link, if there is one."""
        port = f"{at}/infiniband/{name}/ports/1"
        self.file(f"{port}/state", state)
        self.file(f"{port}/rate", rate)
        self.file(f"{port}/link_layer", link_layer)
        self.file(
            f"{port}/gids/0",
            "fe80:0000:0000:0000:a088:c203:00ab:1234" if state.startswith("4") else ":".join(["0000"] * 8),
        )
        self.file(f"{port}/gid_attrs/types/0", "RoCE v2" if link_layer == "Ethernet" else "IB/RoCE v1")
        if link_layer == "Ethernet" and gid:
            self.file(f"{port}/gids/1", gid if state.startswith("4") else ":".join(["0000"] * 8))
            self.file(f"{port}/gid_attrs/types/1", "RoCE v2")
        self.link(f"{at}/infiniband/{name}/device", at)
        self.link(f"/sys/class/infiniband/{name}", f"{at}/infiniband/{name}")

    def interface(
        self,
        name: str,
        at: str | None = None,
        *,
        addresses: Sequence[str] = (),
        gateway: str | None = None,
        speed: int | None = None,
        mtu: int = 1500,
        state: str = "up",
        kind: str = "",
        metric: int = 0,
    ) -> None:
        """`at` is its device; without one it is in software, a "bridge" if `kind` says so. A gateway makes
        its route a default."""
        folder = f"{at}/net/{name}" if at else f"/sys/devices/virtual/net/{name}"
        self.file(f"{folder}/type", "772" if name == "lo" else "1")
        self.file(f"{folder}/operstate", state)
        self.file(f"{folder}/mtu", str(mtu))
        if speed is not None:
            self.file(f"{folder}/speed", str(speed))
        if at:
            self.link(f"{folder}/device", at)
        if kind:
            self.file(f"{folder}/{kind}/bridge_id", "8000.0242ac110001")
        self.link(f"/sys/class/net/{name}", folder)
        for text in addresses:
            self._address(name, ipaddress.ip_interface(text), metric)
        if gateway:
            self._route(name, "0.0.0.0", gateway, "0003", metric, "0.0.0.0")

    def lone_address(self, address: str) -> None:
        """Of some interface, and on no network."""
        self._local.append(f"           |-- {address}\n              /32 host LOCAL\n")

    def route(self, name: str, target: str) -> None:
        network = ipaddress.IPv4Network(target)
        self._route(name, str(network.network_address), "0.0.0.0", "0001", 0, str(network.netmask))

    def _address(
        self, name: str, address: ipaddress.IPv4Interface | ipaddress.IPv6Interface, metric: int
    ) -> None:
        if isinstance(address, ipaddress.IPv6Interface):
            length = address.network.prefixlen
            self._v6.append(f"{address.ip.packed.hex()} 02 {length:02x} 00 80 {name}\n")
            return
        network = address.network
        if name != "lo":
            self._route(name, str(network.network_address), "0.0.0.0", "0001", metric, str(network.netmask))
        self.lone_address(str(address.ip))

    def _route(self, name: str, target: str, gateway: str, flags: str, metric: int, mask: str) -> None:
        where, by, over = (
            f"{struct.unpack('=L', socket.inet_aton(each))[0]:08X}" for each in (target, gateway, mask)
        )
        self._routes.append(f"{name}\t{where}\t{by}\t{flags}\t0\t0\t{metric}\t{over}\t0\t0\t0\n")
