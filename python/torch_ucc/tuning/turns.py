"""Measures on all ranks of a job: rank 0 says what to measure, and each rank starts a process that measures.

UCX, UCC and torch_ucc read a profile only when they start, so each measurement has processes of its own. They
are forked from a server that has imported torch, and run the measurement of the bench. Orders and outcomes go
through the store of the job, through which the processes also meet.
"""

from __future__ import annotations

import json
import os
import pickle
import tempfile
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch._C._distributed_c10d import PrefixStore, Store

from torch_ucc.bench import worker
from torch_ucc.bench.cases import Case
from torch_ucc.bench.driver import BATCH_SECONDS, SHARED_BATCH_SECONDS, STARTUP_LIMIT, MeasureError
from torch_ucc.bench.libraries.over_torch import TorchLibrary
from torch_ucc.testing import running
from torch_ucc.topology.cores import of_launcher
from torch_ucc.tuning.profile import VARIABLE, Profile, Values, as_toml

CASE_SECONDS = 0.03
CASE_LIMIT = 1.0  # seconds for one case, far above what it takes
BETWEEN_ORDERS = timedelta(minutes=30)
_KEYS = "torch_ucc.tuning"


class Turns:
    """The part of one rank in the measurements. `topology` is written to the profiles that are tried."""

    def __init__(self, store: Store, rank: int, size: int, topology: dict[str, Any], crowded: bool) -> None:
        self._store = PrefixStore(_KEYS, store)
        self._store.set_timeout(BETWEEN_ORDERS)
        self._rank, self._size, self._topology = rank, size, topology
        self._batch_seconds = SHARED_BATCH_SECONDS if crowded else BATCH_SECONDS
        self._number = 0
        # A rank asks which cores its launcher may use, and may be kept to some of them: so do the processes
        # of a turn, whose launcher is the server that they are forked from.
        self._cores = os.sched_getaffinity(0)
        try:
            os.sched_setaffinity(0, of_launcher())
            running.fork_context()
        finally:
            os.sched_setaffinity(0, self._cores)

    def measure(self, values: Values, cases: Sequence[Case]) -> dict[Case, float]:
        """Measure on all ranks and return the seconds of each case. Only rank 0 calls it.

        Raises MeasureError.
        """
        order = {"values": values, "cases": [str(case) for case in cases]}
        self._store.set(f"order/{self._number}", json.dumps(order))
        rows = self._take_part(order)
        outcomes = [self._store.get(f"outcome/{self._number}/{rank}") for rank in range(self._size)]
        self._number += 1
        for rank, failure in enumerate(outcome.decode() for outcome in outcomes):
            if failure:
                raise MeasureError(f"rank {rank}: {failure}")
        return {Case(row["op"], row["bytes"]): row["seconds"] for row in rows}

    def end(self) -> None:
        """Let `follow` return on the other ranks. Only rank 0 calls it."""
        self._store.set(f"order/{self._number}", json.dumps(None))

    def follow(self) -> None:
        """Measure what rank 0 says, until it calls `end`. All other ranks call it."""
        while (order := json.loads(self._store.get(f"order/{self._number}"))) is not None:
            self._take_part(order)
            self._number += 1

    def _take_part(self, order: dict[str, Any]) -> list[dict[str, Any]]:
        """Runs this rank's process. Tells the others how it went; rank 0 needs the rows."""
        failure, rows = "", list[dict[str, Any]]()
        try:
            rows = self._run(order)
        except running.RankError as error:
            failure = next(iter(error.errors.values()), str(error)).rstrip().splitlines()[-1]
        self._store.set(f"outcome/{self._number}/{self._rank}", failure)
        return rows

    def _run(self, order: dict[str, Any]) -> list[dict[str, Any]]:
        cases = order["cases"]
        with tempfile.TemporaryDirectory(prefix="tuning-") as name:
            folder = Path(name)
            environment = {key: value for key, value in os.environ.items() if key != VARIABLE}
            if order["values"]:
                profile = Profile(str(folder / "profile.toml"), self._topology, order["values"])
                Path(profile.path).write_text(as_toml(profile, [], {}))
                environment[VARIABLE] = profile.path
            limit = STARTUP_LIMIT + len(cases) * CASE_LIMIT
            keys = f"{_KEYS}/turn/{self._number}"
            call = pickle.dumps((measure_here, (keys, cases, self._batch_seconds, self._cores)))
            launch = running.Launch(call, environment, "ucc", False, limit, folder)
            process = running.fork_context().Process(target=running.rank_main, args=(launch, self._rank))
            process.start()
            ours = [running.Rank(self._rank, process, folder)]
            try:
                unended, why = running.wait_for(ours, limit, limit)
            finally:
                running.kill_all(ours)
            rows: list[dict[str, Any]] = running.values_of(ours, unended, why)[0]
            return rows


def measure_here(
    keys: str, cases: Sequence[str], batch_seconds: float, cores: set[int]
) -> list[dict[str, Any]]:
    """Measure in the process that a rank started, and return the rows of the bench."""
    os.sched_setaffinity(0, cores)
    library = TorchLibrary("ucc", prefix=keys)
    rows = worker.measure_all(library, cases, CASE_SECONDS, batch_seconds)
    library.close()
    return rows
