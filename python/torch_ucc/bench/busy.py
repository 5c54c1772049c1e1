"""One rank that times operations while as many other processes compute on the same cores as there are ranks.

Torch peers only; rank 0 writes the figures as JSON. Every rank starts one of the other processes. A figure is
the median of a few calls, each counted at its slowest rank: beside others one call in ten may take many times
what the rest take.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from torch_ucc.bench.libraries.over_torch import TorchLibrary

KILO, MEGA = 1 << 10, 1 << 20
CASES = {
    "busy all_reduce 4 B": ("all_reduce", 4, 100),
    "busy all_reduce 64 KB": ("all_reduce", 64 * KILO, 50),
    "busy all_reduce 64 MB": ("all_reduce", 64 * MEGA, 3),
    "busy broadcast 64 MB": ("broadcast", 64 * MEGA, 3),
    "busy message 64 KB": ("ping_pong", 64 * KILO, 50),
    "busy message 64 MB": ("ping_pong", 64 * MEGA, 3),
}
"""What is called, with how many bytes, how often. A message there and back is two."""

COMPUTES = "while True: pass"


@contextlib.contextmanager
def neighbour() -> Iterator[subprocess.Popen[bytes]]:
    """A process that computes for as long as this lasts."""
    process = subprocess.Popen([sys.executable, "-c", COMPUTES])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def timed(library: TorchLibrary, op: str, nbytes: int, calls: int) -> list[float]:
    call = library.prepare(op, nbytes)
    seconds = []
    for _ in range(calls):
        library.barrier()
        began = time.perf_counter()
        call()
        seconds.append((time.perf_counter() - began) / (2 if op == "ping_pong" else 1))
    return [max(of_ranks) for of_ranks in zip(*library.gather(seconds), strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", required=True)
    parser.add_argument("--output", required=True)
    args = parser.parse_args()

    library = TorchLibrary(args.backend)
    with neighbour():
        found = {name: timed(library, *case) for name, case in CASES.items()}
    if library.rank == 0:
        Path(args.output).write_text(json.dumps(found))
    library.close()


if __name__ == "__main__":
    main()
