"""How fast staged operations are: beside plain copies to and from pinned memory and beside gloo, in one run.

Under torchrun, the ranks sharing one TESTED_ACCELERATOR. Rank 0 prints medians of interleaved rounds as JSON
lines, one for each size; then, for the largest, whether each operation has the two figures wanted: twice
gloo's speed, and 60 % of that of plain copies of what it has to copy. The last line is of all_reduce. A
message is also held against a copy on the device. `--assert`: status 1 where one is missed. `--rounds`,
`--sizes` and `--only` shorten it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1] / "python" / "devices"))
import accelerators
from torch_ucc._torch import all_gather_single, reduce_scatter_single

GLOO_WANTED, COPIES_WANTED = 2.0, 0.6


@dataclass(frozen=True)
class Operation:
    call: Callable[[dist.ProcessGroup], object]
    down: int  # elements that a rank has to copy to the host
    up: int
    gloo_has_it: bool = False  # for tensors on CUDA, as torch documents

    @property
    def limit(self) -> str:
        return f"copies of {4 * self.down} bytes down, {4 * self.up} up"


def messages(sent: torch.Tensor, received: torch.Tensor) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    works = [dist.isend(sent, (rank + 1) % size), dist.irecv(received, (rank - 1) % size)]
    for work in works:
        assert work is not None
        work.wait()


def operations(tensor: torch.Tensor, other: torch.Tensor) -> dict[str, Operation]:
    numel = tensor.numel()
    part = tensor[: numel // dist.get_world_size()]
    whole = other[: part.numel() * dist.get_world_size()]
    return {
        "all_reduce": Operation(lambda group: dist.all_reduce(tensor, group=group), numel, numel, True),
        "broadcast": Operation(lambda group: dist.broadcast(tensor, 0, group=group), numel, numel, True),
        "reduce_scatter_tensor": Operation(
            lambda group: reduce_scatter_single(part, whole, group=group), whole.numel(), part.numel()
        ),
        "all_gather_into_tensor": Operation(
            lambda group: all_gather_single(whole, part, group=group), part.numel(), whole.numel()
        ),
        "send and recv": Operation(lambda _: messages(tensor, other), numel, numel),
    }


def plain_copies(tensor: torch.Tensor, down: int, up: int) -> Callable[[], object]:
    host = torch.empty(max(down, up), pin_memory=True)

    def copies() -> None:
        host[:down].copy_(tensor[:down], non_blocking=True)
        tensor[:up].copy_(host[:up], non_blocking=True)

    return copies


def gloo() -> dist.ProcessGroup | None:
    """None where it has nothing for this accelerator."""
    group = dist.new_group(backend="gloo")
    try:
        dist.all_reduce(torch.empty(1, device=accelerators.device()).fill_(1), group=group)
    except RuntimeError:
        return None
    assert isinstance(group, dist.ProcessGroup)
    return group


def seconds(action: Callable[[], object]) -> float:
    """Of one round, from when all ranks are there until the accelerator is idle."""
    torch.accelerator.synchronize()
    dist.barrier()
    start = time.perf_counter()
    action()
    torch.accelerator.synchronize()
    return time.perf_counter() - start


def medians(actions: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(rounds):
        for name, action in actions.items():
            times[name].append(seconds(action))
    return {name: statistics.median(each[len(each) // 3 :]) for name, each in times.items()}


def measured(
    numel: int, rounds: int, only: str, peer: dist.ProcessGroup | None
) -> dict[str, dict[str, float]]:
    """By action: milliseconds; of operations also their speed beside the copies and gloo's."""
    tensor, other = (torch.empty(numel, device=accelerators.device()).fill_(1) for _ in range(2))
    world = dist.group.WORLD
    assert world is not None
    asked = {name: each for name, each in operations(tensor, other).items() if only in ("", name)}
    actions: dict[str, Callable[[], object]] = {"copy on the device": lambda: other.copy_(tensor)}
    for name, each in asked.items():
        actions[each.limit] = plain_copies(tensor, each.down, each.up)
        actions[name] = partial(each.call, world)
        if peer is not None and each.gloo_has_it:
            actions[f"gloo's {name}"] = partial(each.call, peer)
    taken = medians(actions, rounds)
    rows = {name: {"ms": round(1e3 * each, 3)} for name, each in taken.items()}
    for name, each in asked.items():
        beside = {"of the copies": each.limit, "of gloo's speed": f"gloo's {name}"}
        if name == "send and recv":
            beside["of a copy on the device"] = "copy on the device"
        for of, other_name in beside.items():
            if other_name in taken:
                rows[name][of] = round(taken[other_name] / taken[name], 3)
    return rows


def verdict(row: dict[str, float]) -> tuple[str, bool]:
    """In words, and whether all that is wanted is there."""
    copies, beside = row["of the copies"], row.get("of gloo's speed")
    parts = [(f"{copies:.0%} of plain copies ({COPIES_WANTED:.0%} wanted", copies >= COPIES_WANTED)]
    if beside is not None:
        parts.append((f"{beside:.1f} times gloo's speed ({GLOO_WANTED:.0f} wanted", beside >= GLOO_WANTED))
    words = [f"{text}: {'met' if met else 'MISSED'})" for text, met in parts]
    return ", ".join(words), all(met for _, met in parts)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--sizes", type=int, nargs="+", default=[4 << 10, 1 << 20, 64 << 20], help="in bytes")
    parser.add_argument("--only", default="", help="an operation, as 'send and recv'")
    parser.add_argument("--assert", action="store_true", dest="asserts")
    options = parser.parse_args()
    warnings.simplefilter("ignore", FutureWarning)  # torch 2.11 has no other names
    if {"TORCH_UCC_DEVICE_P2P", "TORCH_UCC_DEVICE_COLLECTIVES"} & set(os.environ):
        accelerators.show_to_ucx()
    dist.init_process_group("ucc")
    accelerators.load()
    peer, speaks = gloo(), dist.get_rank() == 0
    for size in sorted(options.sizes):
        rows = measured(size // 4, options.rounds, options.only, peer)
        if speaks:
            print(json.dumps({"bytes": size, **rows}), flush=True)
    verdicts = {name: verdict(row) for name, row in rows.items() if "of the copies" in row}
    missed = speaks and not all(met for _, met in verdicts.values())
    if speaks:
        if peer is None:
            print(f"skipped: gloo, which has nothing for tensors of {accelerators.TYPE}")
        for name, (words, _) in reversed(verdicts.items()):  # all_reduce comes last
            print(f"{name} of {size} bytes: {words}", flush=True)
    dist.destroy_process_group()
    return 1 if options.asserts and missed else 0


if __name__ == "__main__":
    sys.exit(main())
