"""The plan of each set of processes that share a UCC context: agreed when the first group of them is
created."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from torch_ucc.topology.here import settings_here, this_host
from torch_ucc.topology.job import Job, decode, encode, uniform
from torch_ucc.topology.plan import Plan, make_plan

_SHOWN = 4


@dataclass(frozen=True)
class Agreed:
    """`rank` is this process's own, in `job` and `plan`, where ranks are counted as in `global_ranks`. An
    `assumed` job is all on this host, as torchrun said, and its other ranks are taken to be as this one."""

    job: Job
    plan: Plan
    rank: int
    global_ranks: tuple[int, ...]
    assumed: bool = False

    def host_of(self, global_rank: int) -> int:
        return self.job.ranks[self.global_ranks.index(global_rank)].host


_agreed: dict[tuple[int, ...], Agreed] = {}


def agree(core: Any, store: Any, rank: int, global_ranks: Sequence[int], timeout: timedelta) -> Agreed:
    """Tells the other ranks about this host, and plans with what they tell: the same on all of them.

    Blocks until all called it, but for ranks of one host: they have nothing to choose, and are spared the
    wait. Raises ValueError, on all of them, if what somebody set leaves no way to a peer.
    """
    size = len(global_ranks)
    assumed = all_here(size)
    if assumed:
        job = uniform([this_host()], size, settings_here())
    else:
        job = decode(core.exchange(store, rank, size, timeout, record_here()))
    plan = make_plan(job)
    if plan.problems:
        more = len(plan.problems) - _SHOWN
        text = " ".join(plan.problems[:_SHOWN]) + (f" So on {more} more ranks." if more > 0 else "")
        raise ValueError(f"this group cannot work: {text}")
    return _keep(Agreed(job, plan, rank, tuple(global_ranks), assumed))


def learn(agreed: Agreed, rank: int, global_ranks: Sequence[int], records: Sequence[bytes]) -> Agreed:
    """The same, with what these ranks told afterwards where it was assumed."""
    if not agreed.assumed:
        return agreed
    job = decode(records)
    return _keep(Agreed(job, make_plan(job), rank, tuple(global_ranks)))


def of(global_ranks: Sequence[int]) -> Agreed | None:
    """That of the processes which these are among: the latest, if there were several."""
    wanted = set(global_ranks)
    return next((made for ranks, made in reversed(_agreed.items()) if wanted <= set(ranks)), None)


def record_here() -> bytes:
    """What this rank tells the others."""
    return encode(this_host(), settings_here(), os.environ.get("CUDA_VISIBLE_DEVICES"))


def all_here(size: int, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether torchrun says that so many ranks are the whole job, and on one host."""
    return environment.get("LOCAL_WORLD_SIZE") == environment.get("WORLD_SIZE") == str(size)


def _keep(made: Agreed) -> Agreed:
    _agreed.pop(made.global_ranks, None)  # to come last
    _agreed[made.global_ranks] = made
    return made
