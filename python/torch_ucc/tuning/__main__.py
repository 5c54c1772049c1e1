"""Measures settings on a job's hosts. Writes a profile with the settings that are faster than the defaults.

Start it on the same hosts and with as many ranks as the job: `torchrun ... -m torch_ucc tune --output FILE`.
To apply the profile, start the job with TORCH_UCC_PROFILE=FILE. Exit status: 0 if the file was written, 1 if
nothing could be measured, 2 if an argument is wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch.distributed.rendezvous import rendezvous

from torch_ucc import config
from torch_ucc._group import planning
from torch_ucc._native import extension
from torch_ucc.cli.arguments import as_setting
from torch_ucc.topology.job import decode
from torch_ucc.tracing import records
from torch_ucc.tuning import report, workload
from torch_ucc.tuning.choices import families
from torch_ucc.tuning.profile import VARIABLE, Profile, as_toml, topology_of
from torch_ucc.tuning.tuner import Tuner
from torch_ucc.tuning.turns import Turns

_TOGETHER = timedelta(minutes=2)
"""How long the ranks may take to come together."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="torch-ucc tune", description=__doc__)
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="the profile to write")
    parser.add_argument(
        "--budget",
        type=as_setting(config.duration),
        default="10m",
        help="the longest time that the command may take, for example 90s; default: 10m",
    )
    parser.add_argument(
        "--workload",
        type=Path,
        metavar="DIR",
        help="the folder with the files of a recorded job: tune only the operations that the job calls, and "
        "estimate how much time the profile would save",
    )
    asked = parser.parse_args(arguments)
    if "RANK" not in os.environ:
        parser.error(
            "this command measures a job: start it as `torchrun ... -m torch_ucc tune --output FILE`"
        )
    rank = int(os.environ["RANK"])
    if rank == 0 and not asked.output.absolute().parent.is_dir():
        parser.error(f"there is no folder {asked.output.absolute().parent}")
    os.environ.pop(VARIABLE, None)
    try:
        recorded = None if asked.workload is None else workload.of(records.load(asked.workload))
        return _tune(asked.output, asked.budget.total_seconds(), recorded)
    except (ImportError, ValueError, RuntimeError) as error:
        print(f"torch-ucc tune: {error}", file=sys.stderr)
        return 1


def _tune(output: Path, budget: float, recorded: workload.Workload | None) -> int:
    store, rank, size = next(rendezvous("env://"))
    compiled = extension.compiled()  # first: what is asked of the host is asked of its UCX and UCC, too
    if planning.told_by_launcher(size):  # as the ranks of the job, to which the profile must fit, will see it
        job = planning.job_of_launcher(size)
    else:
        job = decode(compiled.exchange(store, rank, size, _TOGETHER, planning.record_here()))
    topology = topology_of(job)
    turns = Turns(store, rank, size, topology, job.crowd() is not None)
    if rank != 0:
        turns.follow()
        return 0
    began = time.monotonic()
    try:
        with _Bar(budget) as bar:
            wanted = families(job)
            if recorded is not None:
                wanted = workload.narrowed(wanted, recorded)
            tuning = Tuner(turns.measure, size, budget, bar.show).tune(wanted, os.environ)
    finally:
        turns.end()
    told = report.summary(tuning)
    if recorded is not None:
        told.append(workload.forecast(recorded, tuning.proof))
    head = [*report.head(time.monotonic() - began), *told]
    profile = Profile(str(output), topology, tuning.values)
    output.write_text(as_toml(profile, head, report.notes(tuning)))
    written = f"The profile was written to {output}. Set {VARIABLE}={output} to apply it."
    print("\n".join([*told, "", written]))
    return 0


class _Bar:
    """A progress bar of the budget's seconds, if stderr is a terminal."""

    def __init__(self, budget: float) -> None:
        self._budget, self._began, self._shown = budget, time.monotonic(), 0.0
        self._bar: Any = None

    def __enter__(self) -> _Bar:
        try:
            from tqdm import tqdm
        except ImportError:  # of the extra "bench"
            return self
        style = "{l_bar}{bar}| {n:.0f}/{total:.0f} s"
        self._bar = tqdm(
            total=self._budget, leave=False, mininterval=0, file=sys.stderr, bar_format=style, disable=None
        )
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def show(self, text: str) -> None:
        if self._bar is None:
            return
        now = min(time.monotonic() - self._began, self._budget)
        self._bar.set_description(text, refresh=False)
        self._bar.update(now - self._shown)
        self._shown = now


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
