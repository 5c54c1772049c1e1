"""What a group runs on: libraries, settings, hosts, the plan, and the transports that UCX chooses."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from torch_ucc import config
from torch_ucc._group import group_options, planning
from torch_ucc._native import extension, loading
from torch_ucc._register import told_by_profile
from torch_ucc.topology.cores import usable_here
from torch_ucc.topology.explain import differences
from torch_ucc.topology.inventory import as_data
from torch_ucc.topology.plan import IN_MEMORY, ON_ONE_HOST, OTHER_HOST, SAME_HOST
from torch_ucc.topology.routes import ways


def describe(group: dist.ProcessGroup | None = None) -> dict[str, Any]:
    """Return what the group runs on: libraries, settings, hosts, the plan, and the transports of UCX.

    This is a collective call: every rank of the group must call it. The result can be printed and compared.

    - `transports`: the transports that UCX chooses for a peer on the same host and for a peer on another
      host, if the group has such peers. They come from UCX itself.
    - `differences`: a sentence for each difference between the plan and what the group uses: other
      transports, or UCC and UCX instead of shared memory on one host. The call also issues them as warnings.
    - `options`: the options that the plan or the `Options` of the group set for UCC and UCX, each with its
      source. Options that the user set in the environment are not among them.
    - `operations`: what serves each operation: shared memory, UCC, messages, the store, or shared memory on
      each host and UCC between hosts. `torch-ucc plan --op` shows the algorithm that UCC uses for a size.
    - `why_not_through_memory`: why the ranks of the group do not all share memory, for example because they
      are on several hosts. It is empty if all of them do.
    """
    return described(group)[0]


def described(group: dist.ProcessGroup | None = None) -> tuple[dict[str, Any], planning.Agreed]:
    """Return the result of describe(), and the plan of the group."""
    compiled = extension.compiled()
    settings = config.in_force()
    members = dist.get_process_group_ranks(group) if group is not None else list(range(dist.get_world_size()))
    me = dist.get_rank(group)
    backend = extension.backend_of(group or dist.group.WORLD)
    chosen = planning.of(backend.context) if backend is not None else planning.Chosen([], [])
    planned = (chosen.ucx, chosen.ucc)
    own = group_options.of(group or dist.group.WORLD)
    with told_by_profile():
        probe = compiled.TransportProbe(group_options.told(planned, own)[0])
    told: list[tuple[bytes, bytes]] = [(b"", b"")] * len(members)
    dist.all_gather_object(told, (probe.address(), planning.record_here()), group=group)
    agreed = chosen.agreed or planning.agree(me, members, [record for _, record in told])
    hosts = [agreed.host_of(rank) for rank in members]
    transports = {where: probe.transports_to(told[other][0]) for where, other in _one_peer_each(hosts, me)}
    dist.barrier(group)  # the addresses are those of probes that must still exist
    differ = differences(agreed.plan, agreed.rank, transports)
    why_not = backend.why_not_through_memory if backend is not None else "the group has no backend of ours"
    planned_here = agreed.plan.about(ON_ONE_HOST)
    if why_not and len(set(hosts)) == 1 and planned_here and planned_here.value == IN_MEMORY:
        differ.append(f"{ON_ONE_HOST}: the plan says {IN_MEMORY}, and UCC and UCX serve the group: {why_not}")
    for text in differ:
        warnings.warn(f"ucc: {text}", RuntimeWarning, stacklevel=2)
    about = {
        "libraries": libraries(),
        "settings": {
            name: {"value": str(getattr(settings, name)), "source": settings.sources.get(name, "default")}
            for name in config.names()
        },
        "options": group_options.shown(planned, own),
        "hosts": sorted({agreed.job.hosts[host].host for host in hosts}),
        "ranks": len(members),
        "usable_cores": usable_here(),
        "topology": {"hosts": as_data(agreed.job.hosts), "ranks": as_data(agreed.job.ranks)},
        "plan": as_data(agreed.plan),
        "operations": ways(
            not why_not,
            backend is not None and backend.has_levels,
            backend is not None and backend.has_even_levels,
        ),
        "why_not_through_memory": why_not,
        "transports": transports,
        "differences": differ,
    }
    return about, agreed


def libraries() -> dict[str, dict[str, str]]:
    """Return the versions and paths of the UCC and UCX that this process uses. Loads the extension."""
    compiled = extension.compiled()
    return {
        "UCC": {"version": compiled.ucc_version(), **_where("UCC")},
        "UCX": {"version": compiled.ucx_version(), **_where("UCX")},
    }


def _one_peer_each(hosts: Sequence[int], me: int) -> list[tuple[str, int]]:
    chosen: dict[str, int] = {}
    for other, host in enumerate(hosts):
        if other != me:
            chosen.setdefault(SAME_HOST if host == hosts[me] else OTHER_HOST, other)
    return list(chosen.items())


def _where(name: str) -> dict[str, str]:
    for library in loading.loaded():
        if library.name == name:
            return {"from": str(library.path), "because": library.why}
    return {}
