"""One rank that measures how long the start takes: the first group with its first all_reduce, further groups.

Rank 0 writes the figures as JSON. The slowest rank counts. `alone` has no torch to start, but in its further
groups.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from torch_ucc.bench.libraries.alone import AloneLibrary
from torch_ucc.bench.libraries.over_torch import TorchLibrary

GROUPS = 7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", required=True)
    parser.add_argument("--output", required=True)
    args = parser.parse_args()

    if args.backend == "alone":
        alone = AloneLibrary()
        found = {"start": [first(alone, lambda: start_alone(alone))]}
        alone.init_fake()
        found["group"] = [further(alone, alone.open_further)]
        write(alone, found, Path(args.output))
        return
    library = TorchLibrary(args.backend, init=False)
    found = {
        "start": [first(library, lambda: start(library))],
        "group": [further(library, lambda _: dist.new_group())],
    }
    write(library, found, Path(args.output))


def start(library: TorchLibrary) -> None:
    library.init()
    dist.all_reduce(torch.zeros(1))


def start_alone(library: AloneLibrary) -> None:
    library.open()
    library.prepare("all_reduce", 4)()


def first(library: TorchLibrary, call: Callable[[], None]) -> float:
    """The seconds of the slowest."""
    library.gather(None)  # all have started
    began = time.perf_counter()
    call()
    slowest: float = max(library.gather(time.perf_counter() - began))
    return slowest


def further(library: TorchLibrary, call: Callable[[int], object]) -> float:
    """Of a call with the numbers of the groups, from 1, the seconds of the slowest."""
    seconds = []
    for number in range(1, GROUPS + 1):
        library.gather(None)
        began = time.perf_counter()
        call(number)
        seconds.append(time.perf_counter() - began)
    slowest: list[float] = [max(of_ranks) for of_ranks in zip(*library.gather(seconds), strict=True)]
    return statistics.median(slowest)


def write(library: TorchLibrary, found: dict[str, list[float]], output: Path) -> None:
    if library.rank == 0:
        output.write_text(json.dumps(found))
    library.close()


if __name__ == "__main__":
    main()
