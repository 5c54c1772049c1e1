"""`ci/soak`: starts the ranks, shows what they say, and judges."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from pathlib import Path

from torch_ucc._native import extension
from torch_ucc.testing import RankError, run_ranks
from torch_ucc.testing.hosts import hosts

from soak import memory, operations, ranks
from soak.schedule import BATCH, REFUSED

OP_LIMIT_S = 60.0
"""What does not end within this is a hang; its group says which operation it was."""

EXTRA_S = 180.0
"""Past the length of the run by so much, the stacks of all ranks are shown and the run has failed."""


def main() -> int:
    options = _options()
    print(f"seed {options.seed}", flush=True)
    served = set(extension.compiled().operations())
    if missing := sorted(served - set(operations.TABLE)):
        print(f"no soak for: {', '.join(missing)}")
        return 1
    try:
        reports = _run(options, [*sorted(served), REFUSED, BATCH])
    except RankError as error:
        print(f"FAILED with seed {options.seed}\n{error}")
        return 1
    wrong = [problem for rank, report in enumerate(reports) for problem in problems(rank, report)]
    _summarize(reports)
    for problem in wrong:
        print(problem)
    print(f"FAILED with seed {options.seed}" if wrong else "passed")
    return 1 if wrong else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="ci/soak",
        description="Random operations, groups, threads and sizes; results are checked, and memory.",
    )
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--hosts", type=int, default=1, help="more than 1: simulated; needs root")
    return parser.parse_args()


def _run(options: argparse.Namespace, table: list[str]) -> list[ranks.Report]:
    seconds = 60.0 * options.minutes
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        progress = Path(name) / "progress"
        progress.touch()
        threading.Thread(target=_follow, args=(progress,), daemon=True).start()
        host_of = sorted(rank % options.hosts for rank in range(options.ranks))
        what = (options.seed, seconds, table, progress, host_of)
        limits = {"timeout": seconds + EXTRA_S, "group_timeout": OP_LIMIT_S}
        if options.hosts == 1:
            return run_ranks(ranks.run, options.ranks, *what, **limits)
        per_host = [host_of.count(host) for host in range(options.hosts)]
        with hosts(options.hosts) as made:
            return made.run(ranks.run, *what, per_host=per_host, **limits)


def _follow(path: Path) -> None:
    """Print what is written to a file; for the life of the process."""
    with path.open() as lines:
        while True:
            for line in lines:
                print(line, end="", flush=True)
            time.sleep(0.5)


def problems(rank: int, report: ranks.Report) -> list[str]:
    found = []
    if report.wrong:
        found.append(f"rank {rank}: {report.wrong} of {report.checked} checks failed")
        found += report.first
    if never := sorted({*operations.TABLE, REFUSED, BATCH} - set(report.done)):
        found.append(f"rank {rank} never called: {', '.join(never)}")
    long_enough = report.samples[-1].seconds >= memory.SHORTEST_S
    if long_enough and (problem := memory.grown(report.samples)):
        found.append(f"rank {rank}: {problem}")
    return found


def _summarize(reports: list[ranks.Report]) -> None:
    first = reports[0]
    print(f"{first.rounds} rounds, {first.groups} groups, {first.samples[-1].seconds:.0f} s")
    for rank, report in enumerate(reports):
        print(f"rank {rank}: {report.done.total()} calls, {report.checked} checks, {report.wrong} wrong")
        held = memory.windows(report.samples)
        in_use = memory.windows(report.samples, what=lambda sample: sample.in_use)
        for what, medians in ("held", held), ("allocated", in_use):
            shown = " ".join(f"{each / 2**20:.1f}" for each in medians)
            print(f"  MB {what}, medians of windows of the second half: {shown}")
    print("calls of rank 0:", ", ".join(f"{op} {count}" for op, count in sorted(first.done.items())))


if __name__ == "__main__":
    sys.exit(main())
