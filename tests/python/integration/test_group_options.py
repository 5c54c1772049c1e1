"""Options of UCC and UCX for one group: they hold there, as the libraries' logs tell, and nowhere else."""

from __future__ import annotations

import copy
import itertools
import os
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch_ucc
from torch_ucc.testing import run_ranks
from torch_ucc.topology import ask_routes

pytestmark = pytest.mark.multirank

RING = {"TL_UCP_TUNE": "allreduce:0-inf:@ring"}
RING_ON_0 = r"TL_UCP_TUNE of Options\(ucc=\): '.*@ring' on rank 0 .*, not set on rank 1"
EAGER = {"RNDV_THRESH": "inf"}
LARGE = 1 << 20


def total(group: Any) -> float:
    tensor = torch.full((1000,), dist.get_rank() + 1.0)
    dist.all_reduce(tensor, group=group)
    return float(tensor[0])


def exchanged(group: Any) -> float:
    """A large message of ours to the next rank, and from the one before."""
    rank, size = dist.get_rank(), dist.get_world_size()
    got = torch.empty(LARGE, dtype=torch.uint8)
    works = [
        dist.isend(torch.full_like(got, rank), (rank + 1) % size, group=group),
        dist.irecv(got, (rank - 1) % size, group=group),
    ]
    for work in works:
        work.wait()
    return float(got[-1])


def groups_and_their_logs() -> tuple[list[str], dict[str, list[float]], str]:
    """What UCC was given to choose from for each team of the process, in the order of their creation."""
    with tempfile.TemporaryDirectory() as name:
        ask_routes.listen(Path(name))
        dist.init_process_group("ucc")
        groups = {
            "world": dist.group.WORLD,
            "ring": dist.new_group(pg_options=torch_ucc.Options(ucc=RING)),
            "threshold": dist.new_group(pg_options=torch_ucc.Options(ucx={"RNDV_THRESH": "64k"})),
            "plain": dist.new_group(),
            "ring again": dist.new_group(pg_options=torch_ucc.Options(ucc=RING)),
        }
        values = {how: [total(group), exchanged(group)] for how, group in groups.items()}
        ucc, ucx = (ask_routes.heard(Path(name), library) for library in ("ucc", "ucx"))
        dist.destroy_process_group()
    maps = re.findall(r"COLL_SCORE_MAP .*?Allreduce:\s*\n.*?\{0\.\.[^}]*\}:\w+:\w+=(\w+)", ucc, re.DOTALL)
    return maps, values, ucx


def tables(log: str, worker: str, sent: str) -> list[str]:
    """How the worker of each context sends messages of such a kind, with each size."""
    found = re.split(r"\| (?=\w+ intra-node cfg#)", log)
    return [each for each in found if each.startswith(worker) and f"by {sent} from" in each]


def rendezvous(log: str, worker: str) -> list[bool]:
    """Whether the worker of each context sends large messages so, where that changes from one to the next."""
    tagged = tables(log, worker, "ucp_tag_send*")
    return [how for how, _ in itertools.groupby("rendezvous" in each for each in tagged)]


def test_they_hold_for_their_group_alone() -> None:
    eager = {"UCX_RNDV_THRESH": "inf", "UCC_UCX_RNDV_THRESH": "inf", "TORCH_UCC_HOST_PATH": "0"}
    logged = run_ranks(groups_and_their_logs, 2, init=False, timeout=240, env=eager)
    for _, values, _ in logged:
        assert all(each[0] == 3.0 for each in values.values()), values
    assert [values["threshold"][1] for _, values, _ in logged] == [1.0, 0.0]
    maps, _, ucx = logged[0]
    chosen = ["ring" if "allreduce_ring" in each else "default" for each in maps]
    # A context has a team of its own to close with; the second group with the same options shares it.
    assert chosen == ["default"] * 2 + ["ring"] * 2 + ["default"] * 2 + ["default"] + ["ring"], maps
    for worker in ("torch_ucc", "UCC_UCP_CONTEXT"):
        assert rendezvous(ucx, worker) == [False, True], ucx


def short_messages() -> str:
    """UCX's log, of two groups: in the second one TCP sends more at once."""
    with tempfile.TemporaryDirectory() as name:
        ask_routes.listen(Path(name))
        dist.init_process_group("ucc")
        longer = torch_ucc.Options(ucx={"TCP_TX_SEG_SIZE": "32k", "TCP_RX_SEG_SIZE": "32k"})
        for group in (dist.group.WORLD, dist.new_group(pg_options=longer)):
            assert (total(group), exchanged(group)) == (3.0, 1.0 - dist.get_rank())
        said = ask_routes.heard(Path(name), "ucx")
        dist.destroy_process_group()
    return said


