"""A plan and a machine in words."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from torch_ucc._style import bold, red, table
from torch_ucc.topology.job import Job
from torch_ucc.topology.plan import IN_MEMORY, ON_ONE_HOST, OTHER_HOST, SAME_HOST, Plan
from torch_ucc.topology.routes import BY_LEVELS, BY_MEMORY, BY_UCC, ways
from torch_ucc.topology.user import HOST_PATH, LEVELS_FROM

_WIDTH = 110
LEVELS = "collectives of hosts with several ranks"


def plan_text(job: Job, plan: Plan) -> str:
    lines = [bold(_job_line(job)), ""]
    if len(job.ranks) > 1:
        lines += [table(("operation", "size", "path", "why"), paths(job, plan)), ""]
    choices = sorted(plan.choices, key=lambda choice: choice.about not in (ON_ONE_HOST, LEVELS))
    names = [_NAMES.get(choice.about, choice.about) for choice in choices]
    width = max(map(len, names))
    for name, choice in zip(names, choices, strict=True):
        lines.append(f"{bold(name)}{' ' * (width - len(name))}  {choice.value}")
        why = [f"Because {choice.reason}.", f"Decided by {choice.by}."]
        if choice.setting:
            why[1] = f"Decided by {choice.by}; {choice.setting} overrides this."
        if choice.reason.startswith("set by the "):  # user, or profile
            why = [f"{choice.reason.capitalize()}: {choice.by}."]
        indent = " " * (width + 2)
        for text in why:
            lines += textwrap.wrap(text, _WIDTH, initial_indent=indent, subsequent_indent=indent)
    if len(set(plan.devices)) > 1:
        lines += ["", table(("rank", "host", "network devices", "why"), list(_device_rows(job, plan)))]
    lines += _section("RDMA ports that are left out:", plan.left_out)
    lines += _section(red("This cannot work:"), plan.problems)
    return "\n".join(lines) + "\n"


_NAMES = {
    SAME_HOST: "UCX on a host",
    OTHER_HOST: "UCX between hosts",
    ON_ONE_HOST: "data on a host",
    "collectives": "UCC layer",
    "algorithms": "UCC algorithms",
    "segments of TCP": "TCP segments",
    "rails of TCP": "TCP rails",
    "ranks on a host": "ranks per host",
    LEVELS: "collectives between hosts",
}
"""What the text calls a choice, where a reader does not know the context of its name."""

_OPERATIONS = {
    "all_reduce, reduce, broadcast, barrier": "all_reduce",
    "all_gather, reduce_scatter": "all_gather",
    "all_to_all, gather, scatter": "all_to_all",
    "send, recv": "send",
}
"""Operations that go the same way, with one of them."""


def paths(job: Job, plan: Plan) -> list[tuple[str, str, str, str]]:
    """For the default group of the job: operations, sizes of their tensors, what carries them, and why."""
    data, levels = plan.about(ON_ONE_HOST), plan.about(LEVELS)
    several, share = len(job.hosts) > 1, data is not None and data.value == IN_MEMORY
    transport = plan.about(OTHER_HOST) or plan.about(SAME_HOST)
    over = f"over {transport.value}" if transport else ""
    if transport and transport.reason.startswith("set by the "):
        over = f"over {transport.by}"
    limit = (
        levels.by.partition("=")[2] if levels and share and levels.by.startswith(f"{LEVELS_FROM[0]}=") else ""
    )
    even = len({len(job.on(host)) for host in range(len(job.hosts))}) == 1
    found = []
    for label, op in _OPERATIONS.items():
        way = ways(share and not several, several and share, several and share and even)[op]
        if way == BY_MEMORY:
            found.append((label, "all", "shared memory", "all ranks are on one host"))
        elif way == BY_LEVELS:
            if limit:
                found.append((label, f"below {limit}", f"UCC {over}", levels.by if levels else ""))
            path = f"shared memory on each host, UCC {over} between hosts"
            why = "less data crosses the network"
            found.append((label, f"from {limit}" if limit else "all", path, why))
        elif way == BY_UCC:
            found.append((label, "all", f"UCC {over}", _why_ucc(job, share)))
        else:
            path = f"shared memory on each host, UCX {over} between hosts" if share else f"UCX {over}"
            found.append((label, "all", path, "ranks send directly to each other"))
    return found


def _why_ucc(job: Job, share: bool) -> str:
    if share:
        return "the hosts have different numbers of ranks"
    return "each host has one rank" if job.most_per_host() == 1 else f"{HOST_PATH[0]} is 0"


def _job_line(job: Job) -> str:
    hosts = [f"{host.host} ({len(job.on(i))})" for i, host in enumerate(job.hosts)]
    count = f"{len(job.ranks)} rank{'s' * (len(job.ranks) > 1)}"
    return f"{count} on {len(job.hosts)} host{'s' * (len(hosts) > 1)}: {', '.join(hosts)}"


def _device_rows(job: Job, plan: Plan) -> Iterator[tuple[str, str, str, str]]:
    """A row for each rank, or for ranks that follow each other on a host and are alike."""
    for _, group in groupby(job.ranks, key=lambda rank: (rank.host, plan.devices[rank.rank])):
        ranks = list(group)
        numbers = f"{ranks[0].rank}" + (f"-{ranks[-1].rank}" if len(ranks) > 1 else "")
        each = plan.devices[ranks[0].rank]
        yield numbers, job.hosts[ranks[0].host].host, ",".join(each.names) or "all", each.reason


def _section(title: str, texts: Sequence[str]) -> list[str]:
    return ["", title, *(f"  {text}" for text in texts)] if texts else []


def differences(plan: Plan, rank: int, truth: Mapping[str, Sequence[str]]) -> list[str]:
    """Where what UCX chose on this rank, such as {"other host": ["tcp/eth0"]}, is not what the plan says.

    UCX may choose more than one, and the others for what the first cannot do: one that is expected is enough.
    Their devices must all be those of the plan, where it names some.
    """
    found = []
    devices = dict(plan.ucx_settings(rank)).get("NET_DEVICES", "")
    for peers, chosen in truth.items():
        choice = plan.about(peers)
        if choice and not any(text.partition("/")[0] in choice.transports for text in chosen):
            expected, got = " or ".join(choice.transports), ", ".join(chosen) or "none"
            found.append(f"{peers}: the plan expects {expected}, and UCX chose {got}")
        strange = [text for text in chosen if text.partition("/")[2] not in devices.split(",")]
        if peers == OTHER_HOST and devices and strange:
            found.append(f"{peers}: the plan says {devices}, and UCX chose {', '.join(strange)}")
    return found
