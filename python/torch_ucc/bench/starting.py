"""One rank that measures how long the start takes: the first group with its first all_reduce, further groups.

Torch peers only; rank 0 writes the figures as JSON. The slowest rank counts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
import torch.distributed as dist

from torch_ucc.bench.worker import TorchLibrary

GROUPS = 7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", required=True)
    parser.add_argument("--output", required=True)
    args = parser.parse_args()

    library = TorchLibrary(args.backend, init=False)
    library.gather(None)  # all have started
    data = torch.zeros(1)
    began = time.perf_counter()
    library.init()
    dist.all_reduce(data)
    start = max(library.gather(time.perf_counter() - began))

    seconds = []
    for _ in range(GROUPS):
        library.gather(None)
        began = time.perf_counter()
        dist.new_group()
        seconds.append(time.perf_counter() - began)
    slowest = [max(of_ranks) for of_ranks in zip(*library.gather(seconds), strict=True)]
    if library.rank == 0:
        found = {"start": [start], "group": [statistics.median(slowest)]}
        Path(args.output).write_text(json.dumps(found))
    library.close()


if __name__ == "__main__":
    main()
