"""Shows what the ranks of a running job do, which rank is late, and why.

Run it in any shell on a host of the job, as the user that runs the job. The job needs no setting and is not
disturbed. Its processes may be stuck or stopped.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from torch_ucc.status import findings, job, screen


def main(arguments: list[str]) -> int:
    parser = _parser()
    asked = parser.parse_args(arguments)
    if asked.stacks and asked.rank is None:
        parser.error("--stacks needs --rank")
    if asked.watch is not None and asked.watch <= 0:
        parser.error("--watch needs a number above 0")
    try:
        while True:
            code = _show(asked)
            if asked.watch is None or code == 2:
                return code
            sys.stdout.flush()
            time.sleep(asked.watch)
            if sys.stdout.isatty():
                print("\033[2J\033[H", end="")
            else:
                print()
    except KeyboardInterrupt:
        return 130


def _show(asked: argparse.Namespace) -> int:
    found = job.jobs(ask_others=not asked.here)
    if asked.job:
        found = [each for each in found if each.is_called(asked.job)]
    if not found:
        name = f" {asked.job}" if asked.job else ""
        print(
            f"torch-ucc status: this user has no job{name} on this host that has created a group",
            file=sys.stderr,
        )
        return 2
    told = [findings.findings(each) for each in found]
    looked = 0
    while looked < _looks(told):  # before anybody is blamed
        looked += 1
        names = {each.world for each in found}
        again = [each for each in job.jobs(ask_others=not asked.here) if each.world in names]
        if not again:  # it has ended
            break
        before = dict(zip((each.world for each in found), told, strict=True))
        found = again
        told = [findings.confirmed(before[each.world], findings.findings(each)) for each in found]
    if len(found) > 1:
        return _show_all(asked, found, told)
    (one,), (told_of_it,) = found, told
    if asked.html:
        partial = asked.html.with_name(asked.html.name + ".partial")  # a browser never reads half a page
        partial.write_text(screen.page(one, told_of_it))
        partial.replace(asked.html)
    elif asked.json:
        print(json.dumps(screen.as_data(one, told_of_it)))
    elif asked.rank is not None:
        print(screen.detail(one, asked.rank, not asked.watch, asked.stacks))
    else:
        print(screen.screen(one, told_of_it))
    return 1 if told_of_it else 0


def _show_all(
    asked: argparse.Namespace, found: list[job.Job], told: Sequence[Sequence[findings.Finding]]
) -> int:
    if asked.html or asked.rank is not None:
        print("torch-ucc status: several jobs run: name one (torch-ucc status lists them)", file=sys.stderr)
        return 2
    if asked.json:
        print(json.dumps([screen.as_data(each, of_it) for each, of_it in zip(found, told, strict=True)]))
    else:
        print(screen.listing(found, told))
        print("\nShow one of them: torch-ucc status JOB", file=sys.stderr)
    return 1 if any(told) else 0


def _looks(told: Sequence[Sequence[findings.Finding]]) -> int:
    return max((each.looks for of_job in told for each in of_job if each.ranks), default=0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="torch-ucc status",
        description=__doc__,
        epilog="Exit status: 0 if nothing is wrong, 1 if something is, 2 if no job was found.",
    )
    parser.add_argument(
        "job",
        nargs="?",
        help="the name of a job, its program, or the pid of one of its ranks; without it, the command lists "
        "the jobs if there are several",
    )
    parser.add_argument(
        "--rank",
        type=int,
        help="show one rank: its last operations and the plan of its connections; without --watch also the "
        "Python stack of its main thread and, on its host, its threads",
    )
    parser.add_argument(
        "--stacks",
        action="store_true",
        help="with --rank and without --watch, on the host of the rank: also the Python and C stacks of all "
        "threads, if py-spy, eu-stack or gdb is installed; these programs stop the process while they read",
    )
    parser.add_argument(
        "--watch",
        type=float,
        nargs="?",
        const=2.0,
        metavar="SECONDS",
        help="repeat every SECONDS seconds, or every %(const)s s if no number is given",
    )
    parser.add_argument("--json", action="store_true", help="print JSON; of several jobs, a list")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page for a browser to FILE")
    parser.add_argument("--here", action="store_true", help="show only the ranks of this host")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
