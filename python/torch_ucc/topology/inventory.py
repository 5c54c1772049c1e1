"""What one host has: plain values, which are saved as JSON and read back."""

from __future__ import annotations

import functools
import json
import types
import typing
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch_ucc.topology.cores import usable

FORMAT = 1


class Cpu(NamedTuple):
    """`cores` counts physical ones, `usable` those logical ones that this process may run on ("0-3,8"),
    `quota` how many of them a container may keep busy."""

    model: str
    sockets: int
    cores: int
    usable: str
    quota: float | None = None


class Numa(NamedTuple):
    id: int
    cpus: str
    memory_bytes: int


class Device(NamedTuple):
    """`path` leads from the root complex down to the device; `link_gbps` is what its PCIe link runs at
    now."""

    pci: str
    path: tuple[str, ...]
    numa: int
    link_gbps: float | None


class Gpu(NamedTuple):
    """`links` counts NVLinks by the PCI address that they lead to, or "switch"."""

    name: str
    device: Device
    links: Mapping[str, int]


class RdmaPort(NamedTuple):
    """`link_layer` is "InfiniBand", "Ethernet" (RoCE) or "EFA", `gid_types` the kinds of its addresses,
    those of a link alone left out where it is Ethernet.
    `netdevs` are the interfaces on the same device. `elsewhere`: the addresses of this RoCE port are those of
    another network namespace, so no connection from this namespace can use it."""

    name: str
    port: int
    link_layer: str
    active: bool
    rate_gbps: float
    device: Device | None
    netdevs: tuple[str, ...] = ()
    gid_types: tuple[str, ...] = ()
    elsewhere: bool = False

    @property
    def spec(self) -> str:
        """As UCX_NET_DEVICES names it."""
        return f"{self.name}:{self.port}"

    @property
    def state(self) -> str:
        """Its rate, and why it cannot be used, if so."""
        if not self.active:
            return "not connected"
        return f"{self.rate_gbps:g} Gb/s" + (", of another network namespace" if self.elsewhere else "")


class Interface(NamedTuple):
    """A network interface. `kind` is "port" for hardware, else "loopback", "bridge", "tunnel" or "virtual"
    (which is what a container's own interface is). `addresses` have their network's length: "10.0.0.5/24".
    `over` names the interfaces that carry this one, such as the card of a VLAN or those of a bond."""

    name: str
    kind: str
    up: bool
    mtu: int
    speed_mbps: int | None
    addresses: tuple[str, ...]
    default_route: bool
    device: Device | None = None
    over: tuple[str, ...] = ()


class Limits(NamedTuple):
    """None is: no limit, or no such file. `sysv`: whether shared memory of System V can be had."""

    shm_bytes: int
    shm_free: int
    memlock_bytes: int | None
    open_files: int | None
    ptrace_scope: int | None
    may_ptrace_any: bool
    pid_namespace: str
    user_namespace: str
    ipc_namespace: str
    huge_pages: int
    sysv: bool = True


class Software(NamedTuple):
    """Of UCX, `modules` are the transports beyond shared memory and TCP; of UCC, the components."""

    version: str = ""
    path: str = ""
    modules: tuple[str, ...] = ()


class Inventory(NamedTuple):
    host: str
    host_id: str
    kernel: str
    cpu: Cpu
    numa: tuple[Numa, ...]
    gpus: tuple[Gpu, ...]
    rdma: tuple[RdmaPort, ...]
    interfaces: tuple[Interface, ...]
    limits: Limits
    ucx: Software = Software()
    ucc: Software = Software()


def cpus_in(text: str) -> list[int]:
    """The kernel's notation: "0-2,5" is 0, 1, 2 and 5."""
    found: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found.extend(range(int(first), int(last or first) + 1))
    return found


def usable_cores(cpu: Cpu) -> int:
    """How many threads can run at once, at least one."""
    return usable(len(cpus_in(cpu.usable)), cpu.quota)


def as_data(value: Any) -> Any:
    """A value of these classes, or several, as dicts."""
    if hasattr(value, "_asdict"):
        return {name: as_data(each) for name, each in value._asdict().items()}
    if isinstance(value, tuple | list):
        return tuple(as_data(each) for each in value)
    return dict(value) if isinstance(value, Mapping) else value


def to_json(inventory: Inventory) -> str:
    return json.dumps({"format": FORMAT, **as_data(inventory)}, indent=1) + "\n"


def from_json(text: str) -> Inventory:
    """Raises ValueError that names what is missing or wrong, and where."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"a saved machine is JSON: {error}") from None
    if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
        raise ValueError(
            f"not a machine that `torch-ucc topo --save` of this version wrote (format {FORMAT})"
        )
    return from_dict(data)


def from_dict(data: dict[str, Any]) -> Inventory:
    """What as_data() made of one. Raises ValueError."""
    inventory: Inventory = _read(Inventory, data, "")
    return inventory


def _read(kind: Any, data: Any, at: str) -> Any:
    """`data` as a value of the annotated type `kind`."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if hasattr(kind, "_fields"):
        return _read_fields(kind, data, at)
    if origin is tuple and isinstance(data, list):
        return tuple(_read(arguments[0], each, f"{at}[{i}]") for i, each in enumerate(data))
    if origin is Mapping and isinstance(data, dict):
        return {key: _read(arguments[1], each, f"{at}.{key}") for key, each in data.items()}
    if origin is types.UnionType:  # X | None
        return None if data is None else _read(arguments[0], data, at)
    if kind is float and type(data) is int:
        return float(data)
    if isinstance(kind, type) and type(data) is kind:
        return data
    raise ValueError(f"{at.lstrip('.')}: {data!r} is not {getattr(kind, '__name__', kind)}")


_hints = functools.cache(typing.get_type_hints)


def _read_fields(kind: Any, data: Any, at: str) -> Any:
    if not isinstance(data, dict):
        raise ValueError(f"{at.lstrip('.')}: {data!r} is not an object")
    hints = _hints(kind)
    if unknown := sorted(data.keys() - hints.keys()):
        raise ValueError(f"{at.lstrip('.') or 'the machine'} has no {unknown[0]!r}")
    values = {name: _read(hints[name], data[name], f"{at}.{name}") for name in hints if name in data}
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"{at.lstrip('.') or 'the machine'}: {error}") from None
