"""Exit status: 0 if all was measured, 1 if something could not be measured; with --assert also 2 if a target
was missed, and 3 if the machine was too noisy to decide."""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from torch_ucc.bench import machine, plot, report, targets
from torch_ucc.bench.cases import (
    BUSY_CASES,
    FEW_OPS,
    HALVES,
    MORE_LARGE,
    OPS,
    SIZES,
    Case,
    format_case,
    format_size,
    make_cases,
    parse_size,
)
from torch_ucc.bench.driver import OCCASIONS, Bench, heats
from torch_ucc.bench.figures import Samples
from torch_ucc.bench.libraries.library import ITEM_BYTES
from torch_ucc.bench.peers import PEERS, Peer, made_by, peers_home, tuned
from torch_ucc.bench.places import place, why_no_hosts

OCCASION_PEERS = ("ucc", "gloo", "alone")
FEW_TURNS = 3  # of occasions, which take long
OCCASION_HELP = {
    "idle": "measure instead what idling and waiting cost",
    "training": "measure instead what communication costs a training",
    "starting": "measure instead how long the start takes",
    "recording": "measure instead what the flight recorder and `torch-ucc record` cost",
}
REPORT_BUSY = 2  # of a report: busy processes beside 2 ranks
# More ranks than so many are not timed with larger parts: their memory adds up.
MANY, LARGEST_OF_MANY = 4, 1 << 20
QUIET_CORES = 0.1  # more than that beside the bench, and its figures are in doubt


