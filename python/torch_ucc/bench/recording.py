"""One rank that measures the cost of the flight recorder, on and off, and of `torch-ucc record`.

Nothing of other backends; rank 0 writes the figures as JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path

import torch

from torch_ucc._native import extension
from torch_ucc.bench.libraries.library import Call
from torch_ucc.bench.libraries.over_torch import TorchLibrary
from torch_ucc.bench.training import WARM_UP, WIDTH, model, seconds_of

PAIRS = 50
CALLS = 200
"""About a millisecond: what disturbs the machine for longer disturbs both of a pair."""


TURN_S = 2.0
"""Of a training: the command looks at the ranks once in a second, or more often."""


def seconds_per_call(call: Call) -> float:
    start = time.perf_counter()
    for _ in repeat(None, CALLS):
        call()
    return (time.perf_counter() - start) / CALLS


def costs(library: TorchLibrary) -> list[float]:
    """Of the smallest operation, in seconds: what it takes longer with the recorder on."""
    record = extension.compiled().record_operations
    call = library.prepare("all_reduce", 4)
    found = []
    for pair in range(PAIRS):
        seconds = {}
        for on in (True, False) if pair % 2 else (False, True):
            record(on)
            library.barrier()
            seconds[on] = seconds_per_call(call)
        found.append(seconds[True] - seconds[False])
    record(True)
    return found


@contextlib.contextmanager
def recorded(library: TorchLibrary, folder: Path) -> Iterator[None]:
    """Meanwhile `torch-ucc record` records the ranks. Raises RuntimeError if it ended by itself."""
    recorder = None
    if library.rank == 0:
        command = [sys.executable, "-m", "torch_ucc", "record", str(folder), str(os.getpid())]
        recorder = subprocess.Popen(command)
        while len(list(folder.glob("rank*.history"))) < library.world and recorder.poll() is None:
            time.sleep(0.01)
    library.barrier()
    yield
    library.barrier()
    if recorder is not None:
        recorder.terminate()
        if recorder.wait() != 0 or any(not file.stat().st_size for file in folder.iterdir()):
            raise RuntimeError(f"torch-ucc record failed: {recorder.returncode}")


def costs_of_the_command(library: TorchLibrary, trials: int) -> list[float]:
    """What steps of DDP take longer while they are recorded, as a share of their time; the slower rank's."""
    ddp, batch = model(), torch.ones(4, WIDTH)

    def steps(count: int) -> None:
        for _ in repeat(None, count):
            ddp(batch).sum().backward()

    steps(WARM_UP)
    count = max(1, round(TURN_S / max(library.gather(seconds_of(lambda: steps(1))))))
    found = []
    for trial in range(trials):
        seconds = {}
        for on in (True, False) if trial % 2 else (False, True):
            with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as meanwhile:
                if on:
                    meanwhile.enter_context(recorded(library, Path(folder)))
                library.barrier()
                seconds[on] = max(library.gather(seconds_of(lambda: steps(count))))
        found.append(seconds[True] / seconds[False] - 1)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", required=True)
    parser.add_argument("--trials", type=int, required=True)
    parser.add_argument("--output", required=True)
    args = parser.parse_args()

    library = TorchLibrary(args.backend)
    found = {}
    if args.backend == "ucc":
        found = {"recording": costs(library), "recorded": costs_of_the_command(library, args.trials)}
    if library.rank == 0:
        Path(args.output).write_text(json.dumps(found))
    library.close()


if __name__ == "__main__":
    main()
