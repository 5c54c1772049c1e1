"""One rank of one peer: opens its library and times each case; rank 0 writes the figures as JSON.

The driver runs this file by its path, also in environments where neither torch nor torch_ucc is installed. It
therefore imports only the standard library and, from the folder `libraries` beside it, the module of the
library that is measured.

A figure is the median over batches of back-to-back calls, each batch counted at its slowest rank.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_ucc.bench.libraries.library import Call, Library, OpenLibrary

MIN_BATCHES, MAX_BATCHES = 5, 500

# The module of `libraries` that measures a backend. Any other backend is one of torch's or, if its name has a
# colon, the factory of an all_reduce.
MODULES = {
    "mpi": "over_mpi",
    "oneccl": "over_oneccl",
    "ucxx": "over_ucx",
    "alone": "alone",
    "floor": "floor",
}


def open_library(backend: str, folder: Path) -> Library:
    """Opens the library that `backend` names. All ranks see `folder`."""
    # Python does this by itself for a file that is run by its path, unless PYTHONSAFEPATH is set.
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    other = "over_factory" if ":" in backend else "over_torch"
    module = importlib.import_module(f"libraries.{MODULES.get(backend, other)}")
    opener: OpenLibrary = module.open_library
    return opener(backend, folder)


def warm_up(library: Library, call: Call, batch_seconds: float) -> float:
    """Doubles the number of calls until they fill a batch; returns what one took, the same on all ranks."""
    count = 1
    while True:
        seconds: float = max(library.gather(library.timed(call, count)))
        if count >= 4 and count * seconds >= batch_seconds:
            return seconds
        count *= 2


def measure(library: Library, call: Call, case_seconds: float, batch_seconds: float) -> tuple[float, int]:
    """Calls for about `case_seconds`, the warm-up not counted: the seconds that one took, and how many."""
    estimate = warm_up(library, call, batch_seconds)
    size = max(1, round(batch_seconds / estimate))
    batches = min(MAX_BATCHES, max(MIN_BATCHES, round(case_seconds / (size * estimate))))
    seconds = []
    for _ in range(batches):
        library.barrier()
        seconds.append(library.timed(call, size))
    slowest = [max(of_ranks) for of_ranks in zip(*library.gather(seconds), strict=True)]
    return statistics.median(slowest), size * batches


def measure_all(
    library: Library, cases: Sequence[str], case_seconds: float, batch_seconds: float
) -> list[dict[str, Any]]:
    """A row for each case, such as "all_reduce:4:float32"."""
    rows: list[dict[str, Any]] = []
    for op, nbytes, dtype in (case.split(":") for case in cases):
        call, per_call = library.prepare(op, int(nbytes), dtype), library.per_call(op)
        seconds, calls = measure(library, call, case_seconds, batch_seconds)
        rows.append({"op": op, "bytes": int(nbytes), "dtype": dtype, "seconds": seconds / per_call})
        rows[-1]["calls"] = calls
        both = library.behind_dispatch(op, call)
        if both is not None:
            rows[-1]["with_dispatch"] = measure(library, both, case_seconds, batch_seconds)[0] / per_call
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--backend", default="mpi", help=f"{', '.join(MODULES)}, one of torch's, or module:factory"
    )
    parser.add_argument("--cases", required=True, help="op:bytes:dtype,op:bytes:dtype,...")
    parser.add_argument("--case-seconds", type=float, required=True)
    parser.add_argument("--batch-seconds", type=float, required=True)
    parser.add_argument("--output", required=True)
    args = parser.parse_args()

    library = open_library(args.backend, Path(args.output).parent)
    results = measure_all(library, args.cases.split(","), args.case_seconds, args.batch_seconds)
    if library.rank == 0:
        Path(args.output).write_text(json.dumps(results))
    library.close()


if __name__ == "__main__":
    main()
