"""One rank that measures what communication costs a training: a step of DDP with and without it, and how much
of an all_reduce goes on while its caller is elsewhere.

Rank 0 writes the figures as JSON. `alone` has DDP call UCC in C, one bucket after the other, and nothing that
goes on meanwhile.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from torch_ucc.bench.worker import AloneLibrary, TorchLibrary

WIDTH = 1580  # four layers of so many squared: 10 M parameters
OVERLAP_BYTES = 16 << 20
PIECE_BYTES = 1 << 20
"""In which UCC is fastest: of more at once its scratch memory costs page faults."""


def seconds_of(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def communication(library: TorchLibrary, steps: int) -> float:
    """What a training step takes longer for averaging the gradients; the slower rank's."""
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(4)))
    ddp = DistributedDataParallel(model)
    if isinstance(library, AloneLibrary):
        ddp.register_comm_hook(library, lambda of, bucket: averaged_in_c(of, bucket))  # DDP reads annotations
    batch = torch.ones(4, WIDTH)

    def step() -> None:
        ddp(batch).sum().backward()

    def alone() -> None:
        with ddp.no_sync():
            step()

    for _ in range(3):
        step()
        alone()
    extra = []
    for _ in range(steps):
        library.barrier()
        with_others = seconds_of(step)
        library.barrier()
        extra.append(with_others - seconds_of(alone))
    return float(max(library.gather(statistics.median(extra))))


def averaged_in_c(library: AloneLibrary, bucket: Any) -> Any:
    gradients = bucket.buffer().div_(library.world)
    for piece in gradients.split(PIECE_BYTES // gradients.element_size()):
        library.all_reduce(piece)()
    over: Any = torch.futures.Future()
    over.set_result(gradients)
    return over


def hidden_share(library: TorchLibrary, trials: int) -> float:
    """Of an all_reduce, while its caller is elsewhere for as long as it takes, and leaves its core free.

    The caller sleeps: on a machine without a core to spare nothing can be hidden behind a computation.
    """
    data = torch.zeros(OVERLAP_BYTES // 4)

    def reduce() -> None:
        library.dist.all_reduce(data)

    for _ in range(3):
        reduce()
    shares = []
    for _ in range(trials):
        library.barrier()
        alone = max(library.gather(seconds_of(reduce)))
        library.barrier()

        def both(elsewhere: float = alone) -> None:
            work = library.dist.all_reduce(data, async_op=True)
            time.sleep(elsewhere)
            work.wait()

        together = max(library.gather(seconds_of(both)))
        shares.append(max(0.0, (2 * alone - together) / alone))
    return float(statistics.median(shares))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", required=True)
    parser.add_argument("--trials", type=int, required=True)
    parser.add_argument("--output", required=True)
    args = parser.parse_args()

    library = AloneLibrary() if args.backend == "alone" else TorchLibrary(args.backend)
    found = {}
    if isinstance(library, AloneLibrary):
        library.open()
        if not library.is_crowded:  # else it has done so
            library.init_fake()
    else:
        library.dist.all_reduce(torch.zeros(1))
        found["hidden"] = [hidden_share(library, args.trials)]
    found["communication"] = [communication(library, args.trials)]
    if library.rank == 0:
        Path(args.output).write_text(json.dumps(found))
    library.close()


if __name__ == "__main__":
    main()
