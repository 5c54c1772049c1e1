"""One rank that measures what waiting costs: an idle group, a late rank, and how fast it is heard; then the
same with more groups.

Torch peers only; rank 0 writes the figures as JSON. CPU time is the process's, all its threads
included. Ranks share CLOCK_MONOTONIC, so one rank's arrival can be compared with another's return.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import time
from pathlib import Path

import torch
import torch.distributed as dist

from torch_ucc.bench.libraries.over_torch import TorchLibrary

GROUPS = 8


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def idle_share(library: TorchLibrary, seconds: float) -> float:
    """Share of a core that this rank uses while its group, warm, does nothing. Counts from the last op on."""
    library.prepare("all_reduce", 4)()
    start, used = time.monotonic(), cpu_seconds()
    time.sleep(seconds)
    return (cpu_seconds() - used) / (time.monotonic() - start)


def wait_for_late(library: TorchLibrary, late: float) -> tuple[float, float]:
    """Lets rank 1 come `late` seconds late.

    Returns the share of a core that rank 0 used until it was back, and how many seconds that was after rank 1
    had come.
    """
    data = torch.zeros(1)
    library.gather(None)
    if library.rank == 1:
        time.sleep(late)
    arrived, used = time.monotonic(), cpu_seconds()
    dist.all_reduce(data)
    returned, spent = time.monotonic(), cpu_seconds() - used
    waiter, latecomer = library.gather((arrived, returned, spent))[:2]
    return waiter[2] / (waiter[1] - waiter[0]), waiter[1] - latecomer[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", required=True)
    parser.add_argument("--idle-seconds", type=float, required=True)
    parser.add_argument("--late-seconds", type=float, required=True)
    parser.add_argument("--trials", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--output", required=True)
    args = parser.parse_args()

    library = TorchLibrary(args.backend)
    lateness = random.Random(args.seed)  # the same on every rank
    found = {}
    for groups, of_groups in ((1, ""), (GROUPS, f", {GROUPS} groups")):
        for _ in range(groups - 1):
            dist.all_reduce(torch.zeros(1), group=dist.new_group())
        found["idle" + of_groups] = [max(library.gather(idle_share(library, args.idle_seconds)))]
        found["late" + of_groups] = [wait_for_late(library, args.late_seconds)[0]]
        delays = [wait_for_late(library, lateness.uniform(0.2, 0.5))[1] for _ in range(args.trials)]
        found["delay" + of_groups] = delays
    if library.rank == 0:
        Path(args.output).write_text(json.dumps(found))
    library.close()


if __name__ == "__main__":
    main()
