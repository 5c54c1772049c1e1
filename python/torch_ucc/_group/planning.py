"""The plan of each UCC context: made when its first group is created.

Ranks that are all on one host, where nobody set anything, need none: what they tell each other is only where
they are, or how many cores they share if the launcher said where, and two of them nothing then. What makes
plans is imported when there is something to decide.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from torch_ucc import config
from torch_ucc.topology import algorithms, fingerprint, sysv
from torch_ucc.topology.cores import of_launcher, usable_here, usable_to_launcher
from torch_ucc.topology.user import LOOPBACK, receive_buffers, settings_here, tls

if TYPE_CHECKING:
    from torch_ucc.topology.job import Job
    from torch_ucc.topology.plan import Plan
    from torch_ucc.topology.rails import Exchange

Options = list[tuple[str, str]]

_SHOWN = 4


class Agreed(NamedTuple):
    """`rank` is this process's own, in `job` and `plan`, where ranks are counted as in `global_ranks`."""

    job: Job
    plan: Plan
    rank: int
    global_ranks: tuple[int, ...]

    def host_of(self, global_rank: int) -> int:
        return self.job.ranks[self.global_ranks.index(global_rank)].host


class Chosen(NamedTuple):
    """What UCX and UCC's context are told; and what the ranks agreed on, if they told each other about their
    hosts."""

    ucx: Options
    ucc: Options
    agreed: Agreed | None = None


_of_contexts: dict[int, Chosen] = {}
"""By the number of the context."""


def choose(exchange: Exchange, rank: int, global_ranks: Sequence[int]) -> Chosen:
    """What to tell UCX and UCC's context on this rank. Raises ValueError if what somebody set leaves no way
    to a peer, or if the profile is for another topology.

    Blocks until all called it, since ranks tell each other about their hosts; but not if they are at most two
    of whom the launcher says that they are on one. On one host the libraries are told how many ranks there
    are, to leave the network alone, which way to copy, and by which algorithms.
    """
    size = len(global_ranks)
    is_plain = not settings(of_us=False) and config.in_force().tuned is None
    told = told_by_launcher(size)
    cores = usable_to_launcher() if told else usable_here()
    needs_plan = not told
    if told is None or (told and size >= algorithms.SMALLEST_CROWD):
        mine = str(cores).encode() if told else fingerprint.host_fingerprint() if is_plain else b""
        said = set(exchange(mine))
        needs_plan = len(said) > 1 or b"" in said
    if needs_plan:
        records = exchange(record_here())
        agreed = agree(rank, global_ranks, records, exchange)
        _refuse_problems(agreed.plan)
        _refuse_profile(agreed.job)
        return Chosen(agreed.plan.ucx_settings(rank), agreed.plan.ucc_settings(rank), agreed)
    if is_plain:
        devices = ("NET_DEVICES", LOOPBACK)
        crowded = size > cores
        has_sysv = sysv.works()
        shared = [tls(cma=crowded, tcp=False, sysv=has_sysv), receive_buffers(sysv=has_sysv)]
        of_ucc = [("TL_UCP_TUNE", algorithms.one_host(crowded)), ("ESTIMATED_NUM_PPN", str(size))]
        return Chosen([*(shared if size > 1 else []), devices], [*of_ucc, devices])
    from torch_ucc.topology.plan import make_plan

    job = job_of_launcher(size)
    plan = make_plan(job)
    _refuse_problems(plan)
    _refuse_profile(job)
    return Chosen(plan.ucx_settings(rank), plan.ucc_settings(rank))


def told_by_launcher(size: int, environment: Mapping[str, str] = os.environ) -> bool | None:
    """Whether so many ranks are all on one host, if they are the whole job of a torchrun.

    None if that is not known. vLLM sets LOCAL_WORLD_SIZE to the size of a group, also where the ranks are on
    several hosts; it leaves the number of torchrun's agents as it is.
    """
    local = environment.get("LOCAL_WORLD_SIZE")
    if local is None or environment.get("WORLD_SIZE") != str(size):
        return None
    if local != str(size):
        return False
    return True if environment.get("GROUP_WORLD_SIZE") == "1" else None


def job_of_launcher(size: int) -> Job:
    """That of so many ranks, where the launcher says that all are here: they need not tell each other more
    than how many cores it has."""
    from torch_ucc.topology.here import this_host
    from torch_ucc.topology.job import uniform

    host = this_host()
    cpu = host.cpu._replace(usable=",".join(str(each) for each in sorted(of_launcher())))
    return uniform([host._replace(cpu=cpu)], size, settings())


def settings(of_us: bool = True) -> dict[str, str]:
    """What is set here that decides over a plan. Without `of_us`, only what the libraries read."""
    found = settings_here(profile=config.in_force().libraries)
    return {name: value for name, value in found.items() if of_us or not name.startswith(config.PREFIX)}


def record_here() -> bytes:
    """What this rank tells the others."""
    from torch_ucc.topology.here import this_host
    from torch_ucc.topology.job import encode

    return encode(this_host(), settings(), os.environ.get("CUDA_VISIBLE_DEVICES"))


def agree(
    rank: int, global_ranks: Sequence[int], records: Sequence[bytes], exchange: Exchange | None = None
) -> Agreed:
    """Plans with what these ranks told each other: the same on all of them. With `exchange`, the ranks of
    several hosts first try the networks that the plan may use."""
    from torch_ucc.topology import rails
    from torch_ucc.topology.job import Job, decode
    from torch_ucc.topology.plan import make_plan

    job = decode(records)
    if exchange is not None:
        job = Job(job.hosts, job.ranks, rails.cut(job, rank, exchange))
    return Agreed(job, make_plan(job), rank, tuple(global_ranks))


def keep(compiled: Any, context: int, chosen: Chosen) -> None:
    """What a context was made by, for as long as it is open."""
    still_open = {*compiled.open_contexts(), context}
    for closed in _of_contexts.keys() - still_open:
        del _of_contexts[closed]
    _of_contexts[context] = chosen


def of(context: int) -> Chosen:
    return _of_contexts.get(context, Chosen([], []))


def _refuse_problems(plan: Plan) -> None:
    if plan.problems:
        more = len(plan.problems) - _SHOWN
        text = " ".join(plan.problems[:_SHOWN]) + (f" {more} more ranks have problems." if more > 0 else "")
        raise ValueError(f"this group cannot work: {text}")


_profile_fits = False


def _refuse_profile(job: Job) -> None:
    """Asked of a process's first ranks: later, when some are gone, the libraries have long read it."""
    global _profile_fits
    tuned = config.in_force().tuned
    if tuned is None or _profile_fits:
        return
    from torch_ucc.tuning.profile import refusal

    if why := refusal(tuned, job):
        raise ValueError(f"this group cannot be created: {why}")
    _profile_fits = True
