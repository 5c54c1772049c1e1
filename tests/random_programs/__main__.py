"""`ci/random-programs`: runs programs, and makes one that fails small."""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from torch_ucc.bench.busy import neighbour
from torch_ucc.testing import RankError, run_ranks

from random_programs import rank as ranks
from random_programs.program import Program, Thread, legal

TURN_S, TURN = 30.0, 400
"""After so long, or so many programs, the ranks are started anew."""

SHRINK_S = 300.0


def main() -> int:
    options = _options()
    print(f"seed {options.seed}", flush=True)
    with contextlib.ExitStack() as stack:
        for _ in range(options.busy):
            stack.enter_context(neighbour())
        return _programs(options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="ci/random-programs", description="Random programs beside a model.")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    parser.add_argument("--program", type=int, help="only this one")
    parser.add_argument("--times", type=int, default=20, help="with --program: how often")
    parser.add_argument("--busy", type=int, default=0, help="processes that compute meanwhile")
    parser.add_argument("--backend", default="ucc", help="gloo: only what both can do")
    return parser.parse_args()


def _programs(options: argparse.Namespace) -> int:
    plain = options.backend != "ucc"
    if options.program is not None:
        program = ranks.draw(options.seed, options.program, options.ranks, plain)
        print(program, flush=True)
        found = tried(program, options.times, options.backend)
        print(found or "passed")
        return 1 if found else 0
    end, number = time.monotonic() + 60 * options.minutes, 0
    while (left := end - time.monotonic()) > 0:
        seconds = min(TURN_S, left)
        with tempfile.TemporaryDirectory(prefix="programs-") as folder:
            why, count = "", 0
            try:
                told = run_ranks(
                    ranks.run,
                    options.ranks,
                    options.seed,
                    number,
                    seconds,
                    TURN,
                    plain,
                    folder,
                    timeout=seconds + 240,
                    backend=options.backend,
                )
                count = max(told)
            except RankError as error:
                why = str(error)
            failed, found = first_found(folder)
            if found or why:
                print(f"program {failed} of seed {options.seed}\n{found}\n{why[-3000:]}", flush=True)
                program = ranks.draw(options.seed, failed, options.ranks, plain)
                print(shrunk(program, options.backend), flush=True)
                return 1
        number += count
        print(f"{number} programs", flush=True)
    print(f"passed: {number} programs, {options.ranks} ranks, {options.busy} busy processes")
    return 0


def first_found(folder: str) -> tuple[int, str]:
    """The number of the program that was run last, and what was found first."""
    reports = [json.loads(path.read_text()) for path in Path(folder).glob("rank*.json")]
    found = sorted((each for each in reports if each["found"]), key=lambda each: float(each["at"]))
    number = min((each["number"] for each in reports), default=0)
    return number, "\n".join(each["found"] for each in found)


def tried(program: Program, times: int, backend: str) -> str:
    with tempfile.TemporaryDirectory(prefix="programs-") as folder:
        why = ""
        try:
            run_ranks(ranks.repeat, program.ranks, program, times, folder, timeout=150, backend=backend)
        except RankError as error:
            why = str(error)
        return first_found(folder)[1] or why


def smaller(program: Program) -> Iterator[Program]:
    if len(program.threads) > 1:
        for i in range(len(program.threads)):
            yield replace(program, threads=program.threads[:i] + program.threads[i + 1 :])
    for i, thread in enumerate(program.threads):
        steps = thread.steps
        for size in (len(steps) // 2, len(steps) // 4, 1):
            for at in range(0, len(steps), max(size, 1)):
                kept = Thread(steps[:at] + steps[at + max(size, 1) :])
                yield legal(replace(program, threads=(*program.threads[:i], kept, *program.threads[i + 1 :])))


def shrunk(program: Program, backend: str) -> str:
    end, found = time.monotonic() + SHRINK_S, tried(program, 10, backend)
    if not found:
        return f"it passed when it was run again\n{program}"
    again = True
    while again and time.monotonic() < end:
        again = False
        for candidate in smaller(program):
            if time.monotonic() > end:
                break
            if sum(len(each.steps) for each in candidate.threads) >= sum(
                len(each.steps) for each in program.threads
            ):
                continue
            if text := tried(candidate, 10, backend):
                program, found, again = candidate, text, True
                break
    return f"as small as it gets:\n{program}\n{found[:3000]}"


if __name__ == "__main__":
    sys.exit(main())
