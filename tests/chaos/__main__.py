"""`ci/chaos`: says what happened, and whether it was survived."""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import tempfile
import time
from pathlib import Path

from torch_ucc.testing.hosts import hosts

from chaos.campaign import COLUMNS, Campaign, Totals
from chaos.schedule import KINDS, Plan

PROGRESS_EVERY_S = 10.0


def main() -> int:
    options = _options()
    print(f"seed {options.seed}", flush=True)
    began = said = time.monotonic()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos-")))
        made = stack.enter_context(hosts(options.hosts)) if options.hosts > 1 else None
        campaign = Campaign(options.seed, options.ranks, options.timeout, folder, made)
        totals = campaign.totals

        def over() -> bool:
            if options.faults is not None:
                return bool(totals.happened.total() >= options.faults)
            return bool(time.monotonic() - began >= 60.0 * options.minutes)

        def progress(plan: Plan, errors: list[str]) -> None:
            nonlocal said
            if options.verbose:
                print("\n  ".join([f"{time.monotonic() - began:6.1f} s  {plan}", *errors]), flush=True)
            if time.monotonic() - said >= PROGRESS_EVERY_S:
                said = time.monotonic()
                print(
                    f"{said - began:6.0f} s  generation {totals.generations}, step {totals.steps}, "
                    f"{totals.happened.total()} faults, {totals.count()} problems",
                    flush=True,
                )

        campaign.run(over, progress)
    _summarize(totals)
    print(f"FAILED with seed {options.seed}" if totals.count() else "passed")
    return 1 if totals.count() else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="ci/chaos",
        description="A training whose ranks are killed, stopped, slowed and replaced, at random.",
    )
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--faults", type=int, help="so many, however long it takes")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--hosts", type=int, default=1, help="more than 1: simulated; needs root")
    parser.add_argument("--timeout", type=float, default=5.0, help="of the groups, in seconds")
    parser.add_argument("--verbose", action="store_true", help="show the plan of each generation")
    return parser.parse_args()


def _summarize(totals: Totals) -> None:
    print(f"{totals.generations} generations, {totals.steps} steps, closed within {totals.slowest:.1f} s")
    print("errors seen: " + ", ".join(f"{name} {count}" for name, count in totals.errors.most_common()))
    print(f"{'fault':30} {'times':>6} {'survived':>9}")
    for kind in KINDS:
        print(f"{kind:30} {totals.happened[kind]:6} {totals.survived[kind]:9}")
    print(f"{'all':30} {totals.happened.total():6} {totals.survived.total():9}")
    print(", ".join(f"{column} {len(totals.problems[column])}" for column in COLUMNS))


if __name__ == "__main__":
    sys.exit(main())
