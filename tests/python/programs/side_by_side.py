"""Programs that run over gloo and then over ucc, in the same processes, and must end with the same numbers.

With two ranks that means the same bits: a sum of two has one order. Where more take part, the numbers are
small whole ones, so that every order of addition is exact.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch_ucc.testing import run_ranks

BACKENDS = ("gloo", "ucc")
LIMIT = 180.0
"""Seconds for each run of some ranks, start included: where they would be stuck, not how long they take."""


def run_both(program: Callable[..., Any], world_size: int, *args: Any) -> list[Any]:
    """What `program(*args)` returns on each rank over ucc, once it has been found to be what gloo gives."""
    results = run_ranks(_in_turn, world_size, BACKENDS, program, args, timeout=LIMIT, init=False)
    for rank, (theirs, ours) in enumerate(results):
        assert_same(ours, theirs, f"rank {rank}")
    return [ours for _, ours in results]


def _in_turn(backends: Sequence[str], program: Callable[..., Any], args: Sequence[Any]) -> list[Any]:
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    timeout = datetime.timedelta(seconds=LIMIT)
    store = dist.TCPStore(host, port, is_master=False, timeout=timeout)
    results = []
    for i, backend in enumerate(backends):
        dist.init_process_group(
            backend,
            store=dist.PrefixStore(f"{i}", store),
            rank=int(os.environ["RANK"]),
            world_size=int(os.environ["WORLD_SIZE"]),
            timeout=timeout,
        )
        torch.manual_seed(0)
        results.append(program(*args))
        dist.destroy_process_group()
    return results


def assert_same(got: Any, expected: Any, where: str) -> None:
    """Values of the same structure whose tensors have the same type, shape and bits, whatever they hold."""
    assert type(got) is type(expected), f"{where}: {type(got).__name__}, not {type(expected).__name__}"
    if isinstance(got, Mapping):
        assert got.keys() == expected.keys(), f"{where}: {[*got]}, not {[*expected]}"
        for key in got:
            assert_same(got[key], expected[key], f"{where}, {key}")
    elif isinstance(got, (list, tuple)):
        assert len(got) == len(expected), f"{where}: {len(got)} values, not {len(expected)}"
        for i, (one, other) in enumerate(zip(got, expected, strict=True)):
            assert_same(one, other, f"{where}, [{i}]")
    elif isinstance(got, torch.Tensor):
        kind, other_kind = (f"{each.dtype} {list(each.shape)}" for each in (got, expected))
        assert kind == other_kind, f"{where}: {kind}, not {other_kind}"
        one, other = (each.detach().to_dense().reshape(-1).contiguous() for each in (got, expected))
        if not torch.equal(one.view(torch.uint8), other.view(torch.uint8)):
            first = int((one != other).nonzero()[0]) if (one != other).any() else 0
            raise AssertionError(f"{where}: [{first}] is {one[first].item()!r}, not {other[first].item()!r}")
    else:
        assert got == expected, f"{where}: {got!r}, not {expected!r}"


def whole_numbers(*shape: int, seed: int, limit: int = 2) -> torch.Tensor:
    """Whole numbers from -limit to limit, as float32."""
    random = torch.Generator().manual_seed(seed)
    return torch.randint(-limit, limit + 1, shape, generator=random).float()
