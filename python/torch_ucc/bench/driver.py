"""Runs the peers one at a time, in turns, so that nothing of ours runs beside the one that is measured."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from torch_ucc.bench.cases import OPS, Case
from torch_ucc.bench.figures import Sample, behind_dispatch
from torch_ucc.bench.peers import Peer, Start, commands
from torch_ucc.bench.places import Place
from torch_ucc.bench.targets import Occasions

BATCH_SECONDS = 0.002  # below a scheduler tick, so that most batches of a small op run undisturbed
SHARED_BATCH_SECONDS = (
    0.05  # where ranks share cores: many time slices, or how these fell is what one measures
)
STARTUP_LIMIT = 60.0  # seconds for ranks to start, meet and end
OPS_AT_ONCE = 4  # a peer is given in a turn; of ranks that share cores all, for these take long to start
CASE_LIMIT = 20.0  # seconds for one case, far above what the slowest peer takes
BUSY_CASE_LIMIT = 120.0  # the same beside busy processes, where one that spins waits for whole time slices
TRIES = 2  # that a peer may fail in; a launcher may miss its own time limit once in an hour

Notice = Callable[[str], None]
T = TypeVar("T")


class MeasureError(RuntimeError):
    """A peer gave no figures; the message ends with what its ranks printed."""


def stop(processes: Sequence[subprocess.Popen[bytes]], request: signal.Signals) -> None:
    """Ends what still runs, each with all it started: asks first, insists after five seconds."""
    for how, patience in ((request, 5.0), (signal.SIGKILL, None)):
        left = [process for process in processes if process.poll() is None]
        for process in left:
            os.killpg(process.pid, how)  # each leads its own group
        for process in left:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(patience)


def run_all(starts: Sequence[Start], limit: float, request: signal.Signals) -> str | None:
    """Runs these processes together until all ended, one failed, or `limit` seconds passed.

    Returns None, or why it failed with what they printed. None of them runs any more.
    """
    with tempfile.TemporaryFile() as output:
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for command, extra in starts:
                environment = {**os.environ, "PYTHONFAULTHANDLER": "1", **extra}
                process = subprocess.Popen(
                    command, env=environment, stdout=output, stderr=output, start_new_session=True
                )
                processes.append(process)
            deadline = time.monotonic() + limit
            while True:
                codes = [process.poll() for process in processes]
                if all(code == 0 for code in codes):
                    return None
                failed = next((code for code in codes if code not in (0, None)), None)
                if failed is not None or time.monotonic() > deadline:
                    reason = f"no end after {limit:.0f} s" if failed is None else f"exit status {failed}"
                    break
                time.sleep(0.05)
        finally:
            stop(processes, request)
        output.seek(0)
        return f"{reason}\n" + output.read().decode(errors="replace")[-4000:]


def run_peer(peer: Peer, ranks: int, program: str, arguments: list[str], limit: float, place: Place) -> Any:
    """Starts `ranks` ranks of `peer` and returns what its rank 0 wrote. Throws MeasureError."""
    # The ranks meet here, so that none of them has to serve the others; the store sleeps while they measure.
    store = place.store()
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "figures.json"
        starts = commands(peer, ranks, program, [*arguments, "--output", str(output)], store.port, place)
        try:
            # An aborted rank prints its Python stack; an MPI launcher has to end its own ranks.
            failure = run_all(starts, limit, signal.SIGTERM if peer.launcher else signal.SIGABRT)
        except FileNotFoundError as error:
            failure = f"{error}; ci/bench makes the environments of peers"
        if failure is None and not output.exists():
            failure = "its rank 0 wrote no figures"
        if failure is not None:
            raise MeasureError(f"{peer.name}, {ranks} ranks: {failure}")
        return json.loads(output.read_text())


@dataclass(frozen=True)
class Occasion:
    """What is not a matter of calls per second: a program of its own, for torch peers and maybe `alone`.

    `limit`: in seconds, for a run. `has_floor`: `alone` shows what there is to reach.
    """

    name: str
    program: str
    limit: float
    ranks: tuple[int, ...] = (2,)
    is_random: bool = False
    has_floor: bool = False

    def of(self, peers: Sequence[Peer]) -> list[Peer]:
        """Those of them that it measures."""
        return [peer for peer in peers if not peer.is_made or (self.has_floor and peer.name == "alone")]


OCCASIONS = {
    occasion.name: occasion
    for occasion in (
        Occasion("idle", "waiting.py", STARTUP_LIMIT * 2, is_random=True),
        Occasion("training", "training.py", STARTUP_LIMIT * 2, has_floor=True),
        Occasion("starting", "starting.py", STARTUP_LIMIT * 2, ranks=(2, 8), has_floor=True),
        Occasion("recording", "recording.py", STARTUP_LIMIT * 5),
    )
}


def turns(peers: Sequence[Peer], repetitions: int) -> list[tuple[int, Peer]]:
    """A B C B C A C A B ...: neighbours in time are compared, and a slow stretch of the machine hits now one,
    now another."""
    return [(repetition, peer) for repetition in range(repetitions) for peer in rotated(peers, repetition)]


def rotated(all_of_them: Sequence[T], turn: int) -> list[T]:
    """Whoever comes first is another in each turn: what depends on the place hits all alike."""
    first = turn % len(all_of_them)
    return [*all_of_them[first:], *all_of_them[:first]]


def heats(ranks: int, cases: Sequence[Case], busy: int = 0) -> list[list[Case]]:
    """In which `cases` are run: each by all peers before the next, so that these are neighbours in time.

    All of a report at once would be minutes of one peer, over which machines change.
    """
    ops = list(dict.fromkeys(case.op for case in cases))
    at_once = max(1, len(ops)) if is_crowded(ranks + busy) else OPS_AT_ONCE
    parts = [ops[first : first + at_once] for first in range(0, len(ops), at_once)]
    return [[case for case in cases if case.op in part] for part in parts]


def is_crowded(processes: int) -> bool:
    """More than there are cores that all of them are kept to."""
    return processes > len(os.sched_getaffinity(0))


class Bench:
    """Collects samples and failures. A peer that fails again is left out of the turns that are left."""

    def __init__(self, peers: Sequence[Peer], repetitions: int, notice: Notice) -> None:
        self.peers, self.repetitions, self.notice = peers, repetitions, notice
        self.place = Place()
        self.samples: list[Sample] = []
        self.occasions: Occasions = {}
        self.failures: list[str] = []
        self._refused: dict[tuple[str, str, str], set[str]] = {}  # peer, dtype and reason -> ops

    @property
    def left_out(self) -> list[str]:
        """A line for each peer and dtype that it cannot do, with the reason and the ops."""
        return [
            f"{peer}, {dtype}: {reason} ({', '.join(op for op in OPS if op in ops)})"
            for (peer, dtype, reason), ops in self._refused.items()
        ]

    def _can(self, peer: Peer, case: Case) -> bool:
        """Whether the peer is timed with the case. If its dtype is why not, `left_out` has the reason."""
        if case.op in peer.lacks:
            return False
        reason = peer.why_not(case)
        if reason:
            self._refused.setdefault((peer.name, case.dtype, reason), set()).add(case.op)
        return not reason

    def _attempt(
        self, failed: Counter[str], peer: Peer, ranks: int, program: str, arguments: list[str], limit: float
    ) -> Any:
        if failed[peer.name] >= TRIES:
            return None
        try:
            return run_peer(peer, ranks, program, arguments, limit, self.place)
        except MeasureError as error:
            failed[peer.name] += 1
            self.failures.append(str(error))
            return None

    def time_cases(self, ranks: int, cases: Sequence[Case], case_seconds: float) -> None:
        arguments = ["--case-seconds", str(case_seconds)]
        hosts, busy = self.place.hosts, self.place.busy
        batch_seconds = SHARED_BATCH_SECONDS if is_crowded(ranks + busy) else BATCH_SECONDS
        arguments += ["--batch-seconds", str(batch_seconds)]
        parts = heats(ranks, cases, busy)
        failed: Counter[str] = Counter()
        able = [peer for peer in self.peers if hosts == 1 or peer.spans_hosts]
        for turn, peer in turns(able, self.repetitions * len(parts)):
            repetition, part = divmod(turn, len(parts))
            self.notice(f"{peer.name}, {ranks} ranks, repetition {repetition + 1}")
            known = [str(case) for case in parts[part] if self._can(peer, case)]
            if not known:
                continue
            limit = STARTUP_LIMIT + len(known) * ((BUSY_CASE_LIMIT if busy else CASE_LIMIT) + case_seconds)
            asked = ["--cases", ",".join(known), *arguments]
            for row in self._attempt(failed, peer, ranks, "worker.py", asked, limit) or []:
                case = Case(row["op"], row["bytes"], row["dtype"])
                for name, key in ((peer.name, "seconds"), (behind_dispatch(peer.name), "with_dispatch")):
                    if key in row:
                        self.samples.append(Sample(name, ranks, case, repetition, row[key], hosts, busy))

    def watch(
        self, occasion: Occasion, arguments: Sequence[str], peers: Sequence[Peer], repetitions: int
    ) -> None:
        for ranks in occasion.ranks:
            of_ranks = "" if ranks == 2 else f", {ranks} ranks"
            failed: Counter[str] = Counter()
            for repetition, peer in turns(peers, repetitions):
                self.notice(f"{peer.name}, {occasion.name}, {ranks} ranks, repetition {repetition + 1}")
                asked = [*arguments, *(["--seed", str(repetition)] if occasion.is_random else [])]
                result = self._attempt(failed, peer, ranks, occasion.program, asked, occasion.limit) or {}
                for what, values in result.items():
                    self.occasions.setdefault(peer.name, {}).setdefault(what + of_ranks, []).extend(values)