def test_one_of_a_transport_holds_for_both_workers() -> None:
    """UCX reads such by another prefix than its own, of which UCC says nothing."""
    env = {"UCX_TLS": "tcp,self", "TORCH_UCC_HOST_PATH": "0"}
    log = run_ranks(short_messages, 2, init=False, timeout=240, env=env)[0]
    for worker in ("torch_ucc", "UCC_UCP_CONTEXT"):
        found = tables(log, worker, "ucp_tag_send*(fast-completion)")
        largest = [re.findall(r"0\.\.(\d+) +\| eager short", each) for each in found]
        assert largest == [["8184"], ["32760"]], log


def of_the_world() -> None:
    """Groups that set nothing are on the context of the first one, and a part of a group on its own. What was
    refused is not in the way of what is not."""
    dist.init_process_group("ucc", pg_options=torch_ucc.Options(ucc=RING))
    with pytest.raises(ValueError, match="set UCC_CLS in the environment"):
        dist.new_group(pg_options=torch_ucc.Options(ucc={"CLS": "hier"}))
    half = dist.new_group([dist.get_rank()])
    assert total(dist.new_group()) == 3.0 and half is not None
    ring = {"value": RING["TL_UCP_TUNE"], "source": "Options"}
    assert torch_ucc.describe()["options"]["UCC_TL_UCP_TUNE"] == ring
    world: Any = dist.group.WORLD
    backend = world._get_backend(torch.device("cpu"))
    assert backend.options.ucc == RING and copy.deepcopy(backend.options).ucc == RING
    with pytest.raises(NotImplementedError, match="for other options"):
        world.split_group([0, 1], opts=torch_ucc.Options(ucx=EAGER), group_name="a")
    assert total(world.split_group([0, 1], opts=torch_ucc.Options(), group_name="b")) == 3.0


def test_those_of_the_default_group() -> None:
    run_ranks(of_the_world, 2, init=False)


def differ_at_first() -> str:
    mine = {"ucc": RING} if os.environ["RANK"] == "0" else {}
    with pytest.raises(ValueError) as caught:
        dist.init_process_group("ucc", pg_options=torch_ucc.Options(**mine))
    return str(caught.value)


def test_ranks_that_differ_from_the_start_are_all_told() -> None:
    (said,) = set(run_ranks(differ_at_first, 2, init=False))
    assert re.search(f"group '.*' have different settings.*{RING_ON_0}", said, re.DOTALL), said


def said_of(options: dict[str, Any]) -> tuple[str, str]:
    """When the group was created or, at the latest, used."""
    with pytest.raises((ValueError, dist.DistBackendError)) as caught:
        total(dist.new_group(pg_options=torch_ucc.Options(**options)))
    return type(caught.value).__name__, str(caught.value)


def differ_later() -> list[tuple[str, str]]:
    """One rank wants something else: on the world's context, on one to be made, and on one with options."""
    rank = dist.get_rank()
    said = [
        said_of({"ucx": EAGER} if rank == 2 else {}),
        said_of({"ucc": RING} if rank != 1 else {}),
    ]
    ring = dist.new_group(pg_options=torch_ucc.Options(ucc=RING))
    said.append(said_of({"ucc": RING} if rank != 1 else {}))
    assert total(dist.group.WORLD) == total(ring) == total(dist.new_group()) == 6.0
    return said


def test_ranks_that_differ_later_are_all_told() -> None:
    """Who wants something else than rank 0 did it wrong; the others have a group that failed."""
    told = list(zip(*run_ranks(differ_later, 3), strict=True))
    wrong, failed = "ValueError", "DistBackendError"
    assert [[kind for kind, _ in each] for each in told] == [
        [failed, failed, wrong],
        [wrong, wrong, wrong],
        [failed, wrong, failed],
    ]
    differences = [
        r"RNDV_THRESH of Options\(ucx=\): not set on rank 0 .*, 'inf' on rank 2",
        RING_ON_0,
        RING_ON_0,
    ]
    for each, difference in zip(told, differences, strict=True):
        for _, said in each:
            assert re.search(f"group '.*' have different settings.*{difference}", said, re.DOTALL), said
