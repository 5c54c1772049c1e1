"""`ci/random-programs`: runs programs, and makes one that fails small."""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_ucc.bench.busy import neighbour
from torch_ucc.testing import RankError, run_ranks
from torch_ucc.testing.hosts import Hosts, hosts

from random_programs import ending
from random_programs import rank as ranks
from random_programs.ending import Ending
from random_programs.program import Program

TURN_S, TURN = 30.0, 400
"""After so long, or so many programs, a rank ends, and all are started anew."""

GRACE_S = 100.0
"""That the others have when one was killed."""

KILLED = "SIGKILL"

SHRINK_S = 300.0


@dataclass(frozen=True)
class Where:
    """Where the ranks run: all here, or each on a host of its own."""

    backend: str = "ucc"
    hosts: Hosts | None = None

    def run(self, fn: Callable[..., object], ranks: int, *args: object, **limits: Any) -> None:
        if self.hosts is None:
            run_ranks(fn, ranks, *args, backend=self.backend, **limits)
        else:
            self.hosts.run(fn, *args, backend=self.backend, **limits)


def main() -> int:
    options = _options()
    print(f"seed {options.seed}", flush=True)
    with contextlib.ExitStack() as stack:
        for _ in range(options.busy):
            stack.enter_context(neighbour())
        made = stack.enter_context(hosts(options.ranks)) if options.hosts else None
        return _programs(options, Where(options.backend, made))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="ci/random-programs", description="Random programs beside a model.")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    parser.add_argument("--program", type=int, help="only this one")
    parser.add_argument("--ending", type=int, help="only this end of a rank")
    parser.add_argument("--times", type=int, default=20, help="with one of the two: how often")
    parser.add_argument("--busy", type=int, default=0, help="processes that compute meanwhile")
    parser.add_argument("--backend", default="ucc", help="gloo: only what both can do")
    parser.add_argument("--hosts", action="store_true", help="each rank on a host of its own, over TCP")
    return parser.parse_args()


def _programs(options: argparse.Namespace, where: Where) -> int:
    if options.program is not None or options.ending is not None:
        case = _case(options, options.program if options.ending is None else options.ending)
        print(case, flush=True)
        found = tried(case, options.times, where)
        print(found or "passed")
        return 1 if found else 0
    end, number = time.monotonic() + 60 * options.minutes, 0
    while (left := end - time.monotonic()) > 0:
        with tempfile.TemporaryDirectory(prefix="programs-") as folder:
            why = unexpected(functools.partial(_turn, options, where, number, min(TURN_S, left), folder))
            last = last_of(folder)
            why = why or ("" if any(Path(folder).glob("rank*.json")) else "no rank has written a report")
            if last.found or why:
                options.ending = last.number if last.is_ending else None
                print(f"{last.name} of seed {options.seed}\n{last.found}\n{why[-3000:]}", flush=True)
                print(shrunk(_case(options, last.number), where), flush=True)
                return 1
        number = last.number + 1
        print(f"{number} programs", flush=True)
    print(f"passed: {number} programs, {options.ranks} ranks, {options.busy} busy processes")
    return 0


def _turn(options: argparse.Namespace, where: Where, first: int, seconds: float, folder: str) -> None:
    turn, limit = (options.seed, first, seconds, TURN), seconds + 240
    if where.backend == "ucc":
        where.run(ending.run, options.ranks, *turn, folder, timeout=limit, grace=GRACE_S)
    else:
        where.run(ranks.run, options.ranks, *turn, True, folder, timeout=limit)


def _case(options: argparse.Namespace, number: int) -> Program | Ending:
    if options.ending is not None:
        return ending.drawn(options.seed, number, options.ranks)
    return ranks.draw(options.seed, number, options.ranks, options.backend != "ucc")


@dataclass
class Last:
    """What was run last, and what was found first."""

    number: int = 0
    is_ending: bool = False
    found: str = ""

    @property
    def name(self) -> str:
        return f"{'ending' if self.is_ending else 'program'} {self.number}"


def last_of(folder: str) -> Last:
    reports = [json.loads(path.read_text()) for path in Path(folder).glob("rank*.json")]
    if not reports:
        return Last()
    found = sorted((each for each in reports if each["found"]), key=lambda each: float(each["at"]))
    first = found[0] if found else min(reports, key=lambda each: int(each["number"]))
    return Last(first["number"], first["is_ending"], "\n".join(each["found"] for each in found))


def unexpected(run: Callable[[], object], may_kill: bool = True) -> str:
    """What is wrong with how the ranks ended. With `may_kill`, one of them may be killed."""
    try:
        run()
    except RankError as error:
        if (
            not may_kill
            or error.unended
            or any(KILLED not in text for text in error.errors.values())
            or len(error.errors) > 1
        ):
            return str(error)
    return ""


def tried(case: Program | Ending, times: int, where: Where) -> str:
    if isinstance(case, Program):
        repeat = functools.partial(where.run, ranks.repeat, case.ranks, case, times, timeout=150)
        return once(repeat, may_kill=False)
    size = case.program.ranks
    for _ in range(times):
        if found := once(
            lambda folder: where.run(ending.told, size, case, 0, folder, timeout=150, grace=GRACE_S)
        ):
            return found
    return ""


def once(run: Callable[[str], object], may_kill: bool = True) -> str:
    with tempfile.TemporaryDirectory(prefix="programs-") as folder:
        why = unexpected(lambda: run(folder), may_kill)
        return last_of(folder).found or why


def shrunk(case: Program | Ending, where: Where) -> str:
    end, found = time.monotonic() + SHRINK_S, tried(case, 10, where)
    if not found:
        return f"it passed when it was run again\n{case}"
    again = True
    while again and time.monotonic() < end:
        again = False
        for candidate in case.smaller():
            if time.monotonic() > end:
                break
            if candidate.size < case.size and (text := tried(candidate, 10, where)):
                case, found, again = candidate, text, True
                break
    return f"as small as it gets:\n{case}\n{found[:3000]}"


if __name__ == "__main__":
    sys.exit(main())
