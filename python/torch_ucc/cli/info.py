"""Shows the versions of the libraries, the settings that are not defaults, and the plan.

Under torchrun, as `torchrun ... -m torch_ucc info`, it shows them for the whole job, with the transports that
UCX really uses. The exit status is 1 if the job differs from the plan, and 2 if the command fails.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from itertools import groupby
from typing import Any

from torch_ucc import config
from torch_ucc._style import bold, red, table
from torch_ucc.topology.explain import plan_text
from torch_ucc.topology.job import Job, uniform
from torch_ucc.topology.plan import Plan, make_plan


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="torch-ucc info", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON; without torchrun: only libraries")
    asked = parser.parse_args(arguments)
    try:
        about, text = _of_job() if "RANK" in os.environ else _of_process()
    except (ImportError, ValueError) as error:
        print(f"torch-ucc info: {error}", file=sys.stderr)
        return 2
    if int(os.environ.get("RANK", 0)) == 0:
        print(json.dumps(about, indent=1) if asked.json else text, flush=True)
    return 1 if any(each["differences"] for each in about.get("chosen", [])) else 0


def _of_job() -> tuple[dict[str, Any], str]:
    import torch.distributed as dist

    from torch_ucc._group.describe import described

    dist.init_process_group("ucc")
    try:
        with warnings.catch_warnings():  # what it warns of is shown
            warnings.simplefilter("ignore", RuntimeWarning)
            about, agreed = described()
        mine = {name: about.pop(name) for name in ("transports", "differences")}
        chosen: list[dict[str, Any]] = [{}] * dist.get_world_size()
        dist.all_gather_object(chosen, mine)
        about["chosen"] = chosen
        return about, "\n".join(
            [*_head(about["libraries"]), "", _body(agreed.job, agreed.plan), *truth(chosen)]
        )
    finally:
        dist.destroy_process_group()


def _of_process() -> tuple[dict[str, Any], str]:
    from torch_ucc._group import planning
    from torch_ucc._group.describe import libraries
    from torch_ucc._native import extension
    from torch_ucc.topology.here import this_host

    extension.compiled()
    job = uniform([this_host()], 1, planning.settings())
    plan = make_plan(job)
    about = {"libraries": libraries()}
    return about, "\n".join([*_head(about["libraries"]), "", _body(job, plan)])


def _head(libraries: Mapping[str, Mapping[str, str]]) -> list[str]:
    import torch

    named = f"torch_ucc {version('torch-ucc')}, torch {torch.__version__}, Python {platform.python_version()}"
    lines = [bold(named), *(f"{name} {_library(each)}" for name, each in libraries.items())]
    rows = [row for row in config.listing() if row.source != "default"]
    return [*lines, *(f"{row.variable}={row.value} ({row.source})" for row in rows)]


def _library(each: Mapping[str, str]) -> str:
    return f"{each['version']} from {each.get('from', 'an unknown path')} ({each.get('because', 'unknown')})"


def _body(job: Job, plan: Plan) -> str:
    return plan_text(job, plan).rstrip()


def truth(chosen: Sequence[Mapping[str, Any]]) -> list[str]:
    """What UCX chose on each rank, in one row for ranks that are alike; and what is not as the plan says."""
    rows, problems = [], []
    for one, group in groupby(range(len(chosen)), key=lambda rank: chosen[rank]):
        ranks = list(group)
        name = f"{ranks[0]}" + (f"-{ranks[-1]}" if len(ranks) > 1 else "")
        for peers, names in one["transports"].items() or [("none", [])]:
            rows.append((name, peers, ", ".join(names)))
        problems += [red(f"Not as planned on rank {name}: {text}") for text in one["differences"]]
    return ["", bold("What UCX chose:"), table(("rank", "peers", "transports"), rows), *problems]