def names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="torch-ucc bench",
        description="Measures operations and compares them with other libraries.",
        epilog=__doc__,
    )
    add = parser.add_argument
    add("--ops", type=names, help=f"operations: {', '.join(OPS)}; default {','.join(FEW_OPS)}")
    add(
        "--sizes",
        type=names,
        help="bytes for each rank, for example 4,64K,1M; default: depends on the operation",
    )
    add("--dtypes", type=names, default=["float32"], help=f"dtypes: {', '.join(ITEM_BYTES)}; default float32")
    add("--ranks", type=names, help="numbers of ranks; default 2,4, or 2 with --busy")
    add(
        "--hosts",
        type=int,
        choices=range(1, 9),
        default=1,
        metavar="1..8",
        help="number of hosts; more than 1 are simulated, with TCP between them, which needs root",
    )
    add("--rate", default="", help="with --hosts: limit of what each host sends, in the form of tc(8): 4gbit")
    usual = ",".join(name for name, peer in PEERS.items() if not peer.on_request)
    add(
        "--peers",
        type=names,
        help=f"libraries: {', '.join(PEERS)}; default {usual}, with --report all that can run, "
        "with --idle and the like those of ucc,gloo,alone that the option measures",
    )
    add(
        "--busy",
        type=int,
        default=0,
        metavar="N",
        help="measure while N other processes compute on the same cores",
    )
    add(
        "--vs",
        action="append",
        default=[],
        metavar="MODULE:FACTORY",
        help="also measure the all_reduce that the function FACTORY(rank, size) returns",
    )
    add("--profile", type=Path, metavar="FILE", help="also measure ucc with this profile of `torch-ucc tune`")
    add(
        "--report",
        action="store_true",
        help="measure all operations and sizes with 2, 4 and 8 ranks, and all targets; takes hours",
    )
    add(
        "--repetitions",
        type=int,
        help="how often each library is measured; default 8, with --report 5, with --idle and the like 3",
    )
    add(
        "--case-seconds",
        type=float,
        default=0.2,
        help="seconds for one operation and size, each time; default %(default)s",
    )
    add("--cores", type=int, default=2, help="number of cores for all ranks together; default 2")
    for occasion, what in OCCASION_HELP.items():
        add(f"--{occasion}", action="append_const", dest="occasions", const=occasion, help=what)
    add(
        "--idle-seconds",
        type=float,
        default=10.0,
        help="with --idle: how long a group has nothing to do; default %(default)s",
    )
    add(
        "--late-seconds",
        type=float,
        default=5.0,
        help="with --idle: how late one rank is; default %(default)s",
    )
    add(
        "--trials",
        type=int,
        default=10,
        help="with --idle, --training and --recording: how often each is measured; default %(default)s",
    )
    add("--assert", dest="strict", action="store_true", help="exit with an error unless every target was met")
    add(
        "--plot",
        type=Path,
        metavar="FILE",
        help="draw the times into FILE: .png, .svg, or .html for a page",
    )
    add("--json", type=Path, metavar="FILE", help="write all results to FILE")
    add(
        "--list-made-peers",
        action="store_true",
        help="only print which libraries ci/bench must build for these options",
    )
    return parser


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line, with what it leaves open filled in. `cases` are what is timed, `rivals` the peers of
    --vs, and `left_out` says which cases are not timed because their size and dtype do not fit."""
    parser = make_parser()
    args = parser.parse_args(arguments)
    args.peers = args.peers or usual_peers(args)
    args.repetitions = args.repetitions or (FEW_TURNS if args.occasions else 5 if args.report else 8)
    try:
        check_peers(args)
        check_combination(args)
        choose_cases(args)
        check_files(args)
    except (ValueError, ImportError) as error:
        parser.error(str(error))
    return args


def check_files(args: argparse.Namespace) -> None:
    """A run may take hours. Raises ValueError or ImportError if its results could not be written."""
    if args.plot:
        plot.check(args.plot)
    for file in filter(None, (args.plot, args.json)):
        if not file.absolute().parent.is_dir():
            raise ValueError(f"there is no folder {file.parent}")


def usual_peers(args: argparse.Namespace) -> list[str]:
    """The peers that are measured if the command line names none."""
    if not args.occasions:
        return [name for name in able_peers(args.hosts) if args.report or not PEERS[name].on_request]
    return [
        name
        for name in OCCASION_PEERS
        if is_watched(name, args.occasions)
        and (args.list_made_peers or not PEERS[name].is_made or (peers_home() / name).is_dir())
    ]


def able_peers(hosts: int) -> list[str]:
    """The peers that can run on so many hosts."""
    return [name for name, peer in PEERS.items() if hosts == 1 or peer.spans_hosts]


def is_watched(peer: str, occasions: list[str]) -> bool:
    """Whether one of these occasions measures the peer."""
    return any(OCCASIONS[occasion].of([PEERS[peer]]) for occasion in occasions)


def check_peers(args: argparse.Namespace) -> None:
    """Raises ValueError if this run cannot measure one of its peers."""
    able = able_peers(args.hosts)
    for name in args.peers:
        if name not in PEERS:
            raise ValueError(f"unknown peer {name!r}: it is not one of {', '.join(PEERS)}")
        if args.occasions and not is_watched(name, args.occasions):
            raise ValueError(f"--{args.occasions[0]} does not measure {name}")
        if name not in able:
            raise ValueError(f"--hosts {args.hosts} measures {', '.join(able)}, not {name}")


def check_combination(args: argparse.Namespace) -> None:
    """Raises ValueError if two of the options exclude each other. Sets `rivals`."""
    if args.occasions and args.report:
        raise ValueError(f"--report includes --{args.occasions[0]}: give one of them")
    if args.hosts > 1 and (args.occasions or args.report):
        raise ValueError("--hosts measures operations only: it excludes --idle and the like, and --report")
    if args.rate and args.hosts == 1:
        raise ValueError("--rate needs --hosts with more than 1")
    if args.busy < 0:
        raise ValueError("--busy is a number of processes, so it cannot be negative")
    if args.busy and (args.occasions or args.report or args.hosts > 1):
        raise ValueError(
            "--busy measures operations on one host only: it excludes --idle and the like, --report, --hosts"
        )
    if args.vs and (args.occasions or args.hosts > 1):
        raise ValueError(
            "--vs measures operations on one host only: it excludes --idle and the like, and --hosts"
        )
    args.rivals = [made_by(factory) for factory in args.vs]
    if len({peer.name for peer in args.rivals}) < len(args.rivals):
        raise ValueError("two factories of --vs have the same name")


def choose_cases(args: argparse.Namespace) -> None:
    """Sets `ranks`, `ops`, `cases` and `left_out`, of a report also `sizes`. Raises ValueError for a wrong
    word."""
    more: list[Case] = []
    few = args.busy and not args.ops and not args.sizes
    args.ops = args.ops or list(FEW_OPS)
    args.ranks = args.ranks or (["2"] if args.busy else ["2", "4"])
    if args.report:
        args.ops, args.ranks = list(OPS), ["2", "4", "8"]
        if args.sizes is None:
            args.sizes = [format_size(size).replace(" ", "") for size in SIZES]
            more = make_cases(["all_reduce"], MORE_LARGE, args.dtypes)
            more += make_cases(["all_reduce"], None, [each for each in HALVES if each not in args.dtypes])
    args.ranks = [int(ranks) for ranks in args.ranks]
    sizes = [parse_size(size) for size in args.sizes] if args.sizes else None
    cases = busy_cases(args.dtypes) if few else make_cases(args.ops, sizes, args.dtypes) + more
    args.cases = [case for case in cases if case.is_whole]
    args.left_out = [
        f"{format_case(case)}: one number takes {ITEM_BYTES[case.dtype]} B"
        for case in cases
        if not case.is_whole
    ]


def busy_cases(dtypes: list[str]) -> list[Case]:
    return [case for op, size in BUSY_CASES for case in make_cases([op], [size], dtypes)]


@dataclass(frozen=True)
class Sweep:
    """Operations that are timed in one place: `cases` has them by the number of ranks.

    `busy` processes compute on the cores of the ranks meanwhile.
    """

    cases: dict[int, list[Case]]
    hosts: int = 1
    busy: int = 0

    @property
    def where(self) -> str:
        """What follows the number of ranks in a heading."""
        if self.busy:
            return f" beside {self.busy} busy process" + "es" * (self.busy > 1)
        return f" on {self.hosts} hosts" if self.hosts > 1 else ""

    def of(self, bench: Bench) -> Samples:
        """The samples that the bench took in this place."""
        return Samples([each for each in bench.samples if (each.hosts, each.busy) == (self.hosts, self.busy)])


@dataclass(frozen=True)
class Plan:
    """What one run measures.

    `peers` are timed in every one of the `sweeps`. `occasions` says for each occasion in how many turns it is
    measured, of the peers `watched`.
    """

    peers: list[Peer]
    sweeps: list[Sweep]
    occasions: dict[str, int]
    watched: list[Peer]

    def runs(self, repetitions: int) -> int:
        """How often a peer is started if operations are timed in so many turns."""
        rounds = sum(
            len(heats(ranks, cases, sweep.busy))
            for sweep in self.sweeps
            for ranks, cases in sweep.cases.items()
        )
        total = repetitions * len(self.peers) * rounds
        for name, count in self.occasions.items():
            total += count * len(OCCASIONS[name].of(self.watched)) * len(OCCASIONS[name].ranks)
        return total


def make_plan(args: argparse.Namespace) -> Plan:
    occasions = dict.fromkeys(args.occasions or [], args.repetitions)
    peers = [PEERS[name] for name in args.peers] + ([tuned(args.profile)] if args.profile else [])
    cases = {
        ranks: [case for case in args.cases if ranks <= MANY or case.nbytes <= LARGEST_OF_MANY]
        for ranks in args.ranks
    }
    sweeps = [] if args.occasions else [Sweep(cases, args.hosts, args.busy)]
    watched = peers
    if args.report:
        beside = [case for case in busy_cases(args.dtypes) if case.is_whole]
        sweeps += [Sweep({2: beside}, busy=REPORT_BUSY), Sweep({2: cases[2]}, hosts=2)]
        occasions = dict.fromkeys(OCCASIONS, FEW_TURNS)
        watched = [PEERS[name] for name in OCCASION_PEERS]
    return Plan(peers + args.rivals, sweeps, occasions, watched)


def main(arguments: list[str] | None = None) -> int:
    args = parse(arguments)
    if args.list_made_peers:
        print(*(name for name in args.peers if PEERS[name].is_made))
        return 0
    cores = machine.keep_to_cores(args.cores)
    about = machine.describe(cores)
    print(f"{about['cpu']}, {about['cores']} of {about['cores_of_machine']} cores, torch {about['torch']}\n")

    start = machine.Clock.now()
    plan = make_plan(args)
    bench = measure(plan, args)
    load = machine.foreign_load(start, machine.Clock.now())

    left_out = args.left_out + bench.left_out
    print_figures(plan, bench)
    judgements = judge(args, plan, bench)
    print(report.targets_table(judgements), end="\n\n")
    print_doubts(load, bench.failures, left_out)

    if args.json:  # before the picture, which may fail
        settings: dict[str, object] = {key: str(value) for key, value in vars(args).items()}
        about["foreign_load_cores"] = load
        data = report.as_data(
            about, settings, bench.samples, bench.occasions, judgements, bench.failures, left_out
        )
        args.json.write_text(json.dumps(data, indent=1) + "\n")
    if args.plot and (
        plotted := next((each for sweep in plan.sweeps if (each := sweep.of(bench)).all), None)
    ):
        plot.draw(plotted, [peer.name for peer in plan.peers], title(about, load), args.plot)
    return exit_status(bool(bench.failures), args.strict, {item.verdict for item in judgements})


def measure(plan: Plan, args: argparse.Namespace) -> Bench:
    """Runs the plan: first the occasions, then the operations, one sweep after the other. On a terminal it
    shows a progress bar. The Bench holds what was measured and what failed."""
    total = plan.runs(args.repetitions)
    with tqdm(total=total, unit="run", leave=False, mininterval=0, file=sys.stderr, disable=None) as bar:

        def notice(text: str) -> None:
            bar.set_description(text, refresh=False)
            bar.update()

        bench = Bench(plan.peers, args.repetitions, notice)
        with until_interrupted(bench):
            for name, count in plan.occasions.items():
                occasion = OCCASIONS[name]
                bench.watch(occasion, occasion_arguments(name, args), occasion.of(plan.watched), count)
            for sweep in plan.sweeps:
                if reason := why_no_hosts(sweep.hosts):
                    bench.failures.append(f"{sweep.hosts} hosts: {reason}")
                    continue
                with place(sweep.hosts, args.rate, sweep.busy) as bench.place:
                    for ranks, cases in sweep.cases.items():
                        bench.time_cases(ranks, cases, args.case_seconds)
    return bench


def judge(args: argparse.Namespace, plan: Plan, bench: Bench) -> list[targets.Judgement]:
    """Holds the figures against every target that this run could have measured."""
    judgements = targets.judge_occasions(bench.occasions, every=args.report)
    judgements += targets.judge_tuned_training(bench.occasions)
    plain = targets.PLAIN_TARGETS + (targets.REPORT_TARGETS if args.report else ())
    plain += tuple(map(targets.never_slower_tuned, args.ranks if args.profile else []))
    for sweep in plan.sweeps:
        found = sweep.of(bench)
        wanted = plain if sweep.hosts == 1 else targets.BETWEEN_TARGETS
        if sweep.busy:
            wanted = targets.BUSY_TARGETS
        judgements += [targets.judge_there(target, found, sweep.where) for target in wanted]
        if wanted is plain:
            of_host = [targets.judge_there(target, found, sweep.where) for target in targets.HOST_TARGETS]
            judgements += [item for item in of_host if args.report or item.measured]
    return judgements


def print_figures(plan: Plan, bench: Bench) -> None:
    """A table for each sweep and number of ranks, and one for the occasions."""
    peers = [peer.name for peer in plan.peers]
    for sweep in plan.sweeps:
        found = sweep.of(bench)
        for ranks in sweep.cases if found.all else []:
            print(report.cases_table(found, ranks, peers, sweep.where), end="\n\n")
    if bench.occasions:
        print(report.occasions_table(bench.occasions), end="\n\n")


def print_doubts(load: float, failures: list[str], left_out: list[str]) -> None:
    """What else used the machine meanwhile, what could not be measured, and what was not tried."""
    print(
        f"Other processes used {load:.2f} cores meanwhile."
        + (" Too much: repeat on a quiet machine." * (load > QUIET_CORES))
    )
    for line in left_out:
        print(f"Left out: {line}")
    for failure in failures:
        print(f"NOT MEASURED: {failure}", file=sys.stderr)


@contextlib.contextmanager
def until_interrupted(bench: Bench) -> Iterator[None]:
    """A run that Ctrl-C or SIGTERM stops still prints what it has measured."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        bench.failures.append("the run was stopped before it was complete")
    finally:
        signal.signal(signal.SIGTERM, before)


def title(about: dict[str, object], load: float) -> str:
    date = str(about["date"])[:10]
    where = f"{about['cores']} cores of {about['cpu']}, torch {about['torch']}, {date}"
    return where + (f"; others used {load:.2f} cores meanwhile" if load > QUIET_CORES else "")


def occasion_arguments(name: str, args: argparse.Namespace) -> list[str]:
    given = {
        "idle": {
            "--idle-seconds": args.idle_seconds,
            "--late-seconds": args.late_seconds,
            "--trials": args.trials,
        },
        "training": {"--trials": args.trials},
        "starting": {},
        "recording": {"--trials": args.trials},
    }[name]
    return [str(word) for pair in given.items() for word in pair]


def exit_status(failed: bool, strict: bool, verdicts: set[targets.Verdict]) -> int:
    if failed or (strict and targets.Verdict.ABSENT in verdicts):
        return 1
    if strict and verdicts & {targets.Verdict.MISSED, targets.Verdict.BELOW_FLOOR}:
        return 2
    return 3 if strict and targets.Verdict.NOISY in verdicts else 0


if __name__ == "__main__":
    sys.exit(main())
