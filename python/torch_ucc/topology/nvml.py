"""NVIDIA's own view of its GPUs, through the management library where the driver brought it."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any, NamedTuple

SWITCH = "switch"
"""The other end of an NVLink that goes to a switch, behind which are all other GPUs of the host."""

_REMOTE_IS_SWITCH = 2
_MAX_LINKS = 18  # of any GPU up to Blackwell


class Graphics(NamedTuple):
    """A GPU by its PCI address, such as 0000:1b:00.0; `links` counts active NVLinks by what they lead to."""

    pci: str
    name: str
    links: dict[str, int]


class _Pci(ctypes.Structure):
    """nvmlPciInfo_t, version 3."""

    _fields_ = (
        ("legacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("device_id", ctypes.c_uint),
        ("subsystem_id", ctypes.c_uint),
        ("bus_id", ctypes.c_char * 32),
    )

    def address(self) -> str:
        return f"{self.domain:04x}:{self.bus:02x}:{self.device:02x}.0"


def graphics() -> list[Graphics]:
    """Empty where there is no NVML, or it has nothing to say. In NVML's order, which is by PCI address."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return []
    if library.nvmlInit_v2() != 0:
        return []
    try:
        return list(_each(library))
    finally:
        library.nvmlShutdown()


def _each(library: Any) -> Iterator[Graphics]:
    count = ctypes.c_uint()
    library.nvmlDeviceGetCount_v2(ctypes.byref(count))
    for index in range(count.value):
        device = ctypes.c_void_p()
        pci = _Pci()
        name = ctypes.create_string_buffer(96)
        if library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)) != 0:
            continue
        if library.nvmlDeviceGetPciInfo_v3(device, ctypes.byref(pci)) != 0:
            continue
        library.nvmlDeviceGetName(device, name, len(name))
        yield Graphics(pci.address(), name.value.decode(), _links(library, device))


def _links(library: Any, device: ctypes.c_void_p) -> dict[str, int]:
    links: dict[str, int] = {}
    for link in range(_MAX_LINKS):
        active = ctypes.c_uint()
        if library.nvmlDeviceGetNvLinkState(device, link, ctypes.byref(active)) != 0 or not active.value:
            continue
        kind = ctypes.c_int(-1)
        remote = _Pci()
        library.nvmlDeviceGetNvLinkRemoteDeviceType(device, link, ctypes.byref(kind))
        if kind.value == _REMOTE_IS_SWITCH:
            other = SWITCH
        elif library.nvmlDeviceGetNvLinkRemotePciInfo_v2(device, link, ctypes.byref(remote)) == 0:
            other = remote.address()
        else:
            continue
        links[other] = links.get(other, 0) + 1
    return links
