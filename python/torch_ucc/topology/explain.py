"""A plan and a machine in words."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from itertools import groupby

from torch_ucc.topology.job import Job
from torch_ucc.topology.plan import OTHER_HOST, Plan

_WIDTH = 110


def plan_text(job: Job, plan: Plan) -> str:
    lines = [_job_line(job), ""]
    width = max(len(choice.about) for choice in plan.choices)
    for choice in plan.choices:
        lines.append(f"{choice.about:<{width}}  {choice.value}")
        by = f"{choice.by}; {choice.setting} overrides it" if choice.setting else choice.by
        why = f"Because {choice.reason}. (By {by})"
        if choice.reason.startswith("set by the "):  # user, or profile
            why = f"{choice.reason.capitalize()}: {choice.by}."
        indent = " " * (width + 2)
        lines += textwrap.wrap(why, _WIDTH, initial_indent=indent, subsequent_indent=indent)
    if len(set(plan.devices)) > 1:
        lines += ["", *_device_lines(job, plan)]
    lines += _section("Left out", plan.left_out) + _section("This cannot work", plan.problems)
    return "\n".join(lines) + "\n"


def _job_line(job: Job) -> str:
    hosts = [f"{host.host} ({len(job.on(i))})" for i, host in enumerate(job.hosts)]
    count = f"{len(job.ranks)} rank{'s' * (len(job.ranks) > 1)}"
    return f"{count} on {len(job.hosts)} host{'s' * (len(hosts) > 1)}: {', '.join(hosts)}"


def _device_lines(job: Job, plan: Plan) -> list[str]:
    """A line for each rank, or for those that follow each other on a host and are alike."""
    lines = []
    for _, group in groupby(job.ranks, key=lambda rank: (rank.host, plan.devices[rank.rank])):
        ranks = list(group)
        numbers = f"{ranks[0].rank}" + (f"-{ranks[-1].rank}" if len(ranks) > 1 else "")
        each = plan.devices[ranks[0].rank]
        host = job.hosts[ranks[0].host].host
        lines.append(f"  rank {numbers} on {host}: {','.join(each.names) or 'all'}  ({each.reason})")
    return lines


def _section(title: str, texts: Sequence[str]) -> list[str]:
    return ["", f"{title}:", *(f"  {text}" for text in texts)] if texts else []


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
