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
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from torch_ucc.bench.libraries.alone import AloneLibrary
from torch_ucc.bench.libraries.over_torch import TorchLibrary

WARM_UP = 3
WIDTH = 1580  # four layers of so many squared: 10 M parameters
OVERLAP_BYTES = 16 << 20
PIECE_BYTES = 1 << 20
"""In which UCC is fastest: of more at once its scratch memory costs page faults."""


def seconds_of(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def model() -> DistributedDataParallel:
    return DistributedDataParallel(torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(4))))


def costs_of_a_step(library: TorchLibrary, steps: int) -> dict[str, list[float]]:
    """What a training step takes longer for averaging the gradients, the slower rank's: in all, and without
    DDP's own part, which brings them into buckets and back wherever they go.
    """
    averaged, silent = model(), model()
    if isinstance(library, AloneLibrary):  # for a hook DDP does not divide
        averaged.register_comm_hook(library, lambda of, bucket: divided(of, bucket, of.all_reduce))
        silent.register_comm_hook(library, lambda of, bucket: divided(of, bucket, None))
    else:
        silent.register_comm_hook(None, lambda _, bucket: at_once(bucket.buffer()))
    batch = torch.ones(4, WIDTH)

    def step(ddp: DistributedDataParallel) -> float:
        library.barrier()
        return seconds_of(lambda: ddp(batch).sum().backward())

    def alone() -> float:
        with averaged.no_sync():
            return step(averaged)

    turns = []
    for _ in range(WARM_UP + steps):  # each comes after one of the other model, whose memory is in the caches
        turns.append((step(averaged), step(silent), alone()))
        step(silent)
    del turns[:WARM_UP]
    return {
        "averaging": [slowest(library, [full - without for full, _, without in turns])],
        "communication": [slowest(library, [full - copied for full, copied, _ in turns])],
    }


def slowest(library: TorchLibrary, seconds: list[float]) -> float:
    return float(max(library.gather(statistics.median(seconds))))


def at_once(gradients: torch.Tensor) -> Any:
    over: Any = torch.futures.Future()
    over.set_result(gradients)
    return over


def divided(library: AloneLibrary, bucket: Any, reduce: Callable[[Any], Callable[[], None]] | None) -> Any:
    for piece in bucket.buffer().split(PIECE_BYTES // bucket.buffer().element_size()):
        piece.div_(library.world)
        if reduce is not None:
            reduce(piece)()
    return at_once(bucket.buffer())


def hidden_share(library: TorchLibrary, trials: int) -> float:
    """Of an all_reduce, while its caller is elsewhere for as long as it takes, and leaves its core free.

    The caller sleeps: on a machine without a core to spare nothing can be hidden behind a computation.
    """
    data = torch.zeros(OVERLAP_BYTES // 4)

    def reduce() -> None:
        dist.all_reduce(data)

    for _ in range(WARM_UP):
        reduce()
    shares = []
    for _ in range(trials):
        library.barrier()
        alone = max(library.gather(seconds_of(reduce)))
        library.barrier()

        def both(elsewhere: float = alone) -> None:
            work = dist.all_reduce(data, async_op=True)
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

    is_alone = args.backend == "alone"
    library = AloneLibrary() if is_alone else TorchLibrary(args.backend)
    found = {}
    if isinstance(library, AloneLibrary):
        library.init_fake()  # DDP asks for a group
        library.open()
    else:
        dist.all_reduce(torch.zeros(1))
        found["hidden"] = [hidden_share(library, args.trials)]
    found |= costs_of_a_step(library, args.trials)
    if library.rank == 0:
        Path(args.output).write_text(json.dumps(found))
    library.close()


if __name__ == "__main__":
    main()
