"""The plan of each set of processes that share a UCC context: agreed when the first group of them is
created."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from torch_ucc.topology.here import settings_here, this_host
from torch_ucc.topology.job import Job, decode, encode
from torch_ucc.topology.plan import Plan, make_plan

_SHOWN = 4


@dataclass(frozen=True)
class Agreed:
    """`rank` is this process's own, in `job` and `plan`, where ranks are counted as in `global_ranks`."""

    job: Job
    plan: Plan
    rank: int
    global_ranks: tuple[int, ...]

    def host_of(self, global_rank: int) -> int:
        return self.job.ranks[self.global_ranks.index(global_rank)].host


_agreed: dict[tuple[int, ...], Agreed] = {}


def agree(core: Any, store: Any, rank: int, global_ranks: Sequence[int], timeout: timedelta) -> Agreed:
    """Tells the other ranks about this host, and plans with what they tell: the same on all of them.

    Blocks until all called it. Raises ValueError, on all of them, if what somebody set leaves no way to a
    peer.
    """
    mine = encode(this_host(), settings_here(), os.environ.get("CUDA_VISIBLE_DEVICES"))
    job = decode(core.exchange(store, rank, len(global_ranks), timeout, mine))
    plan = make_plan(job)
    if plan.problems:
        more = len(plan.problems) - _SHOWN
        text = " ".join(plan.problems[:_SHOWN]) + (f" So on {more} more ranks." if more > 0 else "")
        raise ValueError(f"this group cannot work: {text}")
    key = tuple(global_ranks)
    _agreed.pop(key, None)  # to come last
    _agreed[key] = Agreed(job, plan, rank, key)
    return _agreed[key]


def of(global_ranks: Sequence[int]) -> Agreed | None:
    """That of the processes which these are among: the latest, if there were several."""
    wanted = set(global_ranks)
    return next((made for ranks, made in reversed(_agreed.items()) if wanted <= set(ranks)), None)
