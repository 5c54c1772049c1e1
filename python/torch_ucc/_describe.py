"""What a group runs on: libraries, settings, hosts, and the transports that UCX chooses."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from torch_ucc import _extension, _libraries, config


def describe(group: dist.ProcessGroup | None = None) -> dict[str, Any]:
    """Collective: every rank of the group calls it. The result can be printed and compared.

    `transports` names what UCX chooses towards a peer on the same host and towards one on another host, where
    the group has such peers; UCX was asked, nothing is guessed.
    """
    core = _extension.core()
    settings = config.in_force()
    here = socket.gethostname()
    probe = core.TransportProbe()
    peers: list[tuple[str, bytes]] = [("", b"")] * dist.get_world_size(group)
    dist.all_gather_object(peers, (here, probe.address()), group=group)
    transports = {
        where: probe.transports_to(address)
        for where, address in _one_peer_each(peers, dist.get_rank(group), here)
    }
    dist.barrier(group)  # the addresses are those of probes that must still exist
    return {
        "libraries": {
            "UCC": {"version": core.ucc_version(), **_where("UCC")},
            "UCX": {"version": core.ucx_version(), **_where("UCX")},
        },
        "settings": {
            name: {"value": str(getattr(settings, name)), "source": settings.sources.get(name, "default")}
            for name in config.names()
        },
        "hosts": sorted({host for host, _ in peers}),
        "ranks": len(peers),
        "usable_cores": len(os.sched_getaffinity(0)),
        "transports": transports,
    }


def _one_peer_each(peers: Sequence[tuple[str, bytes]], rank: int, here: str) -> list[tuple[str, bytes]]:
    chosen: dict[str, bytes] = {}
    for other, (host, address) in enumerate(peers):
        if other != rank:
            chosen.setdefault("same host" if host == here else "other host", address)
    return list(chosen.items())


def _where(name: str) -> dict[str, str]:
    for library in _libraries.loaded():
        if library.name == name:
            return {"from": str(library.path), "because": library.why}
    return {}
