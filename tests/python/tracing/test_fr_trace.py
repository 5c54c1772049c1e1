"""PyTorch's own analyser reads our dumps: silent on a healthy run, and it finds what is planted."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import LIMIT, SOON, failure, gather_dumps, healthy
from test_diagnosis import Rank, job
from torch.distributed.flight_recorder.components.config_manager import JobConfig
from torch.distributed.flight_recorder.components.loader import read_dir
from torch.distributed.flight_recorder.components.types import COLLECTIVES, Collective, MatchState
from torch.distributed.flight_recorder.fr_trace import build_db
from torch_ucc._native import extension
from torch_ucc._torch import all_gather_single, reduce_scatter_single
from torch_ucc.testing import run_ranks
from torch_ucc.tracing import fr_trace, records
from torch_ucc.tracing.records import Dump

MESSAGES = ("send", "recv", "recv_any_source")
OF_THE_STORE = ("monitored_barrier",)


def analysed(folder: Path, dumps: list[Dump]) -> list[Collective]:
    """What the analyser's database says of each operation, a pair of messages being one."""
    fr_trace.save(dumps, folder / "fr")
    args = JobConfig().parse_args([str(folder / "fr")])
    details, version = read_dir(args)
    assert version == "2.10"
    return build_db(details, args, version).collectives


def is_well(each: Collective) -> bool:
    return each.pass_check and not each.missing_ranks


def only_fault(found: list[Collective]) -> Collective:
    (fault,) = [each for each in found if not is_well(each)]
    return fault


# --- of dumps made by hand ----------------------------------------------------------------------------------


def dumps_of(ranks: list[Rank]) -> list[Dump]:
    return [rank.dump() for rank in ranks]


def test_the_analyser_knows_every_operation() -> None:
    ours = set(extension.compiled().operations()) - {*MESSAGES, *OF_THE_STORE}
    assert {fr_trace.NAMES.get(name, name) for name in ours} <= COLLECTIVES


def exchange(ranks: list[Rank], source: int, to: int, sent: int = 4, received: int = 4, tag: int = 0) -> None:
    ranks[source].call("send", peer=to, elements=sent, tag=tag)
    ranks[to].call("recv", peer=source, elements=received, tag=tag)


def test_messages_find_their_partners(tmp_path: Path) -> None:
    ranks = job(3)
    exchange(ranks, 0, 1)
    exchange(ranks, 2, 1, sent=7, received=7)
    ranks[1].call("recv", peer=0, tag=5, elements=2).call("recv", peer=0, tag=4, elements=3)
    ranks[0].call("send", peer=1, tag=4, elements=3).call("send", peer=1, tag=5, elements=2)
    for rank in ranks:
        rank.call("barrier", dtype="", elements=0)
    found = analysed(tmp_path, dumps_of(ranks))
    assert all(map(is_well, found)) and len(found) == 3 + 4 + 1


def test_a_message_of_another_size_is_found(tmp_path: Path) -> None:
    ranks = job(3)
    exchange(ranks, 2, 0)
    exchange(ranks, 2, 0, sent=4, received=5)
    fault = only_fault(analysed(tmp_path, dumps_of(ranks)))
    assert "messages of ranks 0 and 2" in fault.pg_desc
    (mismatch,) = (fault.mismatch_collectives or {}).values()
    assert mismatch.type_of_mismatch is not None
    assert mismatch.type_of_mismatch.state == MatchState.SIZE_OR_SYNTAX_MISMATCH


def test_a_message_without_a_partner_is_found(tmp_path: Path) -> None:
    ranks = job(3)
    exchange(ranks, 0, 1)
    ranks[1].stuck("recv", peer=0)
    fault = only_fault(analysed(tmp_path, dumps_of(ranks)))
    assert fault.collective_name == "gloo:recv 1<-0" and fault.missing_ranks == {0}


def test_messages_whose_partner_nobody_knows_are_left_out(tmp_path: Path) -> None:
    ranks = job(3)
    ranks[0].call("send", peer=1, tag=3)
    ranks[1].call("recv_any_source", tag=3)
    exchange(ranks, 0, 1)
    assert fr_trace.convert(dumps_of(ranks)).left_out == 2
    assert len(analysed(tmp_path, dumps_of(ranks))) == 3 + 1


def test_rings_that_begin_in_different_places_are_no_mismatch(tmp_path: Path) -> None:
    ranks = job(2)
    exchange(ranks, 0, 1)
    for rank in ranks:
        rank.call("all_reduce")
    dumps = dumps_of(ranks)
    dumps[1] = dataclasses.replace(dumps[1], records=dumps[1].records[1:])
    found = analysed(tmp_path, dumps)
    assert all(map(is_well, found)) and [each.collective_seq_id for each in found] == [2, 3, 4]


def gathered(parts: list[int], totals: list[int]) -> list[Rank]:
    ranks = job(len(parts))
    for rank, part, total in zip(ranks, parts, totals, strict=True):
        rank.call("all_gather", elements=part, output=total)
    return ranks


def test_an_uneven_all_gather_is_no_mismatch(tmp_path: Path) -> None:
    found = analysed(tmp_path, dumps_of(gathered([3, 1, 2], [6, 6, 6])))
    assert all(map(is_well, found)) and found[-1].collective_name == "gloo:all_gather_v"


