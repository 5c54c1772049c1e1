"""How fast staged operations are, beside plain copies to and from pinned memory and beside gloo, in one run.

Under torchrun, the ranks sharing one accelerator. Rank 0 prints medians of interleaved rounds, as JSON lines.
`--device` names another than cuda:0, `--peer none` leaves gloo out, `--rounds` and `--sizes` shorten it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist


def seconds(action: Callable[[], object]) -> float:
    """Of one round, from when all ranks are there until the accelerator is idle."""
    torch.accelerator.synchronize()
    dist.barrier()
    start = time.perf_counter()
    action()
    torch.accelerator.synchronize()
    return time.perf_counter() - start


def actions(numel: int, device: str, peer: str) -> dict[str, Callable[[], object]]:
    tensor = torch.empty(numel, device=device).fill_(1)
    host = torch.empty(numel, pin_memory=True)

    def copies() -> None:
        host.copy_(tensor, non_blocking=True)
        tensor.copy_(host, non_blocking=True)

    def messages() -> None:
        rank, size = dist.get_rank(), dist.get_world_size()
        works = [dist.isend(tensor, (rank + 1) % size), dist.irecv(other, (rank - 1) % size)]
        for work in works:
            work.wait()

    other = torch.empty(numel, device=device)
    found: dict[str, Callable[[], object]] = {
        "copy there and back": copies,
        "ucc all_reduce": lambda: dist.all_reduce(tensor),
        "ucc send and recv": messages,
    }
    if peer != "none":
        group = dist.new_group(backend=peer)
        found[f"{peer} all_reduce"] = lambda: dist.all_reduce(tensor, group=group)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--peer", default="gloo")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--sizes", type=int, nargs="+", default=[4 << 10, 1 << 20, 64 << 20])
    options = parser.parse_args()
    dist.init_process_group("ucc")
    for size in options.sizes:
        todo = actions(size // 4, options.device, options.peer)
        times: dict[str, list[float]] = {name: [] for name in todo}
        for _ in range(options.rounds):
            for name, action in todo.items():
                times[name].append(seconds(action))
        if dist.get_rank() == 0:
            medians = {name: statistics.median(each[len(each) // 3 :]) for name, each in times.items()}
            limit = medians["copy there and back"]
            row = {
                name: {"ms": round(1e3 * t, 3), "of the copies": round(limit / t, 3)}
                for name, t in medians.items()
            }
            print(json.dumps({"bytes": size, **row}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
