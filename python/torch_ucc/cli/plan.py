"""`torch-ucc plan`: how a job on such hosts would talk, and why; on copies of this machine, or on saved ones.

What is set in the environment counts as it would in the job: `UCX_TLS=tcp torch-ucc plan --hosts 2`. Exit
status: 1 if the job could not work.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path

from torch_ucc.cli.topo import machine
from torch_ucc.topology.explain import plan_text
from torch_ucc.topology.job import copies, uniform
from torch_ucc.topology.plan import make_plan
from torch_ucc.topology.user import SETTINGS, settings_here


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="torch-ucc plan", description=__doc__, epilog=f"Counts, if set: {', '.join(SETTINGS)}."
    )
    parser.add_argument(
        "--replay",
        type=Path,
        metavar="FILE",
        action="append",
        help="a host, saved with `torch-ucc topo --save`; again for each other one",
    )
    parser.add_argument("--hosts", type=_count, help="how many; default: one, or as many as are replayed")
    parser.add_argument("--ranks-per-host", type=_count, help="default: as many as GPUs, or NUMA nodes")
    parser.add_argument("--json", action="store_true", help="as data")
    asked = parser.parse_args(arguments)
    if asked.replay and len(asked.replay) > 1 and asked.hosts not in (None, len(asked.replay)):
        parser.error(f"--hosts {asked.hosts}, but {len(asked.replay)} are replayed")
    try:
        hosts = [machine(path) for path in asked.replay or [None]]
    except (OSError, ValueError) as error:
        print(f"torch-ucc plan: {error}", file=sys.stderr)
        return 2
    if len(hosts) == 1:
        hosts = copies(hosts[0], asked.hosts or 1)
    each = asked.ranks_per_host or len(hosts[0].gpus) or len(hosts[0].numa) or 1
    job = uniform(hosts, each, settings_here())
    plan = make_plan(job)
    print(json.dumps(dataclasses.asdict(plan), indent=1) if asked.json else plan_text(job, plan).rstrip())
    return 1 if plan.problems else 0


def _count(text: str) -> int:
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return int(text)