@pytest.mark.parametrize(
    ("parts", "totals"),
    [([3, 1, 2], [6, 6, 7]), ([3, 1, 1], [6, 6, 6]), ([2, 2, 2], [6, 6, 9])],
    ids=["one expects more", "one brings less", "one expects more of even ones"],
)
def test_an_uneven_all_gather_that_does_not_add_up_is_found(
    tmp_path: Path, parts: list[int], totals: list[int]
) -> None:
    fault = only_fault(analysed(tmp_path, dumps_of(gathered(parts, totals))))
    assert fault.collective_seq_id == 4
    states = {each.type_of_mismatch.state for each in fault.mismatch_collectives.values()}  # type: ignore[union-attr]
    assert states == {MatchState.SIZE_OR_SYNTAX_MISMATCH}


def test_a_rank_that_does_not_come_to_an_uneven_all_gather_is_found(tmp_path: Path) -> None:
    ranks = job(3)
    for rank, part in zip(ranks[:2], (3, 1), strict=True):
        rank.call("all_gather", elements=part, output=6, state="posted")
    assert only_fault(analysed(tmp_path, dumps_of(ranks))).missing_ranks == {2}


# --- of real runs -------------------------------------------------------------------------------------------


def run_healthy(folder: Path) -> None:
    """Some of everything; parts differ wherever they may."""
    healthy()
    rank, size = dist.get_rank(), dist.get_world_size()
    parts = [torch.empty(1 + each) for each in range(size)]
    dist.all_gather(parts, torch.ones(1 + rank))
    dist.reduce(torch.ones(3), 1)
    dist.gather(torch.ones(3), [torch.empty(3) for _ in range(size)] if rank == 0 else None, 0)
    dist.scatter(torch.empty(2), [torch.ones(2) for _ in range(size)] if rank == 1 else None, 1)
    dist.reduce_scatter(torch.empty(2), [torch.ones(2) for _ in range(size)])
    reduce_scatter_single(torch.empty(2), torch.ones(2 * size))
    dist.all_to_all_single(torch.empty(2 * size), torch.ones(2 * size))
    dist.all_gather_object([None] * size, "x" * (rank + 1))
    ring = [
        dist.P2POp(dist.isend, torch.ones(3), (rank + 1) % size, tag=1),
        dist.P2POp(dist.irecv, torch.empty(3), (rank - 1) % size, tag=1),
    ]
    for work in dist.batch_isend_irecv(ring):
        work.wait()
    gather_dumps(folder)


@pytest.mark.multirank
def test_a_healthy_run_matches(tmp_path: Path) -> None:
    run_ranks(run_healthy, 3, tmp_path)
    found = analysed(tmp_path, records.load(tmp_path))
    assert all(map(is_well, found)), [each for each in found if not is_well(each)]
    told = [each.collective_name.removeprefix("gloo:") for each in found]
    assert told.count("all_reduce") == 3 and "all_gather_v" in told and "gather" in told
    assert sum(each.startswith(("send", "recv")) for each in told) == 1 + 3


def run_mismatch(folder: Path) -> None:
    dist.all_reduce(torch.ones(4))
    if dist.get_rank() == 0:
        failure(lambda: dist.all_reduce(torch.ones(4)))
    else:
        failure(lambda: all_gather_single(torch.empty(8), torch.ones(4)))
    gather_dumps(folder)


@pytest.mark.multirank
def test_a_mismatch_is_found(tmp_path: Path) -> None:
    run_ranks(run_mismatch, 2, tmp_path, group_timeout=LIMIT, env=SOON)
    first, second = analysed(tmp_path, records.load(tmp_path))
    assert is_well(first) and not is_well(second)
    assert second.collective_seq_id == 2
    assert second.mismatch_collectives[1].collective_name == "gloo:_all_gather_base"  # type: ignore[index]
    assert second.mismatch_collectives[1].type_of_mismatch.state == MatchState.COLLECTIVE_TYPE_MISMATCH  # type: ignore[index,union-attr]


def run_mismatched_messages(folder: Path) -> None:
    tensor = torch.ones(4)
    if dist.get_rank() == 0:
        dist.send(tensor, 1)
        dist.send(tensor, 1)
    else:
        dist.recv(tensor, 0)
        assert "bytes" in failure(lambda: dist.recv(torch.empty(6), 0))
    dist.barrier()
    gather_dumps(folder)


@pytest.mark.multirank
def test_a_message_of_another_size_is_found_in_a_run(tmp_path: Path) -> None:
    run_ranks(run_mismatched_messages, 2, tmp_path)
    fault = only_fault(analysed(tmp_path, records.load(tmp_path)))
    assert fault.collective_name == "gloo:send 0->1" and fault.collective_seq_id == 2


def run_uneven_mismatch(folder: Path) -> None:
    """Rank 1 brings three where rank 0 expects two."""
    expected = [torch.empty(1), torch.empty(2 + dist.get_rank())]
    failure(lambda: dist.all_gather(expected, torch.ones(1 if dist.get_rank() == 0 else 3)))
    gather_dumps(folder)


@pytest.mark.multirank
def test_an_uneven_all_gather_that_does_not_add_up_is_found_in_a_run(tmp_path: Path) -> None:
    run_ranks(run_uneven_mismatch, 2, tmp_path, group_timeout=LIMIT, env=SOON)
    assert only_fault(analysed(tmp_path, records.load(tmp_path))).collective_name == "gloo:all_gather"
