"""Shows how the ranks of a job would communicate, and why, on hosts like this machine or on saved ones.

Variables in the environment have the same effect as in the job: `UCX_TLS=tcp torch-ucc plan --hosts 2`. The
exit status is 1 if the job could not work, and 2 if an argument, a file or a setting is wrong.

With --op and --bytes, it starts ranks on this machine or, under torchrun, uses the ranks of the job. It makes
the call and shows which way the data took and which algorithm was used.

With --op and --size, it estimates how long the call takes on these hosts.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from torch_ucc import config
from torch_ucc.cli import estimate
from torch_ucc.cli.arguments import as_setting
from torch_ucc.cli.topo import machine
from torch_ucc.topology.explain import plan_text
from torch_ucc.topology.inventory import as_data
from torch_ucc.topology.job import copies, uniform
from torch_ucc.topology.plan import make_plan
from torch_ucc.topology.user import SETTINGS, settings_here
from torch_ucc.tuning.profile import Profile, refusal


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="torch-ucc plan",
        description=__doc__,
        epilog=f"These variables have an effect: {', '.join(SETTINGS)}.",
    )
    parser.add_argument(
        "--replay",
        type=Path,
        metavar="FILE",
        action="append",
        help="a host, as `torch-ucc topo --save` wrote it; give this option once for each host",
    )
    parser.add_argument(
        "--hosts", type=_count, help="number of hosts; default: 1, or the number of --replay options"
    )
    parser.add_argument(
        "--ranks-per-host",
        type=_count,
        help="number of ranks on each host; default: the number of GPUs, or else of NUMA nodes; with --op "
        "and --bytes: 2; for an estimate: 1",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--op", help="an operation of torch.distributed, for example all_reduce")
    parser.add_argument("--bytes", type=as_setting(config.size), help="size of its tensor: 65536, 512k, 4m")
    estimate.add_options(parser)
    asked = parser.parse_args(arguments)
    if estimate.is_wanted(asked):
        return estimate.run(parser, asked)
    if asked.op or asked.bytes:
        return _route(parser, asked)
    if asked.replay and len(asked.replay) > 1 and asked.hosts not in (None, len(asked.replay)):
        parser.error(f"--hosts is {asked.hosts}, but --replay is given {len(asked.replay)} times")
    try:
        read = config.from_environment()
        hosts = [machine(path) for path in asked.replay or [None]]
    except (OSError, ValueError) as error:
        print(f"torch-ucc plan: {error}", file=sys.stderr)
        return 2
    if len(hosts) == 1:
        hosts = copies(hosts[0], asked.hosts or 1)
    each = asked.ranks_per_host or len(hosts[0].gpus) or len(hosts[0].numa) or 1
    job = uniform(hosts, each, settings_here(profile=read.libraries))
    plan = make_plan(job)
    if read.tuned and (why := refusal(read.tuned, job)):
        plan = plan._replace(problems=(*plan.problems, why))
    if asked.json:
        print(json.dumps(as_data(plan), indent=1))
    else:
        print("\n".join([plan_text(job, plan).rstrip(), *_by_profile(read.tuned)]))
    return 1 if plan.problems else 0


def _by_profile(tuned: Profile | None) -> list[str]:
    if tuned is None:
        return []
    rows = [row for row in config.listing() if row.source == tuned.name]
    return ["", f"Set by {tuned.name}:", *(f"  {row.variable}={row.value}" for row in rows)]


def _route(parser: argparse.ArgumentParser, asked: argparse.Namespace) -> int:
    from torch_ucc.cli import route

    if asked.replay or (asked.hosts or 1) > 1:
        parser.error("--op makes the call on this host only: for several hosts, start torchrun on them")
    if asked.op not in route.names():
        parser.error(f"--op is one of {', '.join(route.names())}")
    if not asked.bytes and asked.op != "barrier":
        parser.error(f"--op {asked.op} needs --bytes")
    size = 0 if asked.op == "barrier" else asked.bytes
    if "RANK" in os.environ:
        return route.report(asked.op, size, asked.json)
    return route.start(asked.op, size, asked.ranks_per_host or 2, asked.json)


def _count(text: str) -> int:
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return int(text)
