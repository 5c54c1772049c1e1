"""`torch-ucc hosts N COMMAND`: runs the command on each of N simulated hosts of this machine."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from torch_ucc._style import table
from torch_ucc.testing.hosts import Hosts, hosts, why_not
from torch_ucc.tracing.text import size

_PORT = "29500"
_IN_FOLDER = ("sh", "-c", 'cd "$0" && exec "$@"')


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="torch-ucc hosts",
        usage="torch-ucc hosts [--rate RATE] N COMMAND ...",
        description="Run a command on each of several simulated hosts of this machine, and print how much "
        "each host sent to the others. A torchrun command becomes a job of all hosts: it needs neither "
        "--nnodes nor an address. A host has a network interface (eth0), a host name (host0, host1, ...) and "
        "shared memory of its own. The hosts share all files. Needs root. The exit status is the first one "
        "that is not 0, in the order of hosts.",
    )
    parser.add_argument("--rate", default="", help="limit of what each host sends, as tc(8) writes it: 1gbit")
    parser.add_argument("count", metavar="N", type=int, help="number of hosts, 2 to 250")
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, help="for example: torchrun --nproc-per-node=2 program.py"
    )
    args = parser.parse_args(arguments)
    if not 2 <= args.count <= 250:
        parser.error(f"N is {args.count}, and must be from 2 to 250")
    if not args.command:
        parser.error("there is no command")
    if why := why_not():
        print(f"torch-ucc hosts: {why}", file=sys.stderr)
        return 1
    with hosts(args.count, rate=args.rate) as made:
        status = _run(made, args.command)
        sent = [made.sent(i) for i in range(args.count)]
    rows = [[f"host{i}", size(each)] for i, each in enumerate(sent)]
    print(table(["host", "sent to other hosts"], rows), file=sys.stderr)
    return status


def _run(made: Hosts, command: Sequence[str]) -> int:
    """Returns the first exit status that is not 0, by host."""
    running = [
        subprocess.Popen([*made.at(i), *_IN_FOLDER, Path.cwd(), *command], env=_environment(made, i))
        for i in range(len(made))
    ]
    try:
        statuses = [each.wait() for each in running]
    except KeyboardInterrupt:  # the commands were interrupted, too
        statuses = [each.wait() for each in running]
    return next((status for status in statuses if status), 0)


def _environment(made: Hosts, i: int) -> dict[str, str]:
    """What torchrun and gloo need. torchrun reads an option from a variable that begins with PET_."""
    return {
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "eth0",
        **os.environ,
        "PET_NNODES": str(len(made)),
        "PET_NODE_RANK": str(i),
        "PET_MASTER_ADDR": made.address(0),
        "PET_MASTER_PORT": _PORT,
    }
