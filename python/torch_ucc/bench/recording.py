"""One rank that measures what the flight recorder adds to an operation: the same calls, with it on and off.

Nothing of other backends; rank 0 writes the figures as JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from itertools import repeat
from pathlib import Path

from torch_ucc._native import extension
from torch_ucc.bench.libraries.library import Call
from torch_ucc.bench.libraries.over_torch import TorchLibrary

PAIRS = 50
CALLS = 200
"""About a millisecond: what disturbs the machine for longer disturbs both of a pair."""


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", required=True)
    parser.add_argument("--output", required=True)
    args = parser.parse_args()

    library = TorchLibrary(args.backend)
    found = {"recording": costs(library)} if args.backend == "ucc" else {}
    if library.rank == 0:
        Path(args.output).write_text(json.dumps(found))
    library.close()


if __name__ == "__main__":
    main()
