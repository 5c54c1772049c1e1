"""Command line of `ci/estimates`."""

from __future__ import annotations

import argparse
import sys

from torch_ucc import config
from torch_ucc.cli.estimate import rate, time_text
from torch_ucc.cli.route import size_text
from torch_ucc.testing.hosts import hosts, why_not
from torch_ucc.topology.cores import usable_here
from torch_ucc.topology.estimate import IN_LEVELS, OPS, Network, estimates
from torch_ucc.topology.measure import host_here
from torch_ucc.topology.traffic import Team

from estimates.timed import latency, time_all

UNLIMITED = 100e9
"""Bytes in a second of a network without a rate: then only the memory counts, for TCP as well."""


def words(text: str) -> list[str]:
    return text.split(",")


def main() -> int:
    parser = argparse.ArgumentParser(prog="ci/estimates", description=__doc__)
    add = parser.add_argument
    add("--hosts", type=int, default=2)
    add("--ranks-per-host", type=int, default=2)
    add("--rate", default="", help="what each host may send, as tc(8) writes it: 1gbit; default: all it can")
    add("--ops", type=words, default=list(OPS))
    add("--sizes", type=words, default=["1m", "16m"])
    asked = parser.parse_args()
    if reason := why_not():
        print(f"ci/estimates: {reason}", file=sys.stderr)
        return 1
    team = Team(asked.hosts, asked.ranks_per_host)
    sizes = [config.size(each) for each in asked.sizes]
    cases = [(op, size) for op in asked.ops for size in (sizes if op != "barrier" else [0])]
    cores = usable_here() / team.hosts
    constants = {size: host_here(team.per_host, size or 1, cores) for _, size in cases}
    with hosts(team.hosts, rate=asked.rate) as made:
        how = {"per_host": team.per_host, "timeout": 600}
        network = Network(
            rate(asked.rate) if asked.rate else UNLIMITED, made.run(latency, team.per_host, **how)[0]
        )
        in_levels = made.run(time_all, cases, env={"TORCH_UCC_LEVELS_FROM": "1"}, **how)[0]
        by_one_team = made.run(time_all, cases, env={"TORCH_UCC_LEVELS_FROM": "4g"}, **how)[0]
    print(f"{team.hosts} hosts with {team.per_host} ranks each, latency {time_text(network.latency)}")
    for size, host in constants.items():
        print(f"{size_text(size)}: {host}")
    print(f"{'':32}{'way':<28}{'estimate':>10}{'measured':>10}{'ratio':>8}")
    for (op, size), levels, flat in zip(cases, in_levels, by_one_team, strict=True):
        for each in estimates(op, size, team, constants[size], network):
            seconds, went_in_levels = levels if each.way == IN_LEVELS else flat
            if went_in_levels != (each.way == IN_LEVELS):
                continue
            row = f"{op + ' ' + size_text(size) * (size > 0):<32}{each.way:<28}"
            print(f"{row}{time_text(each.seconds):>10}{time_text(seconds):>10}{each.seconds / seconds:8.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
